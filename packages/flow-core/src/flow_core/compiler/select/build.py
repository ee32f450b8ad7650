"""From a selection problem to a network of costs.

An op with several signatures is a node.  A value relates its producer to each consumer.  Where
several consumers may want one layout, a node of two states says whether the value is made
available in it: the producer pays for that once, and the consumers ask for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flow_core.compiler.reshard.planner import TensorLayout
from flow_core.compiler.select.candidates import NdSignature, shares_work
from flow_core.compiler.select.costs import Costs, result_layout
from flow_core.compiler.select.network import Infeasible, Network, Table
from flow_core.compiler.select.price import NEVER
from flow_core.compiler.select.problem import Problem, Selection, Space
from flow_core.compiler.select.search_budget import NODE, TRANSITION, Effort
from flow_core.ir.graph import Op, Value
from flow_core.sharding.topology import Placement

States = tuple[NdSignature, ...]
Wants = tuple[tuple[TensorLayout, ...], ...]
Bound = tuple[TensorLayout | None, ...]


@dataclass(frozen=True, slots=True)
class Use:
    """How one consumer uses a value.

    Attributes:
        node: the consumer's node, None when it has no choice.
        wants: per state, the layouts that it wants.
        bound: per state, the layout that the value must have of itself, for overwritten ones.
    """

    node: int | None
    wants: Wants
    bound: Bound

    @property
    def key(self) -> Any:
        """What tells uses apart, but for the node."""
        return id(self.wants), id(self.bound)


@dataclass(slots=True)
class Recipe:
    """The tables of one value: the producer's states come first.

    Attributes:
        alone: cost per state of the producer.
        pairs: (use, table) of what is charged to one consumer.
        shared: (table of producer and availability, [(use, table of availability and use)]).
    """

    alone: Table
    pairs: list[tuple[int, Table]] = field(default_factory=list)
    shared: list[tuple[Table, list[tuple[int, Table]]]] = field(default_factory=list)


class Builder:
    """Makes the network of a problem; equal values, such as those of equal layers, once."""

    def __init__(
        self,
        problem: Problem,
        space: Space,
        costs: Costs,
        known: Selection | None,
        free: int | None = None,
    ) -> None:
        """A builder for one search.

        Args:
            problem: what is to be laid out.
            space: its signatures.
            costs: what they cost.
            known: a selection that is there already.
            free: the hierarchy dimension in which ops may leave the known selection, None for all.
        """
        self.problem = problem
        self.space = space
        self.costs = costs
        self.known = known
        self.free = free
        self.net = Network()
        self.states: dict[str, States] = {}
        self.nodes: dict[str, int | None] = {}
        self._usable: dict[Any, States] = {}
        self._own: dict[Any, Table] = {}
        self._recipes: dict[Any, Recipe] = {}
        self._layouts: dict[Any, tuple[TensorLayout, ...]] = {}
        self._uses: dict[Any, tuple[Wants, Bound]] = {}

    def build(self, effort: Effort) -> Network:
        """The network; `states` and `nodes` say what its nodes are.

        Raises:
            Infeasible: an op has no signature at all.
            Spent: it takes more effort than there is.
        """
        effort.spend(len(self.problem.graph.ops), NODE)
        for op in self.problem.graph.ops.values():
            self._add_op(op)
        for op, value, uses in list(self._values()):
            before = self.costs.planned
            recipe = self._recipe(op, value, self._sources(op, value.index), uses)
            self._apply(self.nodes[op.name], recipe, uses)
            effort.spend(self.costs.planned - before, TRANSITION)
        return self.net

    def transitions(self) -> int:
        """How many transitions the network will ask the boxing planner about, at most."""
        for op in self.problem.graph.ops.values():
            self.states[op.name] = self.usable(op)
            self.nodes[op.name] = None
        asked = {}
        for op, value, uses in self._values():
            sources = self._sources(op, value.index)
            targets = dict.fromkeys(t for use in uses for wants in use.wants for t in wants)
            key = (self.problem.graph.type_of(value), id(sources), tuple(use.key for use in uses))
            asked[key] = len(set(sources)) * len(targets)
        return sum(asked.values())

    def _values(self) -> Iterator[tuple[Op, Value, list[Use]]]:
        """Every value that somebody uses, with its producer and its uses."""
        readers = self.problem.graph.consumers()
        results = set(self.problem.graph.results)
        for name, op in self.problem.graph.ops.items():
            for index in range(len(self.problem.graph.types[name])):
                value = Value(name, index)
                distinct = {r.name: r for r in readers.get(value, ())}
                uses = [self._use(value, reader) for reader in distinct.values()]
                if value in results:
                    uses.append(self._fetched(self.problem.home(op)))
                if uses:
                    yield op, value, uses

    def selection(self, choice: Sequence[int]) -> Selection:
        """The selection that a choice of states stands for."""
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
        key = (id(states), op.attrs, op.placement, self._types(op))
        own = self._own.get(key)
        if own is None:
            own = np.array([self.costs.op(op, state).total for state in states], np.int64)
            self._own[key] = own
        self.nodes[op.name] = self.net.node(own) if len(states) > 1 else None
        if len(states) == 1:
            self.net.constant += int(own[0])

    def _types(self, op: Op) -> Any:
        return op.type, self.problem.graph.input_types(op), self.problem.graph.types[op.name]

    def usable(self, op: Op) -> States:
        """The allowed signatures, less those that repeat heavy work on every device.

        A placement on several devices asks them to share the work; what repeats it is left only
        where nothing else is allowed, or where the known selection has it.
        """
        allowed = self.space.allowed(op)
        pick = self.known.signatures[op.name] if self.known is not None else None
        heavy = self.problem.specs[op.type].work is not None
        if not heavy and (self.free is None or pick is None):
            return allowed
        key = (id(allowed), pick, heavy)
        states = self._usable.get(key)
        if states is None:
            near = [c for c in allowed if pick is None or self._is_near(c, pick)]
            sharing = [c for c in near if shares_work(c, op.placement.hierarchy)] if heavy else near
            states = tuple(c for c in near if c in sharing or c == pick or not sharing)
            self._usable[key] = states
        return states

    def _is_near(self, candidate: NdSignature, pick: NdSignature) -> bool:
        """Whether a signature differs from another in the free dimension at most."""
        mine = (*candidate.inputs, *candidate.outputs)
        theirs = (*pick.inputs, *pick.outputs)
        return self.free is None or all(
            d == self.free or a == b
            for nd, other in zip(mine, theirs, strict=True)
            for d, (a, b) in enumerate(zip(nd, other, strict=True))
        )

    # ----------------------------------------------------------------------- values

    def _sources(self, op: Op, index: int) -> tuple[TensorLayout, ...]:
        home = self.problem.home(op, index)
        key = (id(self.states[op.name]), index, home)
        known = self._layouts.get(key)
        if known is None:
            known = tuple(TensorLayout(home, s.outputs[index]) for s in self.states[op.name])
            self._layouts[key] = known
        return known

    def _use(self, value: Value, reader: Op) -> Use:
        indices = tuple(i for i, v in enumerate(reader.inputs) if v == value)
        states = self.states[reader.name]
        key = (id(states), indices, reader.placement, reader.type)
        known = self._uses.get(key)
        if known is None:
            mutates = self.problem.specs[reader.type].mutates
            rows = [
                {i: TensorLayout(self.problem.reads(reader, i), state.inputs[i]) for i in indices}
                for state in states
            ]
            known = self._uses[key] = (
                tuple(tuple(dict.fromkeys(row.values())) for row in rows),
                tuple(next((t for i, t in row.items() if i in mutates), None) for row in rows),
            )
        return Use(self.nodes[reader.name], *known)

    def _fetched(self, home: Placement) -> Use:
        """The use that fetching makes of a result."""
        key = ("fetched", home)
        known = self._uses.get(key)
        if known is None:
            known = self._uses[key] = (((result_layout(home),),), (None,))
        return Use(None, *known)

    def _recipe(
        self, op: Op, value: Value, sources: tuple[TensorLayout, ...], uses: Sequence[Use]
    ) -> Recipe:
        key = (
            self.problem.graph.type_of(value),
            id(sources),
            tuple(use.key for use in uses),
            self.problem.stays(op),
            op.attrs["batch_axis"] if op.type == "input" else None,
        )
        known = self._recipes.get(key)
        if known is None:
            known = self._recipes[key] = self._make(value, sources, uses)
        return known

    def _make(self, value: Value, sources: tuple[TensorLayout, ...], uses: Sequence[Use]) -> Recipe:
        recipe = Recipe(np.zeros(len(sources), np.int64))
        fetch = {
            t: np.array([self.costs.fetch(value, s, t) for s in sources], np.int64)
            for t in dict.fromkeys(t for u in uses for wants in u.wants for t in wants)
        }
        shared = [t for t in fetch if self._is_shared(value, t, fetch[t], sources, uses)]
        for t in shared:
            if any(all(t in wants for wants in u.wants) for u in uses):
                recipe.alone += fetch[t]
            else:
                recipe.shared.append((_offer(fetch[t]), _asks(t, uses)))
        for k, use in enumerate(uses):
            table = np.zeros((len(sources), len(use.wants)), np.int64)
            for c, (wants, bound) in enumerate(zip(use.wants, use.bound, strict=True)):
                for t in wants:
                    if t not in shared:
                        table[:, c] += fetch[t]
                if bound is not None:
                    table[:, c] += [0 if s == bound else NEVER for s in sources]
            if table.any():
                recipe.pairs.append((k, np.minimum(table, NEVER)))
        return recipe

    def _is_shared(
        self,
        value: Value,
        target: TensorLayout,
        fetch: Table,
        sources: Sequence[TensorLayout],
        uses: Sequence[Use],
    ) -> bool:
        """Whether several consumers may want a layout that costs communication."""
        if sum(any(target in wants for wants in u.wants) for u in uses) < 2:
            return False
        type_ = self.problem.graph.type_of(value)
        return any(
            self.costs.move(type_, source, target).cost.communication
            for source, cost in zip(sources, fetch, strict=True)
            if 0 < cost < NEVER
        )

    def _apply(self, producer: int | None, recipe: Recipe, uses: Sequence[Use]) -> None:
        self._relate(producer, None, recipe.alone[:, None])
        for k, table in recipe.pairs:
            self._relate(producer, uses[k].node, table)
        for offer, asks in recipe.shared:
            available = self.net.node(np.zeros(2, np.int64))
            self._relate(producer, available, offer)
            for k, table in asks:
                self._relate(available, uses[k].node, table)

    def _relate(self, a: int | None, b: int | None, table: Table) -> None:
        """Adds a table over two nodes, each of which may be a single state."""
        if a is not None and b is not None:
            self.net.pair(a, b, table)
        elif a is not None:
            self.net.add((a,), table[:, 0])
        elif b is not None:
            self.net.add((b,), table[0])
        else:
            self.net.constant += int(table[0, 0])


def _offer(fetch: Table) -> Table:
    """The producer pays for what is available."""
    return np.stack([np.zeros_like(fetch), fetch], axis=1)


def _asks(target: TensorLayout, uses: Sequence[Use]) -> list[tuple[int, Table]]:
    """A consumer may only want what is available."""
    asks = []
    for k, use in enumerate(uses):
        wanting = np.array([target in wants for wants in use.wants])
        if wanting.any():
            asks.append((k, np.stack([np.where(wanting, NEVER, 0), np.zeros(len(wanting), int)])))
    return asks
