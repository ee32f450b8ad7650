"""From the logical graph to the physical one: an op per device, and boxing between them.

The physical graph is a graph like any other: each op has one device, values have local shapes,
and every transfer is a ``boxing`` op.  A job on a single device is its own physical graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from flow_core.compiler.boxing import Hop, Layout, Piece, plan_boxing
from flow_core.compiler.select import (
    NdSignature,
    Selection,
    first_device,
    greedy,
    output_placement,
)
from flow_core.errors import SourceLine
from flow_core.ir import Attrs, Graph, Op, TensorType, Value, tensor_type
from flow_core.plugins.specs import LocalContext, OpSpec, Part, local_attrs
from flow_core.sbp import B, Region, region_shape
from flow_core.shapes import num_elements
from flow_core.topology import LinkModel, Placement


@dataclass(frozen=True, slots=True)
class BoxingEntry:
    """A line of the plan ledger: one hop of one value.

    Attributes:
        value: the logical value.
        hop: name of the hop.
        source, target: text forms of the layouts.
        nbytes: bytes that cross devices, per step.
        seconds: predicted time.
        line: the user's line of the op that needs it.
    """

    value: str
    hop: str
    source: str
    target: str
    nbytes: int
    seconds: float
    line: str


@dataclass(frozen=True, slots=True)
class Shard:
    """What a physical variable holds of a logical one.

    Attributes:
        variable: name of the logical variable.
        region: the part that it holds.
    """

    variable: str
    region: Region


@dataclass(slots=True)
class Physical:
    """The physical graph and what is known about it.

    Attributes:
        graph: an op per device.
        origins: logical op of each physical one.
        shards: what physical variables hold.
        ledger: all boxing, in order.
        layouts: of the logical values, when there are several devices.
        signatures: of the logical ops, when there are several devices.
        passed: values that no op of their own makes: whose values they are.
    """

    graph: Graph
    origins: dict[str, str] = field(default_factory=dict)
    shards: dict[str, Shard] = field(default_factory=dict)
    ledger: list[BoxingEntry] = field(default_factory=list)
    layouts: Mapping[Value, Layout] = field(default_factory=dict)
    signatures: Mapping[str, NdSignature] = field(default_factory=dict)
    passed: dict[Value, tuple[Value, ...]] = field(default_factory=dict)


def to_physical(graph: Graph, specs: Mapping[str, OpSpec], links: LinkModel) -> Physical:
    """The physical graph of a logical one, signatures chosen greedily."""
    devices = {op.placement for op in graph.ops.values()}
    if len(devices) <= 1 and all(p.size == 1 for p in devices):
        return Physical(graph)
    return _Expansion(graph, specs, greedy(graph, specs, links), links).run()


@dataclass(slots=True)
class _Expansion:
    """The state of one expansion."""

    graph: Graph
    specs: Mapping[str, OpSpec]
    selection: Selection
    links: LinkModel
    ops: dict[str, Op] = field(default_factory=dict)
    types: dict[str, tuple[TensorType, ...]] = field(default_factory=dict)
    lines: dict[str, SourceLine] = field(default_factory=dict)
    local: dict[tuple[Value, Layout], tuple[Value, ...]] = field(default_factory=dict)
    copies: dict[str, tuple[str, ...]] = field(default_factory=dict)
    found: Physical = field(default_factory=lambda: Physical(Graph({}, {})))

    def run(self) -> Physical:
        for op in self.graph.ops.values():
            self._expand(op)
        results = tuple(self._result(v) for v in self.graph.results)
        effects = tuple(name for e in self.graph.effects for name in self.copies[e])
        self.found.layouts = self.selection.layouts
        self.found.signatures = self.selection.signatures
        self.found.graph = Graph(self.ops, self.types, results, effects, self.lines)
        return self.found

    def _result(self, value: Value) -> Value:
        placement = first_device(self.selection.layouts[value].placement)
        return self._in(value, Layout(placement, (B,)), self.graph.lines.get(value.op))[0]

    def _expand(self, op: Op) -> None:
        spec, chosen = self.specs[op.type], self.selection.signatures[op.name]
        line = self.graph.lines.get(op.name)
        inputs = [
            self._in(v, Layout(spec.input_placement(op.placement, i), sbp), line)
            for i, (v, sbp) in enumerate(zip(op.inputs, chosen.inputs, strict=True))
        ]
        if spec.spreads(op.placement):
            self._pass_on(op, [part for parts in inputs for part in parts])
            return
        placement = output_placement(op, spec, 0)
        layouts = [Layout(placement, sbp) for sbp in chosen.outputs]
        names = tuple(self._name(op.name, placement, r) for r in range(placement.size))
        self.copies[op.name] = names
        for rank, name in enumerate(names):
            control = tuple(self._same_rank(c, rank) for c in op.control)
            local = replace(
                op,
                name=name,
                inputs=tuple(parts[rank] for parts in inputs),
                attrs=self._attrs(op, chosen, layouts, rank),
                placement=_device(placement, rank),
                sbp=(),
                control=control,
            )
            self._add(local, self._types(op, layouts, rank), op.name, line)
            self._remember_shard(op, name, layouts, rank)
        for index, layout in enumerate(layouts):
            self.local[Value(op.name, index), layout] = tuple(Value(n, index) for n in names)

    def _attrs(self, op: Op, chosen: NdSignature, outputs: list[Layout], rank: int) -> Attrs:
        """The attributes of a device's part of an op."""
        if len(self.copies[op.name]) == 1:
            return op.attrs
        inputs = [Layout(op.placement, sbp) for sbp in chosen.inputs]
        types = self.graph.input_types(op), self.graph.types[op.name]
        parts = [
            tuple(Part(t, at.region(t.shape, rank)) for t, at in zip(*row, strict=True))
            for row in zip(types, (inputs, outputs), strict=True)
        ]
        return Attrs(local_attrs(self.specs[op.type], LocalContext(op.attrs, *parts)))

    def _pass_on(self, op: Op, parts: list[Value]) -> None:
        """Values per device are the parts of a logical value: no op is needed."""
        outputs = [Value(op.name, i) for i in range(len(self.graph.types[op.name]))]
        split = zip(outputs, parts, strict=True) if len(outputs) > 1 else [(outputs[0], parts)]
        for value, held in split:
            local = tuple(held) if isinstance(held, list) else (held,)
            self.local[value, self.selection.layouts[value]] = local
            self.found.passed[value] = local
        self.copies[op.name] = tuple(part.op for part in parts)

    def _name(self, name: str, placement: Placement, rank: int) -> str:
        return name if placement.size == 1 else f"{name}@{rank}"

    def _same_rank(self, name: str, rank: int) -> str:
        names = self.copies[name]
        return names[min(rank, len(names) - 1)]

    def _types(self, op: Op, layouts: list[Layout], rank: int) -> tuple[TensorType, ...]:
        return tuple(
            tensor_type(region_shape(layout.region(t.shape, rank)), t.dtype)
            for t, layout in zip(self.graph.types[op.name], layouts, strict=True)
        )

    def _remember_shard(self, op: Op, name: str, layouts: list[Layout], rank: int) -> None:
        if op.type == "variable":
            shape = self.graph.types[op.name][0].shape
            self.found.shards[name] = Shard(op.name, layouts[0].region(shape, rank))

    def _add(
        self, op: Op, types: tuple[TensorType, ...], origin: str, line: SourceLine | None
    ) -> None:
        self.ops[op.name] = op
        self.types[op.name] = types
        self.found.origins[op.name] = origin
        if line is not None:
            self.lines[op.name] = line

    def _in(self, value: Value, layout: Layout, line: SourceLine | None) -> tuple[Value, ...]:
        """The local values of a logical one in some layout, boxed there when needed."""
        known = self.local.get((value, layout))
        if known is None:
            known = self._box(value, layout, line)
            self.local[value, layout] = known
        return known

    def _box(self, value: Value, layout: Layout, line: SourceLine | None) -> tuple[Value, ...]:
        type_ = self.graph.type_of(value)
        source = self.selection.layouts[value]
        values = self.local[value, source]
        hops = plan_boxing(type_.shape, type_.dtype.itemsize, source, layout, self.links)
        for hop in hops:
            again = self.local.get((value, hop.target))
            values = again or self._hop(value, type_, hop, values, line)
            self.local[value, hop.target] = values
        return values

    def _hop(
        self,
        value: Value,
        type_: TensorType,
        hop: Hop,
        values: tuple[Value, ...],
        line: SourceLine | None,
    ) -> tuple[Value, ...]:
        self.found.ledger.append(
            BoxingEntry(
                str(value),
                hop.name,
                str(hop.source),
                str(hop.target),
                hop.elements() * type_.dtype.itemsize,
                hop.seconds(type_.dtype.itemsize, self.links),
                str(line or ""),
            )
        )
        number = len(self.found.ledger)
        return tuple(
            self._part(value, type_, hop, values, rank, f"{value.op}/box{number}", line)
            for rank in range(hop.target.placement.size)
        )

    def _part(
        self,
        value: Value,
        type_: TensorType,
        hop: Hop,
        values: tuple[Value, ...],
        rank: int,
        prefix: str,
        line: SourceLine | None,
    ) -> Value:
        """One device's part after a hop: a value that is there already, or a boxing op."""
        pieces = hop.pieces[rank]
        region = hop.target.region(type_.shape, rank)
        device = _device(hop.target.placement, rank)
        if len(pieces) == 1 and self._is_there(hop, pieces[0], region, device, type_):
            return values[pieces[0].source]
        sources = tuple(dict.fromkeys(values[p.source] for p in pieces))
        attrs = {
            "shape": region_shape(region),
            "dtype": type_.dtype.name,
            "pieces": tuple(
                _box_literal(hop, p, sources.index(values[p.source]), region, type_) for p in pieces
            ),
            "zero": not _covers(pieces, region),
            "combine": hop.combine,
        }
        name = self._name(prefix, hop.target.placement, rank)
        op = Op(name, "boxing", sources, Attrs(attrs), device)
        self._add(op, (tensor_type(region_shape(region), type_.dtype),), value.op, line)
        return op.output()

    def _is_there(
        self, hop: Hop, piece: Piece, region: Region, device: Placement, type_: TensorType
    ) -> bool:
        held = hop.source.region(type_.shape, piece.source)
        same = _device(hop.source.placement, piece.source) == device
        return same and piece.region == region == held


def _device(placement: Placement, rank: int) -> Placement:
    return placement.only(rank)


def _covers(pieces: tuple[Piece, ...], region: Region) -> bool:
    """Whether the copied boxes, which do not overlap, fill the region."""
    filled = sum(num_elements(region_shape(p.region)) for p in pieces if p.first)
    return filled == num_elements(region_shape(region))


def _box_literal(
    hop: Hop, piece: Piece, source: int, region: Region, type_: TensorType
) -> tuple[object, ...]:
    held = hop.source.region(type_.shape, piece.source)
    start = tuple(a - low for (a, _), (low, _) in zip(piece.region, held, strict=True))
    target = tuple(a - low for (a, _), (low, _) in zip(piece.region, region, strict=True))
    return (source, start, target, region_shape(piece.region), piece.first)
