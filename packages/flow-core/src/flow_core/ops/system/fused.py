"""Groups of elementwise ops that a backend compiles as one kernel.

The body is a nested literal: one ``(type, references, attributes)`` per member, where reference
``-1 - k`` is the group's input k and reference m >= 0 the result of member m.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype
from flow_core.ir.graph import AttrValue, TensorType, tensor_type
from flow_core.ops.rules import broadcast_sbp
from flow_core.plugins.specs import REQUIRED, InferContext, OpSpec


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


def _infer(ctx: InferContext) -> tuple[TensorType, ...]:
    results = [tensor_type(row[3], as_dtype(row[4])) for row in ctx.attrs["body"]]
    return tuple(results[i] for i in ctx.attrs["outputs"])


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        type="fused",
        inputs=("x*",),
        outputs=("out*",),
        infer=_infer,
        attrs={"body": REQUIRED, "outputs": REQUIRED},
        sbp=broadcast_sbp,
        doc="Elementwise ops in one launch; see `flow_core.ops.system.fused`.",
    ),
)
