"""The cost network of a selection problem.

An op with several signatures is a node, whose states are the signatures.  A value adds tables that
relate its producer to each consumer.  If several consumers may want the value in the same layout, a
node with two states says whether the value is made available in that layout: making it available
is charged once, to the producer, and consumers that want the layout require that it is available.

Invariant of the caches: ops and values with equal keys have equal tables.  Signatures and layouts
in keys are `Interned`: `Space` and `Builder` create only one object for each content and keep it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from flow_core.compiler.reshard.planner import TensorLayout
from flow_core.compiler.select.candidates import NdSignature, shares_work
from flow_core.compiler.select.costs import Costs, result_layout
from flow_core.compiler.select.interned import Interned
from flow_core.compiler.select.network import Infeasible, Network, Table
from flow_core.compiler.select.price import NEVER
from flow_core.compiler.select.problem import Problem, Selection, Space, States
from flow_core.compiler.select.search_budget import NODE, TRANSITION, SearchBudget
from flow_core.ir.graph import Op, Value
from flow_core.sharding.topology import Placement

Layouts = Interned[TensorLayout]
Wanted = Interned[tuple[TensorLayout, ...]]
Required = Interned[TensorLayout | None]


@dataclass(frozen=True, slots=True)
class Use:
    """The use of a value by one consumer, for all states (signatures) of the consumer."""

    node: int | None  # the consumer's node; None if the consumer has only one signature
    wanted: Wanted  # for each state, the layouts in which the consumer reads the value
    # For each state, the layout that the value itself must have because the consumer overwrites the
    # value, or None.
    required: Required

    @property
    def kind(self) -> Hashable:
        """A key, which is the same for equal uses by different nodes."""
        return self.wanted, self.required


@dataclass(slots=True)
class ValueTables:
    """The cost tables of one value; their first axis is that of the producer's states."""

    producer: Table  # the cost for each state of the producer
    # Pairs of the number of a use, and a table over producer and consumer of the costs that are
    # charged to this use alone.
    consumers: list[tuple[int, Table]] = field(default_factory=list)
    # For each layout that several consumers may want: a table over the producer and the node for
    # availability, and pairs of the number of a use and a table over that node and the consumer.
    shared: list[tuple[Table, list[tuple[int, Table]]]] = field(default_factory=list)


