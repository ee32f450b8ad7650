"""SBP signature selection: how each op's inputs and outputs lie on its devices.

`greedy` goes through the ops in order, as OneFlow does, and takes for each the signature whose
inputs are cheapest to bring there; ties go to the one with fewer inputs to move, then with
fewer partial results, then to the one listed first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from flow_core.compiler.boxing import Layout, boxing_seconds
from flow_core.errors import GraphError
from flow_core.ir import AttrValue, Graph, Op, TensorType, Value, tensor_type
from flow_core.plugins.specs import LocalContext, OpSpec, Part, SbpContext, local_attrs
from flow_core.sbp import (
    EXTREMES,
    B,
    Broadcast,
    NdSbp,
    Partial,
    Sbp,
    Signature,
    Split,
    format_nd_sbp,
)
from flow_core.shapes import Shape, balanced_split
from flow_core.topology import LinkModel, Placement


@dataclass(frozen=True, slots=True)
class NdSignature:
    """One signature over all hierarchy dimensions: an n-D SBP per input and output."""

    inputs: tuple[NdSbp, ...]
    outputs: tuple[NdSbp, ...]

    def __str__(self) -> str:
        outs = ", ".join(map(format_nd_sbp, self.outputs))
        return f"({', '.join(map(format_nd_sbp, self.inputs))}) -> {outs}"


@dataclass(slots=True)
class Selection:
    """The chosen signatures and the layouts that follow from them.

    Attributes:
        signatures: by op.
        layouts: by value.
    """

    signatures: dict[str, NdSignature] = field(default_factory=dict)
    layouts: dict[Value, Layout] = field(default_factory=dict)


def first_device(placement: Placement) -> Placement:
    """The placement of a placement's first device alone."""
    return Placement(placement.device_type, placement.devices[:1])


def greedy(graph: Graph, specs: Mapping[str, OpSpec], links: LinkModel) -> Selection:
    """Signatures for all ops, each chosen when its inputs' layouts are known."""
    selection = Selection()
    for op in graph.ops.values():
        chosen = _choose(graph, op, specs[op.type], selection, links)
        selection.signatures[op.name] = chosen
        placement = first_device(op.placement) if op.type == "input" else op.placement
        for index, sbp in enumerate(chosen.outputs):
            selection.layouts[Value(op.name, index)] = Layout(placement, sbp)
    return selection


def _arrival(graph: Graph, value: Value, selection: Selection, placement: Placement) -> Layout:
    """The layout in which a value counts as being there.

    A fed value is split on its batch axis over the first hierarchy dimension, where it is long
    enough, on its way to the devices.
    """
    source = graph.ops[value.op]
    if source.type != "input":
        return selection.layouts[value]
    axis, parts = source.attrs["batch_axis"], placement.hierarchy[0]
    shape = graph.type_of(value).shape
    splits = axis is not None and axis < len(shape) and shape[axis] >= parts > 1
    rest = (B,) * (len(placement.hierarchy) - 1)
    return Layout(placement, (Split(axis) if splits else B, *rest))


def _choose(
    graph: Graph, op: Op, spec: OpSpec, selection: Selection, links: LinkModel
) -> NdSignature:
    if op.type == "input":
        return NdSignature((), ((B,),))
    candidates = list(signatures(graph, op, spec))
    fitting = [c for c in candidates if _fits(op, spec, c, selection)]
    if not fitting:
        raise _no_signature(graph, op, candidates, selection)
    if op.type == "variable" and not op.sbp:
        return next(c for c in fitting if _all_broadcast(c))
    layouts = [_arrival(graph, v, selection, op.placement) for v in op.inputs]
    types = graph.input_types(op)
    fitting = [c for c in fitting if _keeps_extremes(layouts, c)]

    def cost(c: NdSignature) -> tuple[float, int, int]:
        wanted = [Layout(op.placement, sbp) for sbp in c.inputs]
        seconds = sum(
            boxing_seconds(t.shape, t.dtype.itemsize, layout, target, links)
            for t, layout, target in zip(types, layouts, wanted, strict=True)
        )
        moved = sum(a != b for a, b in zip(layouts, wanted, strict=True))
        return seconds, moved, sum(isinstance(s, Partial) for nd in c.outputs for s in nd)

    if all(_replicated(layout) for layout in layouts):
        fitting.sort(key=lambda c: not _all_broadcast(c))
    return min(fitting, key=cost)


