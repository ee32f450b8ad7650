"""Running plans in isolation: each on its own variables, without changes to the session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype
from flow_core.base.shapes import Shape
from flow_core.compiler.lower.inputs import LEAVES, CompileOptions
from flow_core.compiler.lower.tasks import lower
from flow_core.frontend.session.session import Session
from flow_core.frontend.session.variable_storage import Part, window
from flow_core.ir.graph import Attrs, Graph, Op, Origin, TensorType, Value, tensor_type
from flow_core.plan import Plan
from flow_core.plugins.specs import load
from flow_core.runtime.executable import Executable
from flow_core.runtime.variable_writes import VariableWrites
from flow_core.sharding.sbp import Region
from flow_core.sharding.topology import Device


class Variables:
    """The variables of an isolated run: parts by name and device.

    Each part is allocated, and filled from the variable's logical value, on first use.

    Args:
        session: the session whose drivers allocate the parts.
    """

    def __init__(self, session: Session, values: Mapping[str, Array]) -> None:
        self._session = session
        self._values = dict(values)
        self._parts: dict[tuple[str, Device], Part] = {}
        self.writes = VariableWrites()  # counts the writes to the variables

    def part(self, name: str, device: Device, region: Region | None, shape: Shape) -> Any:
        """Return a device's array for a variable or for a region of it, viewed in a shape."""
        known = self._parts.get((name, device))
        if known is None:
            value = self._values[name]
            region = region or tuple((0, n) for n in value.shape)
            driver = self._session.driver(device)
            content = value[window(region)]
            arena = driver.allocate(content.nbytes)
            array = arena.view(0, content.shape, content.dtype)
            driver.copy_in(array, content)
            known = self._parts[name, device] = Part(region, array, driver, arena=arena)
        return known.view(shape)

    def assign(self, values: Mapping[str, Array]) -> None:
        """Overwrite variables with logical values."""
        self._values.update(values)
        with self.writes:
            for (name, _), part in self._parts.items():
                if name in values:
                    part.driver.copy_in(part.array, values[name][part.window])

    def values(self) -> dict[str, Any]:
        """Return the logical values of all allocated variables."""
        found: dict[str, Any] = {}
        for (name, _), (region, array) in self.parts().items():
            found.setdefault(name, self._values[name].copy())
            found[name][window(region)] = array
        return found

    def parts(self) -> dict[tuple[str, Device], tuple[Region, Array]]:
        """Return the region and the values of each allocated part, by (name, device)."""
        return {
            key: (part.region, part.driver.copy_out(part.array))
            for key, part in self._parts.items()
        }


@dataclass(slots=True)
class IsolatedRun:
    """A loaded plan whose variables are not those of the session."""

    executable: Executable
    variables: Variables
    shown: tuple[Value, ...]  # the values that `run` returns, in the order of the plan's results

    def run(self, feeds: Sequence[Any], step: int = 0) -> dict[Value, Any]:
        """Run one step with the given step number, and return the shown values."""
        self.executable.step[...] = step
        return dict(zip(self.shown, self.executable.run(feeds), strict=True))


def simulate(
    session: Session, plan: Plan, values: Mapping[str, Array], shown: Sequence[Value]
) -> IsolatedRun:
    """Bind a plan to its own variables; this process simulates all devices."""
    executable, variables = isolated(session, plan, values, Executable)
    return IsolatedRun(executable, variables, tuple(shown))


Kind = TypeVar("Kind", bound=Executable)


def isolated(
    session: Session, plan: Plan, values: Mapping[str, Array], kind: type[Kind]
) -> tuple[Kind, Variables]:
    """Return an executable of a given class with its own variables, and these variables."""
    variables = Variables(session, values)
    return bound(session, plan, variables, kind), variables


def bound(session: Session, plan: Plan, variables: Variables, kind: Callable[..., Kind]) -> Kind:
    """Bind a plan to variables that plans of other jobs may share."""
    registry = session.registry
    alone = registry.comm if session.world is None else load(registry.comms["in_process"].load)
    return kind(plan, registry, session.driver, variables.part, comm=alone, writes=variables.writes)


