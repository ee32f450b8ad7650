"""The SBP signatures of an op on its placement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flow_core.base.errors import located
from flow_core.base.shapes import Shape
from flow_core.ir.graph import AttrValue, Graph, Op, TensorType, tensor_type
from flow_core.plugins.specs import LocalContext, OpSpec, Part, SbpContext, local_attrs
from flow_core.sharding.hashing import HashedOnce
from flow_core.sharding.sbp import (
    EXTREMES,
    B,
    Broadcast,
    NdSbp,
    Partial,
    Sbp,
    Signature,
    Split,
    format_nd_sbp,
    parse_nd_sbp,
)
from flow_core.sharding.topology import Placement


@dataclass(frozen=True, slots=True)
class NdSignature(HashedOnce):
    """One signature over all hierarchy dimensions: an n-D SBP for each input and output."""

    inputs: tuple[NdSbp, ...]
    outputs: tuple[NdSbp, ...]
    __hash__ = HashedOnce.__hash__

    def __str__(self) -> str:
        outs = ", ".join(map(format_nd_sbp, self.outputs))
        return f"({', '.join(map(format_nd_sbp, self.inputs))}) -> {outs}"


def first_device(placement: Placement) -> Placement:
    """Return a placement that consists of the first device of a placement."""
    return Placement(placement.device_type, placement.devices[:1])


def all_broadcast(candidate: NdSignature) -> bool:
    """Return whether every device computes the whole op."""
    both = (*candidate.inputs, *candidate.outputs)
    return all(isinstance(s, Broadcast) for nd in both for s in nd)


def shares_work(candidate: NdSignature, hierarchy: Sequence[int]) -> bool:
    """Return whether the op's work is divided along each hierarchy dimension of several devices."""
    both = (*candidate.inputs, *candidate.outputs)
    return all(
        parts == 1 or any(isinstance(nd[d], Split) for nd in both)
        for d, parts in enumerate(hierarchy)
    )


def signatures(
    graph: Graph,
    op: Op,
    spec: OpSpec,
    hierarchy: Sequence[int] | None = None,
    *,
    hollow: bool = False,
) -> Iterator[NdSignature]:
    """Yield all signatures of an op over a hierarchy of devices; None means its placement's.

    The op's rules apply to one dimension after another, in each dimension to the local shapes that
    result from the dimensions before it.  With ``hollow``, signatures that leave devices without
    elements are included.
    """
    inputs, outputs = graph.input_types(op), graph.types[op.name]
    if spec.is_per_device(op.placement):
        yield _between_views(op, spec, len(inputs), len(outputs))
        return
    unique: dict[NdSignature, None] = {}
    dims = hierarchy or op.placement.hierarchy
    with located(graph.lines.get(op.name)):
        for chain in _chains(spec, op.attrs, inputs, outputs, dims, hollow):
            found = _transposed(chain, len(inputs), len(outputs))
            if not any(map(_mixes, (*found.inputs, *found.outputs))):
                unique[found] = None
    yield from unique


def _between_views(op: Op, spec: OpSpec, n_in: int, n_out: int) -> NdSignature:
    """Return the signature of an op that converts between a logical value and per-device values."""
    logical, single = parse_nd_sbp(op.attrs["sbp"]), (B,)
    if spec.per_device == "inputs":
        return NdSignature((single,) * n_in, (logical,))
    return NdSignature((logical,), (single,) * n_out)


def _mixes(nd: NdSbp) -> bool:
    """Return whether a tensor is partial with two operations, such as a maximum of minima.

    No boxing can combine such a tensor.
    """
    return len({s.op for s in nd if isinstance(s, Partial)}) > 1


def makes_extremes(graph: Graph, op: Op, spec: OpSpec) -> bool:
    """Return whether an op may produce partial maxima or minima from inputs that are neither."""
    context = SbpContext(graph.input_types(op), graph.types[op.name], op.attrs)
    with located(graph.lines.get(op.name)):
        return any(
            set(EXTREMES) & {*rule.outputs} and not set(EXTREMES) & {*rule.inputs}
            for rule in spec.sbp(context)
        )


