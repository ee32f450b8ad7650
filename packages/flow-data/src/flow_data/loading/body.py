"""The member ops of the op ``data_loader``, which are encoded as one attribute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from flow_core.authoring.backends import Block, Launch
from flow_core.authoring.specs import (
    REQUIRED,
    AttrValue,
    InferContext,
    OpSpec,
    TensorType,
    tensor_type,
)
from flow_core.base.dtypes import as_dtype
from flow_core.base.shapes import Shape

LOCAL_COPIES = ("slice", "copy")
"""The kinds of collectives that a loader executes itself: copies within a device."""

Slot = tuple[int, int]
"""An output of a member, given as the index of the member and the index of the output."""


@dataclass(frozen=True, slots=True)
class Member:
    """An op of a loader."""

    name: str
    # The name that the op's parts on all devices share, so that they draw the same numbers.
    logical: str
    type: str
    inputs: tuple[Slot, ...]  # outputs of earlier members
    attrs: Mapping[str, AttrValue]
    outputs: tuple[TensorType, ...]


def copies(member: Member, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Launch]:
    """Return the launches of a member that copies blocks of its inputs."""
    blocks = [Block(*row) for row in member.attrs["blocks"]]
    return [
        partial(
            np.copyto,
            outputs[b.target][_window(b.at, b.size)],
            inputs[b.source][_window(b.start, b.size)],
        )
        for b in blocks
    ]


def _window(start: Shape, size: Shape) -> tuple[slice, ...]:
    return tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))


def encode(members: Sequence[Member]) -> tuple[AttrValue, ...]:
    """Encode members as a literal, the attribute of a loader."""
    return tuple(
        (
            m.name,
            m.logical,
            m.type,
            m.inputs,
            tuple(m.attrs.items()),
            tuple((t.shape, t.dtype.name) for t in m.outputs),
        )
        for m in members
    )


def decode(body: Sequence[Any]) -> Iterator[Member]:
    """Yield the members that a literal encodes."""
    for name, logical, type_, inputs, attrs, outputs in body:
        types = tuple(tensor_type(tuple(shape), as_dtype(dtype)) for shape, dtype in outputs)
        yield Member(name, logical, type_, tuple(tuple(i) for i in inputs), dict(attrs), types)


def _infer(ctx: InferContext) -> tuple[TensorType, ...]:
    members = list(decode(ctx.attrs["body"]))
    return tuple(members[m].outputs[k] for m, k in ctx.attrs["outputs"])


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        type="data_loader",
        inputs=(),
        outputs=("out*",),
        infer=_infer,
        attrs={"body": REQUIRED, "outputs": REQUIRED},
        random=True,
        host=True,
        doc="Readers, decoders and image ops that prefetch batches; see `flow_data.loading`.",
    ),
)
