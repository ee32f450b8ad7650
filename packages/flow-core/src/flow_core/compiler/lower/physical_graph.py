"""The physical graph of a logical graph: one op per device, and boxing between devices.

Values of the physical graph have local shapes, and each op has one device, except for ``boxing``
ops, which read values of several devices and have an output on each device of their placement.
If a job runs on a single device, its logical graph is also its physical graph.

A fed array has one ``input`` op for each part that a device needs.  The op's attribute ``of`` is
the name of the logical input, and its attribute ``region`` is the part.  Each part is copied to its
device directly, without boxing.

Invariants: logical ops are expanded in order, so the physical graph is in topological order; every
pair of a value and a layout is boxed at most once; the local value on rank r of a layout is element
r of the tuple of local values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from flow_core.base.errors import SourceLine, located
from flow_core.compiler.lower.collectives import exchange_op
from flow_core.compiler.reshard.ledger import BoxingEntry, alternatives
from flow_core.compiler.reshard.planner import ReshardStep, TensorLayout, groups_of, is_in_place
from flow_core.compiler.reshard.plugin_steps import BoxingMethods
from flow_core.compiler.select import SELECTORS, NdSignature, Problem, Selection, Selector
from flow_core.compiler.select.costs import result_layout
from flow_core.compiler.select.problem import fed_as
from flow_core.compiler.select.report import Report
from flow_core.ir.graph import Attrs, Graph, Op, Origin, TensorType, Value, tensor_type
from flow_core.plugins.specs import LocalContext, Part, local_attrs
from flow_core.sharding.sbp import Region, region_shape
from flow_core.sharding.topology import LinkModel, Placement


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of a logical variable that a physical variable holds.

    Attributes:
        variable: name of the logical variable.
        region: the part, as a region of the logical variable.
    """

    variable: str
    region: Region


@dataclass(slots=True)
class Physical:
    """The physical graph, and its relation to the logical graph.

    All attributes except ``graph`` keep their defaults if the job runs on a single device.

    Attributes:
        graph: the physical graph.
        shards: the parts that physical variables hold, by the variables' names.
        ledger: all boxing, in order.
        layouts: the layouts of the logical values.
        signatures: the signatures of the logical ops.
        passed: maps each logical value that no physical op produces to the local values of which it
            consists.
        report: the report on the selection.
        problem: the selection problem.
    """

    graph: Graph
    shards: dict[str, Shard] = field(default_factory=dict)
    ledger: list[BoxingEntry] = field(default_factory=list)
    layouts: Mapping[Value, TensorLayout] = field(default_factory=dict)
    signatures: Mapping[str, NdSignature] = field(default_factory=dict)
    passed: dict[Value, tuple[Value, ...]] = field(default_factory=dict)
    report: Report | None = None
    problem: Problem | None = None


NO_PLUGINS = BoxingMethods()


def to_physical(
    problem: Problem, selector: str | Selector = "auto", methods: BoxingMethods = NO_PLUGINS
) -> Physical:
    """Select signatures for a logical graph, and expand the graph to its physical graph."""
    select = SELECTORS[selector] if isinstance(selector, str) else selector
    graph = problem.graph
    devices = {op.placement for op in graph.ops.values()}
    devices |= {problem.home(op) for op in graph.of_type("variable")}
    if len(devices) <= 1 and all(p.size == 1 for p in devices):
        return Physical(graph)
    return _Lowering(problem, graph, select(problem), problem.links, methods).run()


