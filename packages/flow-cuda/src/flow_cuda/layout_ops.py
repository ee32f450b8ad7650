"""The op that converts layouts; a pass creates it after differentiation, one op per device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flow_core.authoring.layouts import TO_FIRST, TO_LAST
from flow_core.authoring.specs import (
    REQUIRED,
    InferContext,
    OpSpec,
    Sample,
    TensorType,
    tensor_type,
)


def _type(ctx: InferContext) -> tuple[TensorType]:
    (x,) = ctx.inputs
    return (tensor_type(tuple(x.shape[axis] for axis in ctx.attrs["perm"]), x.dtype),)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in ((2, 3, 4, 5), (2, 40, 7, 9), (1, 33, 1, 64), (3, 1, 2, 9)):
        for perm in (TO_LAST, TO_FIRST):
            yield Sample((rng.uniform(-1, 1, shape),), {"perm": perm}, gradient=False)


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        type="cuda_reorder",
        internal=True,
        inputs=("x",),
        infer=_type,
        attrs={"perm": REQUIRED, "reason": "", "reordered": 0},
        reference=lambda x, perm, **_: np.transpose(x, perm),
        samples=_samples,
        doc="Activations or weights in another layout; ``reason`` names the consumer.",
    ),
)
