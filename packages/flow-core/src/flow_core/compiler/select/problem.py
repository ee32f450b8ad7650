"""The problem of selecting signatures, and its solution."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from flow_core.base.errors import GraphError
from flow_core.compiler.reshard.planner import TensorLayout
from flow_core.compiler.select.candidates import (
    NdSignature,
    all_broadcast,
    first_device,
    has_extremes,
    makes_extremes,
    signatures,
)
from flow_core.compiler.select.interned import Interned
from flow_core.compiler.stage_cache import StageCache
from flow_core.costs.model import DEFAULT, CostModel
from flow_core.ir.graph import Graph, Op, Value
from flow_core.plugins.specs import OpSpec
from flow_core.sharding.sbp import B, Broadcast, NdSbp, Split, coordinates
from flow_core.sharding.topology import Placement

if TYPE_CHECKING:
    from flow_core.compiler.select.report import Report


States = Interned[NdSignature]


class SelectionError(GraphError):
    """Error for a requested distribution that is impossible."""

    def __init__(self, attempted: str, *, op: str, conflict: Any = (), **parts: Any) -> None:
        self.op = op  # without a signature
        self.conflict = tuple(conflict)  # the smallest contradictory set of requests that was found
        super().__init__(attempted, **parts)


@dataclass(frozen=True, slots=True)
class Problem:
    """A graph whose ops need signatures."""

    graph: Graph  # the logical graph
    specs: Mapping[str, OpSpec]  # of the graph's op types
    costs: CostModel = DEFAULT
    fixed: Mapping[str, TensorLayout] = field(default_factory=dict)  # of variables of other jobs
    seconds: float = 10.0  # the budget for an exact search, in nominal seconds; see `search_budget`
    memory: float = 1.0  # a factor on the price of memory
    host_numbers: frozenset[str] = frozenset()  # device types reading `OpSpec.numbers` on the host
    # What other problems of the same specs and cost model have in common with this one.
    cache: StageCache | None = field(default=None, compare=False, repr=False)

    def table(self, function: str, *more: object) -> dict[Any, Any]:
        """Return the known results of a function of ops or values, by its arguments.

        Args:
            more: what it depends on besides its arguments, the specs, the cost model and the
                layouts of variables.
        """
        if self.cache is None:
            return {}
        return self.cache.tables.get((function, more, self.specs, self.costs, self.fixed), dict)

    def reads(self, op: Op, index: int) -> Placement:
        """Return where an op reads an input.

        This is the op's placement, the input's own device for ops that read one value from each
        device, or the host.
        """
        return self.specs[op.type].input_placement(op.placement, index, self.host_numbers)

    def home(self, op: Op, index: int = 0) -> Placement:
        """Return the placement of an op's output.

        Fed arrays are on the first device.  Ops that convert between the consistent and the
        mirrored view have one output on each device of their placement.  A variable that another
        job splits over another placement stays on that placement and is boxed from there.  All
        other outputs are on the op's own placement.
        """
        if op.type == "input":
            return first_device(op.placement)
        held = self.fixed.get(op.name) if op.type == "variable" else None
        if held is not None and any(isinstance(s, Split) for s in held.sbp):
            return held.placement
        return self.specs[op.type].output_placement(op.placement, index)

    def held(self, op: Op) -> NdSbp | None:
        """Return the SBP that other jobs have fixed for a variable, or None if it is free."""
        held = self.fixed.get(op.name) if op.type == "variable" else None
        if held is None or op.sbp:
            return None
        if held.placement == self.home(op):
            return held.sbp
        return (B,) * len(op.placement.hierarchy)

    def arrival(self, value: Value, placement: Placement) -> TensorLayout | None:
        """Return the layout in which a fed batch arrives at no cost; None for other values.

        A batch arrives split along its batch axis over the first hierarchy dimension, if that axis
        is long enough.
        """
        source = self.graph.ops[value.op]
        if source.type != "input":
            return None
        axis, parts = source.attrs["batch_axis"], placement.hierarchy[0]
        shape = self.graph.type_of(value).shape
        splits = axis is not None and axis < len(shape) and shape[axis] >= parts > 1
        rest = (B,) * (len(placement.hierarchy) - 1)
        return TensorLayout(placement, (Split(axis) if splits else B, *rest))

    def stays(self, op: Op) -> bool:
        """Return whether the parts of an op's output must stay on their devices.

        This holds for variables whose layout neither a hint nor another job requests: such a
        variable is split only if its readers use it split; it is not stored split and gathered in
        every step.
        """
        return op.type == "variable" and not op.sbp and self.held(op) is None


@lru_cache(maxsize=4096)
def fed_as(layout: TensorLayout) -> TensorLayout | None:
    """Return the layout in which to feed an array: each part once, on the first device that has it.

    Return None for a layout that splits nothing.

    >>> from flow_core.sharding.sbp import B, S
    >>> grid = Placement.parse("gpu", "0:0-3", (2, 2))
    >>> print(
    ...     fed_as(TensorLayout(grid, (S(0), B))), fed_as(TensorLayout(grid, (B, S(1)))), sep="; "
    ... )
    gpu[0:0,0:2] S(0); gpu[0:0-1] S(1)
    """
    hierarchy, devices = layout.placement.hierarchy, layout.placement.devices
    axes = [isinstance(s, Split) and n > 1 for s, n in zip(layout.sbp, hierarchy, strict=True)]
    if not any(axes):
        return None
    first = [
        device
        for rank, device in enumerate(devices)
        if not any(c for c, a in zip(coordinates(rank, hierarchy), axes, strict=True) if not a)
    ]
    sizes = tuple([n for n, a in zip(hierarchy, axes, strict=True) if a])
    sbp = tuple([s for s, a in zip(layout.sbp, axes, strict=True) if a])
    return TensorLayout(Placement(layout.placement.device_type, tuple(first), sizes), sbp)


@dataclass(slots=True)
class Selection:
    """The chosen signatures, and the layouts that follow from them."""

    signatures: dict[str, NdSignature] = field(default_factory=dict)  # by op
    layouts: dict[Value, TensorLayout] = field(default_factory=dict)
    report: Report | None = None  # on the search, if one was made
    hierarchy: tuple[int, ...] | None = None  # of the devices, if not that of the placements

    def take(self, problem: Problem, op: Op, chosen: NdSignature) -> None:
        """Set an op's signature, and the layouts of its outputs."""
        self.signatures[op.name] = chosen
        for index, sbp in enumerate(chosen.outputs):
            self.layouts[Value(op.name, index)] = TensorLayout(problem.home(op, index), sbp)