class Builder:
    """The builder of the network of a problem.

    Values with equal tables, such as those of equal layers, share one set of tables.
    """

    def __init__(
        self,
        problem: Problem,
        space: Space,
        costs: Costs,
        known: Selection | None,  # a selection to improve on, if one exists
        # The only hierarchy dimension in which signatures may differ from the known selection; None
        # for all dimensions.
        free: int | None = None,
    ) -> None:
        self.problem = problem
        self.space = space
        self.costs = costs
        self.known = known
        self.free = free
        self.net = Network()
        self.states: dict[str, States] = {}  # the signatures that each op may take
        self.nodes: dict[str, int | None] = {}  # None for an op with only one signature
        self._usable: dict[Hashable, States] = {}
        self._op_costs: dict[Hashable, Table] = {}
        self._value_tables: dict[Hashable, ValueTables] = {}
        self._layouts: dict[Hashable, Layouts] = {}
        self._uses: dict[Hashable, tuple[Wanted, Required]] = {}

    def build(self, budget: SearchBudget) -> Network:
        """Build the network.

        Raises:
            Infeasible: an op has no usable signature.
            BudgetExceeded: building takes more work than the budget allows.
        """
        budget.spend(len(self.problem.graph.ops), NODE)
        for op in self.problem.graph.ops.values():
            self._add_op(op)
        for op, value, uses in list(self._values()):
            before = self.costs.planned
            tables = self._tables(op, value, self._sources(op, value.index), uses)
            self._add_tables(self.nodes[op.name], tables, uses)
            budget.spend(self.costs.planned - before, TRANSITION)
        return self.net

    def transitions(self) -> int:
        """Return an upper bound on the number of transitions that `build` has to plan."""
        for op in self.problem.graph.ops.values():
            self.states[op.name] = self.usable(op)
            self.nodes[op.name] = None
        counts: dict[Hashable, int] = {}
        for op, value, uses in self._values():
            sources = self._sources(op, value.index)
            targets = dict.fromkeys(t for use in uses for wanted in use.wanted for t in wanted)
            key = (self.problem.graph.type_of(value), sources, tuple(use.kind for use in uses))
            counts[key] = len(set(sources)) * len(targets)
        return sum(counts.values())

    def _values(self) -> Iterator[tuple[Op, Value, list[Use]]]:
        """Yield every value that has uses, with its producer and its uses."""
        readers = self.problem.graph.consumers()
        results = set(self.problem.graph.results)
        for name, op in self.problem.graph.ops.items():
            for index in range(len(self.problem.graph.types[name])):
                value = Value(name, index)
                distinct = {r.name: r for r in readers.get(value, ())}
                uses = [self._use(value, reader) for reader in distinct.values()]
                if value in results:
                    uses.append(self._fetch_use(self.problem.home(op)))
                if uses:
                    yield op, value, uses

    def selection(self, choice: Sequence[int]) -> Selection:
        """Return the selection that corresponds to a choice of states."""
        selection = Selection()
        for op in self.problem.graph.ops.values():
            node = self.nodes[op.name]
            state = 0 if node is None else choice[node]
            selection.take(self.problem, op, self.states[op.name][state])
        return selection

    # -------------------------------------------------------------------------- ops

    def _add_op(self, op: Op) -> None:
        states = self.states[op.name] = self.usable(op)
        if not states:
            raise Infeasible
        types = op.type, self.problem.graph.input_types(op), self.problem.graph.types[op.name]
        key = (states, op.attrs, op.placement, types)
        costs = self._op_costs.get(key)
        if costs is None:
            costs = np.array([self.costs.op(op, state).total for state in states], np.int64)
            self._op_costs[key] = costs
        self.nodes[op.name] = self.net.node(costs) if len(states) > 1 else None
        if len(states) == 1:
            self.net.constant += int(costs[0])

    def usable(self, op: Op) -> States:
        """Return the allowed signatures, except those that repeat heavy work on every device.

        A placement on several devices is a request to divide the work among them.  A signature that
        repeats the work stays only if no other one is allowed, or if the known selection has it.
        """
        allowed = self.space.allowed(op)
        pick = self.known.signatures[op.name] if self.known is not None else None
        heavy = self.problem.specs[op.type].work is not None
        if not heavy and (self.free is None or pick is None):
            return allowed
        key = (allowed, pick, heavy)
        states = self._usable.get(key)
        if states is None:
            near = [c for c in allowed if pick is None or self._is_near(c, pick)]
            sharing = [c for c in near if shares_work(c, op.placement.hierarchy)] if heavy else near
            states = Interned(c for c in near if c in sharing or c == pick or not sharing)
            self._usable[key] = states
        return states

    def _is_near(self, candidate: NdSignature, pick: NdSignature) -> bool:
        """Return whether two signatures differ in no dimension but the free one."""
        mine = (*candidate.inputs, *candidate.outputs)
        theirs = (*pick.inputs, *pick.outputs)
        return self.free is None or all(
            d == self.free or a == b
            for nd, other in zip(mine, theirs, strict=True)
            for d, (a, b) in enumerate(zip(nd, other, strict=True))
        )

    # ----------------------------------------------------------------------- values

    def _sources(self, op: Op, index: int) -> Layouts:
        """Return the layout of an output for each state of its producer."""
        home = self.problem.home(op, index)
        key = (self.states[op.name], index, home)
        known = self._layouts.get(key)
        if known is None:
            known = Interned(TensorLayout(home, s.outputs[index]) for s in self.states[op.name])
            self._layouts[key] = known
        return known

    def _use(self, value: Value, reader: Op) -> Use:
        indices = tuple(i for i, v in enumerate(reader.inputs) if v == value)
        states = self.states[reader.name]
        key = (states, indices, reader.placement, reader.type)
        known = self._uses.get(key)
        if known is None:
            mutates = self.problem.specs[reader.type].mutates
            rows = [
                {i: TensorLayout(self.problem.reads(reader, i), state.inputs[i]) for i in indices}
                for state in states
            ]
            known = self._uses[key] = (
                Interned(tuple(dict.fromkeys(row.values())) for row in rows),
                Interned(next((t for i, t in row.items() if i in mutates), None) for row in rows),
            )
        return Use(self.nodes[reader.name], *known)

    def _fetch_use(self, home: Placement) -> Use:
        """Return the use of a result that the caller of the job fetches."""
        key = ("fetched", home)
        known = self._uses.get(key)
        if known is None:
            wanted = Interned([(result_layout(home),)])
            known = self._uses[key] = (wanted, Interned([None]))
        return Use(None, *known)

    def _tables(self, op: Op, value: Value, sources: Layouts, uses: Sequence[Use]) -> ValueTables:
        key = (
            self.problem.graph.type_of(value),
            sources,
            tuple(use.kind for use in uses),
            self.problem.stays(op),
            op.attrs["batch_axis"] if op.type == "input" else None,
            value in self.costs.gradients,
        )
        known = self._value_tables.get(key)
        if known is None:
            known = self._value_tables[key] = self._make_tables(value, sources, uses)
        return known

    def _make_tables(self, value: Value, sources: Layouts, uses: Sequence[Use]) -> ValueTables:
        tables = ValueTables(np.zeros(len(sources), np.int64))
        fetch = {
            t: np.array([self.costs.fetch(value, s, t) for s in sources], np.int64)
            for t in dict.fromkeys(t for u in uses for wanted in u.wanted for t in wanted)
        }
        shared = [t for t in fetch if self._is_shared(value, t, fetch[t], sources, uses)]
        for t in shared:
            if any(all(t in wanted for wanted in u.wanted) for u in uses):
                tables.producer += fetch[t]
            else:
                tables.shared.append((_availability(fetch[t]), _requirements(t, uses)))
        for k, use in enumerate(uses):
            table = np.zeros((len(sources), len(use.wanted)), np.int64)
            for c, (wanted, required) in enumerate(zip(use.wanted, use.required, strict=True)):
                for t in wanted:
                    if t not in shared:
                        table[:, c] += fetch[t]
                if required is not None:
                    table[:, c] += [0 if s == required else NEVER for s in sources]
            if table.any():
                tables.consumers.append((k, np.minimum(table, NEVER)))
        return tables

    def _is_shared(
        self,
        value: Value,
        target: TensorLayout,
        fetch: Table,
        sources: Sequence[TensorLayout],
        uses: Sequence[Use],
    ) -> bool:
        """Return whether several consumers may want a layout that costs communication."""
        if sum(any(target in wanted for wanted in u.wanted) for u in uses) < 2:
            return False
        type_ = self.problem.graph.type_of(value)
        return any(
            self.costs.move(type_, source, target).cost.communication
            for source, cost in zip(sources, fetch, strict=True)
            if 0 < cost < NEVER
        )

    def _add_tables(self, producer: int | None, tables: ValueTables, uses: Sequence[Use]) -> None:
        self._relate(producer, None, tables.producer[:, None])
        for k, table in tables.consumers:
            self._relate(producer, uses[k].node, table)
        for availability, requirements in tables.shared:
            available = self.net.node(np.zeros(2, np.int64))
            self._relate(producer, available, availability)
            for k, table in requirements:
                self._relate(available, uses[k].node, table)

    def _relate(self, a: int | None, b: int | None, table: Table) -> None:
        """Add a table over two nodes; None stands for a node with only one state."""
        if a is not None and b is not None:
            self.net.pair(a, b, table)
        elif a is not None:
            self.net.add((a,), table[:, 0])
        elif b is not None:
            self.net.add((b,), table[0])
        else:
            self.net.constant += int(table[0, 0])


def _availability(fetch: Table) -> Table:
    """Return a table that charges the producer for making a layout available."""
    return np.stack([np.zeros_like(fetch), fetch], axis=1)


def _requirements(target: TensorLayout, uses: Sequence[Use]) -> list[tuple[int, Table]]:
    """Return tables that forbid consumers to want a layout that is not available."""
    found = []
    for k, use in enumerate(uses):
        wanting = np.array([target in wanted for wanted in use.wanted])
        if wanting.any():
            found.append((k, np.stack([np.where(wanting, NEVER, 0), np.zeros(len(wanting), int)])))
    return found
