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

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flow_core.base.errors import SourceLine, located
from flow_core.compiler.distribute.collectives import exchange_op
from flow_core.compiler.distribute.device_classes import Classes, Layouts
from flow_core.compiler.reshard.groups import Groups
from flow_core.compiler.reshard.ledger import BoxingEntry, alternatives
from flow_core.compiler.reshard.planner import ReshardStep, TensorLayout
from flow_core.compiler.reshard.plugin_steps import BoxingMethods
from flow_core.compiler.reshard.steps import groups_of
from flow_core.compiler.select import SELECTORS, NdSignature, Problem, Selection, Selector
from flow_core.compiler.select.costs import result_layout
from flow_core.compiler.select.grids import on_grid
from flow_core.compiler.select.problem import fed_as
from flow_core.compiler.select.report import Report
from flow_core.costs.links import LinkModel
from flow_core.ir.graph import Attrs, Graph, Op, Origin, TensorType, Value, tensor_type
from flow_core.plugins.specs import LocalContext, Part, local_attrs
from flow_core.sharding.sbp import Region, region_shape
from flow_core.sharding.topology import Device, Placement

Locals = dict[int, Value]
"""The local values of a layout, by rank, in the order of the ranks."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of a logical variable that a physical variable holds."""

    variable: str  # name of the logical variable
    region: Region  # the part, as a region of the logical variable


@dataclass(slots=True)
class Physical:
    """The physical graph, and its relation to the logical graph.

    All attributes except ``graph`` keep their defaults if the job runs on a single device.
    """

    graph: Graph
    shards: dict[str, Shard] = field(default_factory=dict)  # by physical variable
    ledger: list[BoxingEntry] = field(default_factory=list)  # all boxing, in order
    layouts: Mapping[Value, TensorLayout] = field(default_factory=dict)  # of logical values
    signatures: Mapping[str, NdSignature] = field(default_factory=dict)  # of logical ops
    # Maps each logical value that no physical op produces to the local values of which it consists.
    passed: dict[Value, tuple[Value, ...]] = field(default_factory=dict)
    report: Report | None = None  # on the selection
    problem: Problem | None = None
    classes: Classes = ()  # the classes of devices; empty if they were not asked for
    kept: frozenset[Device] = frozenset()  # the devices that have ops, if there are classes

    @property
    def is_part(self) -> bool:
        """Whether the graph has no ops for some devices."""
        return len(self.kept) < sum(map(len, self.classes))


NO_PLUGINS = BoxingMethods()


def to_physical(
    problem: Problem,
    selector: str | Selector = "auto",
    methods: BoxingMethods = NO_PLUGINS,
    # The devices that the physical graph has ops for, in addition to the devices that stand for
    # their classes (`flow_core.compiler.distribute.device_classes`); None for all.
    devices: Collection[Device] | None = None,
) -> Physical:
    """Select signatures for a logical graph, and expand the graph to its physical graph."""
    select = SELECTORS[selector] if isinstance(selector, str) else selector
    graph = problem.graph
    placements = {op.placement for op in graph.ops.values()}
    placements |= {problem.home(op) for op in graph.of_type("variable")}
    if len(placements) <= 1 and all(p.size == 1 for p in placements):
        return Physical(graph)
    selection = select(problem)
    problem = on_grid(problem, selection.hierarchy)
    graph = problem.graph
    arguments = problem, graph, selection, problem.costs.links, methods
    if devices is None:
        return _Lowering(*arguments).run()
    outline = _Lowering(*arguments, kept=frozenset())
    outline.run()
    results = {outline.result_layout(value).placement.device(0) for value in graph.results}
    classes, kept = outline.layouts.kept({*devices, *results})
    kept &= {device for members in classes for device in members}
    found = _Lowering(*arguments, kept=kept).run()
    found.classes, found.kept = classes, kept
    return found