HOLDERS = ("variable", "constant", "identity", "parallel_cast")
"""Ops that only hold or pass on a tensor; if requested, a device may hold none of its elements."""


class Space:
    """The signatures of each op of a problem, computed once for each kind of op."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._all: dict[Hashable, States] = problem.table("signatures", self.extremes)
        self._allowed: dict[Hashable, States] = problem.table("allowed signatures")

    def all(self, op: Op) -> States:
        """Return all signatures of an op, whether they meet the requests or not."""
        graph = self.problem.graph
        home = self.problem.home(op)
        inputs, outputs = graph.input_types(op), graph.types[op.name]
        is_requested = bool(op.sbp) or self.problem.held(op) is not None
        key = (op.type, op.attrs, inputs, outputs, home.hierarchy, is_requested)
        states = self._all.get(key)
        if states is None:
            between = self.problem.specs[op.type].is_per_device(op.placement)
            is_single = home.size == 1 and not op.sbp and not between
            found = [whole(op, graph, home)] if is_single else self._listed(op, home, is_requested)
            states = Interned(found)
            self._all[key] = states
        return states

    def _listed(self, op: Op, home: Placement, is_requested: bool) -> Iterator[NdSignature]:
        graph, spec = self.problem.graph, self.problem.specs[op.type]
        hollow = (is_requested and op.type in HOLDERS) or bool(spec.mutates)
        found = signatures(graph, op, spec, home.hierarchy, hollow=hollow)
        return (c for c in found if self.extremes or not has_extremes(c))

    @cached_property
    def extremes(self) -> bool:
        """Whether any op produces partial maxima or minima; if not, no op needs to accept them."""
        graph, specs = self.problem.graph, self.problem.specs
        return any(makes_extremes(graph, op, specs[op.type]) for op in graph.ops.values())

    def allowed(self, op: Op) -> States:
        """Return the signatures that meet the requests of the program and of other jobs."""
        everything = self.all(op)
        held = self.problem.held(op)
        wanted = op.sbp if held is None else (held,)
        if not wanted or op.type == "input":
            return everything
        key = (everything, wanted)
        known = self._allowed.get(key)
        if known is None:
            known = Interned(c for c in everything if meets(c, wanted))
            self._allowed[key] = known
        return known


def whole(op: Op, graph: Graph, home: Placement) -> NdSignature:
    """Return the signature of an op on one device, on which all layouts are the same."""
    dims = (B,) * len(home.hierarchy)
    return NdSignature((dims,) * len(op.inputs), (dims,) * len(graph.types[op.name]))


def meets(candidate: NdSignature, wanted: tuple[NdSbp | None, ...]) -> bool:
    """Return whether a signature's outputs have the wanted distributions."""
    pairs = zip(wanted, candidate.outputs, strict=False)
    return all(request is None or request == nd for request, nd in pairs)


def replicated(layout: TensorLayout) -> bool:
    """Return whether a layout has several devices, each of which holds the whole tensor."""
    return layout.placement.size > 1 and all(isinstance(s, Broadcast) for s in layout.sbp)


__all__ = [
    "Problem",
    "Selection",
    "SelectionError",
    "Space",
    "all_broadcast",
    "meets",
    "replicated",
]