def _keeps_extremes(layouts: Sequence[Layout], candidate: NdSignature) -> bool:
    """Whether maxima and minima of parts are asked for only where there are some.

    Nothing is gained by making them of what is whole.
    """
    return all(
        wanted not in EXTREMES or layout.sbp[d : d + 1] == (wanted,)
        for layout, nd in zip(layouts, candidate.inputs, strict=True)
        for d, wanted in enumerate(nd)
    )


def _replicated(layout: Layout) -> bool:
    return layout.placement.size > 1 and all(isinstance(s, Broadcast) for s in layout.sbp)


def _all_broadcast(c: NdSignature) -> bool:
    return all(isinstance(s, Broadcast) for nd in (*c.inputs, *c.outputs) for s in nd)


def _fits(op: Op, spec: OpSpec, candidate: NdSignature, selection: Selection) -> bool:
    """Whether requests are met, and variables that the op overwrites stay where they are."""
    wanted = zip(op.sbp, candidate.outputs, strict=False)
    if any(request is not None and request != nd for request, nd in wanted):
        return False
    return all(
        selection.layouts[op.inputs[i]] == Layout(op.placement, candidate.inputs[i])
        for i in spec.mutates
        if i < len(op.inputs)
    )


def _no_signature(
    graph: Graph, op: Op, candidates: Sequence[NdSignature], selection: Selection
) -> GraphError:
    inputs = ", ".join(f"{v}: {selection.layouts[v]}" for v in op.inputs) or "none"
    wanted = ", ".join("any" if s is None else format_nd_sbp(s) for s in op.sbp) or "any"
    listed = "\n           ".join(map(str, candidates))
    return GraphError(
        f"choosing an SBP signature for {op.type} {op.name!r}",
        at=graph.lines.get(op.name),
        found=f"inputs {inputs}; requested outputs {wanted}",
        allowed=listed,
        hint="drop or change the requested distribution",
    )


def signatures(graph: Graph, op: Op, spec: OpSpec) -> Iterator[NdSignature]:
    """All signatures of an op over the hierarchy of its placement.

    The rules of one dimension are applied dimension by dimension, each to the shapes that the
    dimensions before it have left.
    """
    inputs, outputs = graph.input_types(op), graph.types[op.name]
    seen: dict[NdSignature, None] = {}
    # what is asked for may leave devices without elements; nobody would choose that
    hollow = bool(op.sbp or spec.mutates)
    for chain in _chains(spec, op.attrs, inputs, outputs, op.placement.hierarchy, hollow):
        found = _transposed(chain, len(inputs), len(outputs))
        if not any(map(_mixes, (*found.inputs, *found.outputs))):
            seen[found] = None
    yield from seen


def _mixes(nd: NdSbp) -> bool:
    """Whether a tensor is partial in two ways: a maximum of minima, which nothing puts together."""
    return len({s.op for s in nd if isinstance(s, Partial)}) > 1


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
    broadcast = Signature((B,) * len(inputs), (B,) * len(outputs))
    for rule in (*spec.sbp(SbpContext(inputs, outputs, attrs, parts)), broadcast):
        fits = _divides(rule.inputs, inputs, parts) and _divides(rule.outputs, outputs, parts)
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
    """The attributes of the first device's part, which starts at 0 on every axis."""
    ins, outs = (
        tuple(Part(t, tuple((0, n) for n in own.shape)) for t, own in zip(*rows, strict=True))
        for rows in ((inputs, local_in), (outputs, local_out))
    )
    return local_attrs(spec, LocalContext(attrs, ins, outs))


def _divides(sbps: Sequence[Sbp], types: Sequence[TensorType], parts: int) -> bool:
    """Whether every device gets something of each split axis."""
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
    return (*shape[:axis], balanced_split(shape[axis], parts)[0], *shape[axis + 1 :])