def has_extremes(candidate: NdSignature) -> bool:
    """Return whether an input or output in a signature is a partial maximum or minimum."""
    both = (*candidate.inputs, *candidate.outputs)
    return any(s in EXTREMES for nd in both for s in nd)


def too_short(
    graph: Graph, op: Op, spec: OpSpec, hierarchy: Sequence[int]
) -> Iterator[tuple[NdSignature, str]]:
    """Yield the signatures for which an axis is too short, one for each rule, and the reasons."""
    inputs, outputs = graph.input_types(op), graph.types[op.name]
    parts = max(hierarchy)
    for rule in _rules(spec, SbpContext(inputs, outputs, op.attrs, parts)):
        sides = (("input", rule.inputs, inputs), ("output", rule.outputs, outputs))
        short = [
            f"axis {s.axis} of {side} {i} has {t.shape[s.axis]} elements for {parts} devices"
            for side, sbps, types in sides
            for i, (s, t) in enumerate(zip(sbps, types, strict=True))
            if isinstance(s, Split) and t.shape[s.axis] < parts
        ]
        if short:
            chain = (rule,) * len(hierarchy)
            yield _transposed(chain, len(inputs), len(outputs)), "; ".join(short)


def _rules(spec: OpSpec, ctx: SbpContext) -> tuple[Signature, ...]:
    """Return the rules for one dimension, including all-broadcast, which is always valid."""
    return (*spec.sbp(ctx), Signature((B,) * len(ctx.inputs), (B,) * len(ctx.outputs)))


def _transposed(chain: Sequence[Signature], n_in: int, n_out: int) -> NdSignature:
    return NdSignature(
        tuple(tuple(s.inputs[i] for s in chain) for i in range(n_in)),
        tuple(tuple(s.outputs[i] for s in chain) for i in range(n_out)),
    )


def _chains(
    spec: OpSpec,
    attrs: Mapping[str, AttrValue],
    inputs: tuple[TensorType, ...],
    outputs: tuple[TensorType, ...],
    hierarchy: Sequence[int],
    hollow: bool,
) -> Iterator[tuple[Signature, ...]]:
    if not hierarchy:
        yield ()
        return
    parts, rest = hierarchy[0], hierarchy[1:]
    for rule in _rules(spec, SbpContext(inputs, outputs, attrs, parts)):
        fits = divides(rule.inputs, inputs, parts) and divides(rule.outputs, outputs, parts)
        if fits or hollow:
            local_in, local_out = (
                _local(rule.inputs, inputs, parts),
                _local(rule.outputs, outputs, parts),
            )
            local = _first_attrs(spec, attrs, inputs, outputs, local_in, local_out) if rest else {}
            for more in _chains(spec, local, local_in, local_out, rest, hollow):
                yield (rule, *more)


def _first_attrs(
    spec: OpSpec,
    attrs: Mapping[str, AttrValue],
    inputs: Sequence[TensorType],
    outputs: Sequence[TensorType],
    local_in: Sequence[TensorType],
    local_out: Sequence[TensorType],
) -> Mapping[str, AttrValue]:
    """Return the attributes of the first device's part, which starts at 0 on every axis."""
    ins, outs = (
        tuple(Part(t, tuple((0, n) for n in own.shape)) for t, own in zip(*rows, strict=True))
        for rows in ((inputs, local_in), (outputs, local_out))
    )
    return local_attrs(spec, LocalContext(attrs, ins, outs))


def divides(sbps: Sequence[Sbp], types: Sequence[TensorType], parts: int) -> bool:
    """Return whether every device gets at least one element of each split axis."""
    return all(
        not isinstance(s, Split) or t.shape[s.axis] >= parts
        for s, t in zip(sbps, types, strict=True)
    )


def _local(sbps: Sequence[Sbp], types: Sequence[TensorType], parts: int) -> tuple[TensorType, ...]:
    return tuple(
        tensor_type(_shard(t.shape, s.axis, parts), t.dtype) if isinstance(s, Split) else t
        for s, t in zip(sbps, types, strict=True)
    )


def _shard(shape: Shape, axis: int, parts: int) -> Shape:
    return (*shape[:axis], -(-shape[axis] // parts), *shape[axis + 1 :])
