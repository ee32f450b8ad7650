"""The op of boxing: one device's part of a tensor, made of parts that devices hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from flow_core.dtypes import as_dtype
from flow_core.ir import TensorType, tensor_type
from flow_core.plugins.specs import REQUIRED, InferContext, OpSpec, Sample

COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum}
"""How parts that overlap are combined, by the partial SBP's operation."""


def _infer(ctx: InferContext) -> tuple[TensorType, ...]:
    ctx.check(ctx.attrs["combine"] in COMBINE, ctx.attrs["combine"], ", ".join(COMBINE))
    return (tensor_type(tuple(ctx.attrs["shape"]), as_dtype(ctx.attrs["dtype"])),)


def window(start: tuple[int, ...], size: tuple[int, ...]) -> tuple[slice, ...]:
    """The slices of a box.

    >>> window((1, 0), (2, 3))
    (slice(1, 3, None), slice(0, 3, None))
    """
    return tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))


def _reference(*parts: Any, shape: Any, dtype: str, pieces: Any, zero: bool, combine: str) -> Any:
    out = np.zeros(shape, parts[0].dtype if parts else as_dtype(dtype).numpy)
    for source, start, target, size, first in pieces:
        new = parts[source][window(start, size)]
        there = window(target, size)
        out[there] = new if first else COMBINE[combine](out[there], new)
    return out


def _samples(rng: Any) -> Any:
    a, b = rng.normal(size=(2, 3)), rng.normal(size=(4, 3))
    attrs: dict[str, Any] = {"shape": (5, 3), "dtype": "float32", "combine": "sum"}
    pieces: tuple[Any, ...] = ((0, (0, 0), (0, 0), (2, 3), True), (1, (1, 0), (2, 0), (3, 3), True))
    yield Sample((a, b), {**attrs, "pieces": pieces, "zero": False}, gradient=False)
    pieces = ((0, (0, 1), (1, 0), (2, 2), True), (1, (0, 0), (1, 0), (2, 2), False))
    attrs = {**attrs, "shape": (4, 2)}
    yield Sample((a, b), {**attrs, "pieces": pieces, "zero": True}, gradient=False)
    pieces = ((0, (), (), (), True), (1, (), (), (), False))
    attrs = {**attrs, "shape": (), "pieces": pieces, "zero": False}
    yield Sample((a[0, 0], b[0, 0]), attrs, gradient=False, note="scalars")


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        type="boxing",
        inputs=("part*",),
        infer=_infer,
        attrs={
            "shape": REQUIRED,
            "dtype": REQUIRED,
            "pieces": REQUIRED,
            "zero": False,
            "combine": "sum",
        },
        reference=_reference,
        samples=_samples,
        doc="""Copies and adds boxes of its inputs.

        ``pieces`` has (input, start in it, start in the output, size, first) per box, where
        ``first`` boxes are copied and the others combined with what is there; ``zero`` says
        that boxes do not cover the output, which then starts as zeros.
        """,
    ),
)