@dataclass(slots=True)
class _Lowering:
    """The state of one lowering, to which each logical op appends its physical ops.

    A `Rewriter` does not fit here because no op of the logical graph is kept: each op becomes ops
    with other names, types and placements, and values are looked up by layout.

    Attributes:
        ops, types, lines: the physical graph so far.
        local: maps (logical value, layout) to the local values, by rank.
        copies: maps each logical op to its physical ops, by rank.
        feeds: maps each logical input to the number of layouts in which it is fed.
        found: the result so far.
    """

    problem: Problem
    graph: Graph
    selection: Selection
    links: LinkModel
    methods: BoxingMethods
    ops: dict[str, Op] = field(default_factory=dict)
    types: dict[str, tuple[TensorType, ...]] = field(default_factory=dict)
    lines: dict[str, SourceLine] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    local: dict[tuple[Value, TensorLayout], tuple[Value, ...]] = field(default_factory=dict)
    copies: dict[str, tuple[str, ...]] = field(default_factory=dict)
    feeds: dict[str, int] = field(default_factory=dict)
    found: Physical = field(default_factory=lambda: Physical(Graph({}, {})))

    def run(self) -> Physical:
        for op in self.graph.ops.values():
            self._expand(op)
        results = tuple(self._result(v) for v in self.graph.results)
        effects = tuple(name for e in self.graph.effects for name in self.copies[e])
        self.found.layouts = self.selection.layouts
        self.found.signatures = self.selection.signatures
        self.found.report = self.selection.report
        self.found.problem = self.problem
        self.found.graph = Graph(self.ops, self.types, results, effects, self.lines, self.origins)
        return self.found

    def _result(self, value: Value) -> Value:
        layout = result_layout(self.selection.layouts[value].placement)
        return self._local(value, layout, None)[0]

    def _expand(self, op: Op) -> None:
        if op.type == "input":
            return  # the input is fed in the layouts of its readers: see `_fed`
        spec, chosen = self.problem.specs[op.type], self.selection.signatures[op.name]
        line = self.graph.lines.get(op.name)
        inputs = [
            self._local(v, TensorLayout(self.problem.reads(op, i), sbp), op)
            for i, (v, sbp) in enumerate(zip(op.inputs, chosen.inputs, strict=True))
        ]
        if spec.is_per_device(op.placement):
            self._regroup(op, [part for parts in inputs for part in parts])
            return
        placement = self.problem.home(op)
        layouts = [TensorLayout(placement, sbp) for sbp in chosen.outputs]
        origins = local_origins(self.graph, op.name, placement)
        names = self.copies[op.name] = tuple(map(str, origins))
        for rank, (name, origin) in enumerate(zip(names, origins, strict=True)):
            control = tuple(self._same_rank(c, rank) for c in op.control)
            local = replace(
                op,
                name=name,
                inputs=tuple(parts[rank] for parts in inputs),
                attrs=self._attrs(op, chosen, layouts, rank),
                placement=placement.only(rank),
                sbp=(),
                control=control,
            )
            self._add(local, self._types(op, layouts, rank), origin, line)
            self._remember_shard(op, name, layouts, rank)
        for index, layout in enumerate(layouts):
            self.local[Value(op.name, index), layout] = tuple(Value(n, index) for n in names)

    def _attrs(self, op: Op, chosen: NdSignature, outputs: list[TensorLayout], rank: int) -> Attrs:
        """Return the attributes of the part of an op that runs on the device of a rank."""
        if len(self.copies[op.name]) == 1:
            return op.attrs
        inputs = [TensorLayout(op.placement, sbp) for sbp in chosen.inputs]
        types = self.graph.input_types(op), self.graph.types[op.name]
        parts = [
            tuple(Part(t, at.region(t.shape, rank)) for t, at in zip(*row, strict=True))
            for row in zip(types, (inputs, outputs), strict=True)
        ]
        with located(self.graph.lines.get(op.name)):
            found = local_attrs(self.problem.specs[op.type], LocalContext(op.attrs, *parts))
        return found if isinstance(found, Attrs) else Attrs(found)

    def _regroup(self, op: Op, parts: list[Value]) -> None:
        """Use per-device values as the parts of a logical value, or vice versa, without an op."""
        outputs = [Value(op.name, i) for i in range(len(self.graph.types[op.name]))]
        split = zip(outputs, parts, strict=True) if len(outputs) > 1 else [(outputs[0], parts)]
        for value, held in split:
            local = tuple(held) if isinstance(held, list) else (held,)
            self.local[value, self.selection.layouts[value]] = local
            self.found.passed[value] = local
        self.copies[op.name] = tuple(part.op for part in parts)

    def _same_rank(self, name: str, rank: int) -> str:
        names = self.copies[name]
        return names[min(rank, len(names) - 1)]

    def _types(self, op: Op, layouts: list[TensorLayout], rank: int) -> tuple[TensorType, ...]:
        return tuple(
            tensor_type(region_shape(layout.region(t.shape, rank)), t.dtype)
            for t, layout in zip(self.graph.types[op.name], layouts, strict=True)
        )

    def _remember_shard(self, op: Op, name: str, layouts: list[TensorLayout], rank: int) -> None:
        if op.type == "variable":
            shape = self.graph.types[op.name][0].shape
            self.found.shards[name] = Shard(op.name, layouts[0].region(shape, rank))

    def _add(
        self, op: Op, types: tuple[TensorType, ...], origin: Origin, line: SourceLine | None
    ) -> None:
        self.ops[op.name] = op
        self.types[op.name] = types
        self.origins[op.name] = origin
        if line is not None:
            self.lines[op.name] = line

    def _local(self, value: Value, layout: TensorLayout, reader: Op | None) -> tuple[Value, ...]:
        """Return the local values of a logical value in a layout, and box the value on first use.

        Args:
            value: the logical value.
            layout: the layout.
            reader: the logical op that requires the layout; None for a result of the job.
        """
        known = self.local.get((value, layout))
        if known is None:
            known = self._box(value, layout, reader)
            self.local[value, layout] = known
        return known

    def _box(self, value: Value, layout: TensorLayout, reader: Op | None) -> tuple[Value, ...]:
        type_ = self.graph.type_of(value)
        is_fed = self.graph.ops[value.op].type == "input"
        source = self._fed(value, layout) if is_fed else self.selection.layouts[value]
        values = self.local[value, source]
        size = type_.dtype.itemsize
        reshard_steps = self.methods.reshard_steps(type_, source, layout, self.links)
        others = tuple(alternatives(reshard_steps, type_.shape, size, source, layout, self.links))
        for number, step in enumerate(reshard_steps, 1):
            resharded = self.local.get((value, step.target))
            if resharded is None:
                entry = self._entry(value, step, source, layout, reader)
                entry = replace(entry, step=number, steps=len(reshard_steps), runners_up=others)
                resharded = self._reshard(value, type_, step, values, entry)
            values = self.local[value, step.target] = resharded
        return values

    def _entry(
        self,
        value: Value,
        step: ReshardStep,
        source: TensorLayout,
        layout: TensorLayout,
        reader: Op | None,
    ) -> BoxingEntry:
        size = self.graph.type_of(value).dtype.itemsize
        line = self.graph.lines.get(reader.name if reader else value.op)
        return BoxingEntry(
            str(value),
            step.name,
            str(step.source),
            str(step.target),
            step.elements() * size,
            step.seconds(size, self.links),
            str(line or ""),
            reader.name if reader else "",
            self._why(value, source, layout, reader),
        )

    def _why(
        self, value: Value, source: TensorLayout, layout: TensorLayout, reader: Op | None
    ) -> str:
        maker = self.graph.ops[value.op]
        made = f"{maker.type} {maker.name!r} produces {source}"
        if reader is None:
            return f"{made}; the job returns it whole"
        wanted = zip(reader.inputs, self.selection.signatures[reader.name].inputs, strict=True)
        index = list(wanted).index((value, layout.sbp))
        return f"{made}; {reader.type} {reader.name!r} requires {layout} as input {index}"

    def _fed(self, value: Value, layout: TensorLayout) -> TensorLayout:
        """Feed an array directly to devices of a layout, and return the layout of the feed."""
        source = fed_as(layout) or self.selection.layouts[value]
        if (value, source) not in self.local:
            number = self.feeds.get(value.op, 0)
            self.feeds[value.op] = number + 1
            suffix = f".{number}" if number else ""
            origins = local_origins(self.graph, value.op, source.placement)
            parts = [
                self._fed_part(value, source, rank, origin, suffix)
                for rank, origin in enumerate(origins)
            ]
            self.local[value, source] = tuple(parts)
        return source

    def _fed_part(
        self, value: Value, layout: TensorLayout, rank: int, origin: Origin, suffix: str
    ) -> Value:
        op, type_ = self.graph.ops[value.op], self.graph.type_of(value)
        region, attrs = layout.region(type_.shape, rank), op.attrs
        name = str(origin)
        if name != op.name:
            name += suffix
            attrs = attrs.with_(shape=region_shape(region), of=op.name, region=region)
        local = replace(op, name=name, attrs=attrs, placement=layout.placement.only(rank))
        types = (tensor_type(region_shape(region), type_.dtype),)
        self._add(local, types, origin, self.graph.lines.get(op.name))
        return local.output()

    def _reshard(
        self,
        value: Value,
        type_: TensorType,
        step: ReshardStep,
        values: tuple[Value, ...],
        entry: BoxingEntry,
    ) -> tuple[Value, ...]:
        """Return the local values after a reshard step: each is unchanged or from an exchange."""
        local: dict[int, Value] = {
            rank: values[pieces[0].source]
            for rank, pieces in enumerate(step.pieces)
            if is_in_place(step, rank)
        }
        names = []
        groups = groups_of(step)
        for number, group in enumerate(groups):
            last = f".{number}" if len(groups) > 1 else ""
            op, types = exchange_op(step, group, type_, values)
            op = replace(op, name=f"{value.op}/box{len(self.found.ledger) + 1}{last}")
            origin = self.graph.origin(value.op)
            self._add(op, types, origin, self.graph.lines.get(entry.op or value.op))
            names.append(op.name)
            local.update({rank: op.output(i) for i, rank in enumerate(group.targets)})
        self.found.ledger.append(replace(entry, exchanges=tuple(names)))
        return tuple(local[rank] for rank in range(step.target.placement.size))


def local_origins(graph: Graph, name: str, placement: Placement) -> tuple[Origin, ...]:
    """Return the origins of a logical op's parts, by rank; their text is the parts' names."""
    origin = graph.origin(name)
    if placement.size == 1:
        return (origin,)
    return tuple([origin._replace(rank=rank) for rank in range(placement.size)])