@dataclass(slots=True)
class _Lowering:
    """The state of one lowering, to which each logical op appends its physical ops.

    A `Rewriter` does not fit here because no op of the logical graph is kept: each op becomes ops
    with other names, types and placements, and values are looked up by layout.
    """

    problem: Problem
    graph: Graph
    selection: Selection
    links: LinkModel
    methods: BoxingMethods
    # The devices that have ops; None for all.  Without any, only ``layouts`` are found.
    kept: frozenset[Device] | None = None
    ops: dict[str, Op] = field(default_factory=dict)  # of the physical graph so far
    types: dict[str, tuple[TensorType, ...]] = field(default_factory=dict)
    lines: dict[str, SourceLine] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    # Maps (logical value, layout) to the local values on these devices, by rank.
    local: dict[tuple[Value, TensorLayout], Locals] = field(default_factory=dict)
    # Maps each logical op to its physical ops on these devices, by rank.
    copies: dict[str, dict[int, str]] = field(default_factory=dict)
    layouts: Layouts = field(default_factory=Layouts)
    ranks_of: dict[Placement, Sequence[int]] = field(default_factory=dict)
    # Maps each logical input to the number of layouts in which it is fed.
    feeds: dict[str, int] = field(default_factory=dict)
    found: Physical = field(default_factory=lambda: Physical(Graph({}, {})))

    def run(self) -> Physical:
        for op in self.graph.ops.values():
            self._expand(op)
        results = tuple([v for value in self.graph.results for v in self._result(value)])
        effects = tuple(name for e in self.graph.effects for name in self.copies[e].values())
        self.found.layouts = self.selection.layouts
        self.found.signatures = self.selection.signatures
        self.found.report = self.selection.report
        self.found.problem = self.problem
        self.found.graph = Graph(self.ops, self.types, results, effects, self.lines, self.origins)
        return self.found

    def _ranks(self, placement: Placement) -> Sequence[int]:
        """Return the ranks whose devices have ops."""
        if placement not in self.ranks_of:
            ranks = range(placement.size)
            self.ranks_of[placement] = (
                ranks
                if self.kept is None
                else [r for r in ranks if placement.device(r) in self.kept]
            )
        return self.ranks_of[placement]

    def _result(self, value: Value) -> Iterable[Value]:
        return self._local(value, self.result_layout(value), None).values()

    def result_layout(self, value: Value) -> TensorLayout:
        return result_layout(self.selection.layouts[value].placement)

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
            self._regroup(op, inputs)
            return
        placement = self.problem.home(op)
        layouts = [TensorLayout(placement, sbp) for sbp in chosen.outputs]
        origins = self._origins(op.name, placement)
        self._note(op, layouts)
        names = {rank: str(origin) for rank, origin in origins.items()}
        self.copies[op.name] = names
        for rank, name in names.items():
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
            self._add(local, self._types(op, layouts, rank), origins[rank], line)
            self._remember_shard(op, name, layouts, rank)
        for index, layout in enumerate(layouts):
            values = {rank: Value(name, index) for rank, name in names.items()}
            self.local[Value(op.name, index), layout] = values

    def _origins(self, name: str, placement: Placement) -> dict[int, Origin]:
        """Return the origins of the parts of a logical op that have ops, by rank."""
        ranks = self._ranks(placement)
        return dict(zip(ranks, local_origins(self.graph, name, placement, ranks), strict=True))

    def _note(self, op: Op, layouts: Sequence[TensorLayout]) -> None:
        """Note the layouts in which an op makes its results, if classes are to be found."""
        if self.kept is not None:
            rows = zip(self.graph.types[op.name], layouts, strict=True)
            self.layouts.parts.update({(t.shape, layout): None for t, layout in rows})

    def _attrs(self, op: Op, chosen: NdSignature, outputs: list[TensorLayout], rank: int) -> Attrs:
        """Return the attributes of the part of an op that runs on the device of a rank."""
        if self.problem.home(op).size == 1:
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

    def _regroup(self, op: Op, inputs: Sequence[Locals]) -> None:
        """Use per-device values as the parts of a logical value, or vice versa, without an op."""
        parts: Locals = {}
        first = 0
        for index, held in enumerate(inputs):
            parts.update({first + rank: value for rank, value in held.items()})
            first += self.problem.reads(op, index).size
        outputs = [Value(op.name, i) for i in range(len(self.graph.types[op.name]))]
        for i, value in enumerate(outputs):
            local = parts
            if len(outputs) > 1:
                local = {0: parts[i]} if i in parts else {}
            self.local[value, self.selection.layouts[value]] = local
            self.found.passed[value] = tuple(local.values())
        self.copies[op.name] = {rank: part.op for rank, part in parts.items()}

    def _same_rank(self, name: str, rank: int) -> str:
        """Return the copy of an op on the device of a rank, or else its last kept copy before."""
        names = self.copies[name]
        return names[max([r for r in names if r <= rank], default=min(names))]

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

    def _local(self, value: Value, layout: TensorLayout, reader: Op | None) -> Locals:
        """Return the local values of a logical value in a layout, and box the value on first use.

        Args:
            reader: the logical op that requires the layout; None for a result of the job.
        """
        known = self.local.get((value, layout))
        if known is None:
            known = self._box(value, layout, reader)
            self.local[value, layout] = known
        return known

    def _box(self, value: Value, layout: TensorLayout, reader: Op | None) -> Locals:
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
            if self.kept is not None:
                self.layouts.parts[self.graph.type_of(value).shape, source] = None
            self.local[value, source] = {
                rank: self._fed_part(value, source, rank, origin, suffix)
                for rank, origin in self._origins(value.op, source.placement).items()
            }
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
        self, value: Value, type_: TensorType, step: ReshardStep, values: Locals, entry: BoxingEntry
    ) -> Locals:
        """Return the local values after a reshard step: each is unchanged or from an exchange."""
        if self.kept is not None:
            self.layouts.steps[step] = None
            self.layouts.parts[type_.shape, step.target] = None
        groups = groups_of(step)
        local = {
            rank: values[step.pieces[rank][0].source]
            for rank in self._ranks(step.target.placement)
            if groups.targets[rank] < 0
        }
        names = []
        for number in self._numbers(step, groups):
            last = f".{number}" if len(groups) > 1 else ""
            op, types, targets = exchange_op(step, groups[number], type_, values, self.kept)
            op = replace(op, name=f"{value.op}/box{len(self.found.ledger) + 1}{last}")
            origin = self.graph.origin(value.op)
            self._add(op, types, origin, self.graph.lines.get(entry.op or value.op))
            names.append(op.name)
            local.update({rank: op.output(i) for i, rank in enumerate(targets)})
        self.found.ledger.append(replace(entry, exchanges=tuple(names)))
        return dict(sorted(local.items()))

    def _numbers(self, step: ReshardStep, groups: Groups) -> Iterable[int]:
        """Return the groups that have a device that has ops."""
        if self.kept is None:
            return range(len(groups))
        found = set[int]()
        for end, numbers in ((step.source, groups.sources), (step.target, groups.targets)):
            found.update(int(numbers[rank]) for rank in self._ranks(end.placement))
        return sorted(found - {-1})


def local_origins(
    graph: Graph, name: str, placement: Placement, ranks: Sequence[int] | None = None
) -> tuple[Origin, ...]:
    """Return the origins of a logical op's parts; their text is the parts' names.

    Args:
        ranks: the ranks of the parts; None for all.
    """
    origin, ranks = graph.origin(name), range(placement.size) if ranks is None else ranks
    if placement.size == 1:
        return tuple([origin for _ in ranks])
    return tuple([origin._replace(rank=rank) for rank in ranks])
