"""Groups of elementwise ops that a backend compiles as one kernel.

The body of a group is a nested literal with one ``(type, references, attributes)`` per member,
where the reference ``-1 - k`` is input k of the group, and a reference m >= 0 is the result of
member m.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype
from flow_core.base.shapes import Shape
from flow_core.ir.graph import AttrValue, TensorType, tensor_type
from flow_core.ops.declare import OpDef, Rng, Samples, Types, specs
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import REQUIRED, InferContext, Sample


@dataclass(frozen=True, slots=True)
class Member:
    """One op of a group."""

    type: str
    refs: tuple[int, ...]
    attrs: Mapping[str, AttrValue]
    result: TensorType


def encode(members: Sequence[Member]) -> tuple[AttrValue, ...]:
    """Return the body attribute of some members."""
    return tuple(
        (m.type, m.refs, tuple(m.attrs.items()), m.result.shape, m.result.dtype.name)
        for m in members
    )


def decode(body: tuple[Array, ...]) -> Iterator[Member]:
    """Return the members of a body attribute."""
    for type_, refs, attrs, shape, dtype in body:
        yield Member(type_, refs, dict(attrs), tensor_type(shape, as_dtype(dtype)))


DTYPES = ("float32", "float64", "float16", "bfloat16")


class Fused(OpDef):
    """Elementwise ops in one launch; see `flow_core.ops.system.fused`."""

    schema = "fused(x*) -> out*"
    attrs = {"body": REQUIRED, "outputs": REQUIRED}
    internal = True

    def infer(self, ctx: InferContext) -> Types:
        results = [tensor_type(row[3], as_dtype(row[4])) for row in ctx.attrs["body"]]
        return tuple(results[i] for i in ctx.attrs["outputs"])

    def reference(
        self, *inputs: Array, body: tuple[AttrValue, ...], outputs: tuple[int, ...]
    ) -> tuple[Array, ...]:
        known = default_registry().ops
        results: list[Array] = []
        for member in decode(body):
            spec = known[member.type]
            if spec.reference is None:
                raise LookupError(f"{member.type}, a member of a group, has no reference")
            arrays = (results[r] if r >= 0 else inputs[-1 - r] for r in member.refs)
            results.append(spec.reference(*arrays, **{**spec.attrs, **member.attrs}))
        return tuple(results[i] for i in outputs)

    def samples(self, rng: Rng) -> Samples:
        """Yield groups with chains, shared intermediates, several outputs, and broadcast inputs."""
        for dtype in DTYPES:
            for shape, other in (((7,), (7,)), ((3, 5), (5,)), ((2, 1, 4), (3, 1)), ((), ())):
                x, y = rng.uniform(-2, 2, shape), rng.uniform(0.5, 2, other)
                space = np.broadcast_shapes(shape, other)
                yield _sample(dtype, (x, y), _ROWS, (2,), space)
                if shape == other:
                    yield _sample(dtype, (x, y), _ROWS, (0, 2), space)
                    yield _sample(dtype, (x, y), (*_ROWS, *_MORE), (1, 4), space)
        x, y = rng.uniform(-2, 2, (300, 200)), rng.uniform(0.5, 2, (1, 200))
        yield _sample("float32", (x, y), _ROWS, (2,), (300, 200))
        yield _sample("float32", (np.zeros((0, 3)), np.zeros(3)), _ROWS, (2,), (0, 3))


_ROWS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("broadcast_sub", (-1, -2)), ("sigmoid", (0,)), ("broadcast_mul", (1, 0)),
)  # fmt: skip
_MORE: tuple[tuple[str, tuple[int, ...]], ...] = (("relu", (2,)), ("broadcast_div", (3, -2)))
"""Types and references of the members of the sample groups."""


def _sample(
    dtype: str,
    inputs: tuple[Array, ...],
    rows: Sequence[tuple[str, tuple[int, ...]]],
    outputs: tuple[int, ...],
    space: Shape,
) -> Sample:
    result = tensor_type(space, as_dtype(dtype))
    members = [Member(type_, refs, {}, result) for type_, refs in rows]
    arrays = tuple(np.asarray(x).astype(result.dtype.numpy) for x in inputs)
    attrs = {"body": encode(members), "outputs": outputs}
    return Sample(arrays, attrs, gradient=False, fixed=tuple(range(len(arrays))))


OPS = specs(Fused)