def simulate_graph(
    session: Session,
    graph: Graph,
    inputs: Sequence[str],
    values: Mapping[str, Array],
    options: CompileOptions,
    shards: Mapping[str, tuple[str, Region]],
) -> IsolatedRun:
    """Lower and bind a physical graph such that every value can be read after a step.

    Memory is not reused, and nothing is computed in place.
    """
    shown = tuple(
        Value(name, i)
        for name, op in graph.ops.items()
        if op.type not in LEAVES
        for i in range(len(graph.types[name]))
    )
    graph = replace(graph, results=shown)
    options = replace(options, inplace=False, reuse=False, memory_limit=None)
    plan = lower(graph, session.registry, inputs, "simulator", options)
    return simulate(session, replace(plan, shards=dict(shards)), values, shown)


class SingleOp:
    """A graph of one op, whose inputs are fed values and the variables that the op overwrites."""

    def __init__(
        self,
        session: Session,
        options: CompileOptions,
        op: Op,  # the op, with the placement on which it is to run
        types: tuple[TensorType, ...],
        origin: Origin,  # the op of which it is a copy, on which random numbers depend
    ) -> None:
        self.session, self.options, self.op, self.types = session, options, op, types
        self.spec, self.origin = session.registry.ops[op.type], origin
        self.mutated = [i for i in self.spec.mutates if i < len(op.inputs)]
        self.runs: dict[tuple[TensorType, ...], IsolatedRun] = {}

    def run(self, arrays: Sequence[Array], step: int) -> list[Any]:
        """Return the outputs of the op, then the variables that the op overwrote."""
        types = tuple(tensor_type(x.shape, as_dtype(x.dtype)) for x in arrays)
        values = {f"in{i}": arrays[i] for i in self.mutated}
        if types not in self.runs:
            self.runs[types] = self._compiled(types, values)
        run = self.runs[types]
        run.variables.assign(values)
        fed = [x for i, x in enumerate(arrays) if i not in self.mutated]
        results = run.run(fed, step)
        after = run.variables.values()
        return [*results.values(), *(after[name] for name in values)]

    def _compiled(self, types: tuple[TensorType, ...], values: dict[str, Array]) -> IsolatedRun:
        ops: dict[str, Op] = {}
        on_host = self.session.registry.host_numbers
        for i in range(len(types)):
            kind = "variable" if i in self.mutated else "input"
            placement = self.spec.input_placement(self.op.placement, i, on_host)
            ops[f"in{i}"] = Op(f"in{i}", kind, (), Attrs(), placement)
        read = {name: (type_,) for name, type_ in zip(ops, types, strict=True)}
        op = replace(self.op, inputs=tuple(Value(name, 0) for name in ops), control=())
        graph = Graph(
            {**ops, op.name: op}, {**read, op.name: self.types}, origins={op.name: self.origin}
        )
        fed = [name for name in ops if name not in values]
        return simulate_graph(self.session, graph, fed, values, self.options, {})


def same_bits(a: Array, b: Array) -> bool:
    """Return whether two arrays have the same shape and bits; all NaN values count as equal.

    >>> nan = np.array([np.nan, 0.0])
    >>> same_bits(nan, nan), same_bits(nan, -nan), same_bits(np.ones(2), np.ones(1))
    (True, True, False)
    """
    if a.shape != b.shape:
        return False
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind not in "iub"))


def states(found: Variables, wanted: Variables) -> list[tuple[Array, Array]]:
    """Pair the variables of two runs, device by device; in one run, devices may share variables."""
    parts = found.parts()
    shared = {(name, region): array for (name, _), (region, array) in parts.items()}
    pairs = [
        (parts[name, device][1] if (name, device) in parts else shared.get((name, region)), array)
        for (name, device), (region, array) in wanted.parts().items()
    ]
    return [(held, array) for held, array in pairs if held is not None]
