"""Memory shared between devices: the same bits as with separate memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from flow_core.base.dtypes import float32
from flow_core.base.errors import GraphError
from flow_core.comm.exchange import BOXING
from flow_core.compiler.lower import ordering
from flow_core.compiler.lower.inputs import CompileOptions
from flow_core.compiler.lower.tasks import lower
from flow_core.compiler.memory.device_batching import with_device_batching
from flow_core.compiler.memory.replica_dedup import (
    MOST_WALKS,
    NO_DEDUP,
    ReplicaDedup,
    find_sharing,
)
from flow_core.ir.graph import Attrs, Graph, GraphBuilder, Op, Origin, Value, tensor_type
from flow_core.ops.data_movement.boxing import boxing_attrs
from flow_core.plugins.host import load_plugins
from flow_core.plugins.registry import Registry
from flow_core.runtime.executable import Executable
from flow_core.sharding.topology import Device, Placement

SIZE = 5
TYPE = tensor_type((SIZE,), float32)


@cache
def registry() -> Registry:
    return load_plugins()


@dataclass
class Program:
    """A physical graph under construction; each logical value has one value per device.

    Attributes:
        devices: the number of devices.
        builder: the graph builder.
        values: all logical values so far.
        variables: names of the parts of each variable.
    """

    devices: int
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    values: list[list[Value]] = field(default_factory=list)
    variables: list[list[str]] = field(default_factory=list)

    def each(self, type_: str, *operands: Sequence[Value], **attrs: Any) -> list[Value]:
        """Add an op on every device; list attributes hold one value per device."""
        name = f"{type_}{len(self.builder.ops)}"
        found = []
        for rank in range(self.devices):
            own = {k: v[rank] if isinstance(v, list) else v for k, v in attrs.items()}
            placement = Placement("cpu", ((0, rank),))
            inputs = tuple(values[rank] for values in operands)
            op = Op(f"{name}@{rank}", type_, inputs, Attrs(own), placement)
            types = () if type_ == "assign" else (TYPE,)
            origin = Origin(name, rank)
            self.builder.add(op, types, effect=type_ == "assign", origin=origin)
            found.append(op.output())
        return found

    def exchange(self, values: Sequence[Value], collective: str) -> list[Value]:
        """Send every device the sum, the first device's value, or the next device's value."""
        p = self.devices
        box: Any = lambda source, target: (source, (0,), target, (0,), (SIZE,), True)  # noqa: E731
        blocks: tuple[Any, ...] = ()
        if collective == "broadcast":
            values, blocks = values[:1], tuple(box(0, target) for target in range(p))
        elif collective == "all_to_all":
            blocks = tuple(box((target + 1) % p, target) for target in range(p))
        attrs = boxing_attrs(collective, "float32", ((SIZE,),) * p, blocks=blocks)
        placement = Placement("cpu", tuple((0, rank) for rank in range(p)))
        name = f"{collective}{len(self.builder.ops)}"
        op = Op(name, BOXING, tuple(values), Attrs(attrs), placement)
        self.builder.add(op, (TYPE,) * p)
        return [op.output(rank) for rank in range(p)]

    def step(self, kind: str, a: int, b: int) -> None:
        """Add an op on earlier values, which are counted from the last."""
        one, other = (self.values[-1 - i % len(self.values)] for i in (a, b))
        if kind == "update":
            names = self.variables[a % len(self.variables)]
            self.each("assign", [Value(name, 0) for name in names], other)
        elif kind in ("all_reduce", "broadcast", "all_to_all"):
            self.values.append(self.exchange(one, kind))
        elif kind == "apart":
            operand = [float(rank + 1) for rank in range(self.devices)]
            self.values.append(self.each("scalar_mul", one, operand=operand))
        elif kind == "negative":
            self.values.append(self.each("negative", one))
        else:
            self.values.append(self.each("broadcast_add", one, other))


KINDS = ("negative", "add", "apart", "update", "all_reduce", "broadcast", "all_to_all")
STEPS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 3), st.integers(0, 5)), max_size=12
)


def program(devices: int, steps: Sequence[tuple[str, int, int]], results: Sequence[int]) -> Program:
    made = Program(devices)
    regions = [((rank * SIZE, (rank + 1) * SIZE),) for rank in range(devices)]
    made.values.append(made.each("input", of="x", region=regions))
    for _ in range(2):
        values = made.each("variable", shape=(SIZE,), dtype="float32")
        made.variables.append([value.op for value in values])
        made.values.append(values)
    for step in steps:
        made.step(*step)
    last = [v for i in results for v in made.values[-1 - i % len(made.values)]]
    made.builder.results = tuple(dict.fromkeys(last))
    return made


def shared(made: Program, graph: Graph) -> ReplicaDedup:
    return find_sharing(graph, registry().ops, [[names] for names in made.variables])


def run(
    made: Program, graph: Graph, sharing: ReplicaDedup, workers: int
) -> tuple[list[Any], dict[str, Any], Any]:
    """Return the results of three steps, all variables after them, and the bytes sent."""
    held = {
        name: np.arange(SIZE, dtype="f4") + i
        for i, names in enumerate(made.variables)
        for name in names
    }
    options = CompileOptions(sharing=sharing, workers=workers)
    plan = lower(graph, registry(), ["x"], "job", options)
    for task in plan.tasks:  # each computed value is in memory of its own
        owned = (plan.buffers[i].home for i in task.outputs if task.type != BOXING)
        assert not any(owned)
    executable = Executable(
        plan,
        registry(),
        lambda device: registry().driver(Device("cpu", 0, device.index)),
        lambda name, device, region, shape: held[name].reshape(shape),
        comm=registry().comm,
    )
    rng = np.random.default_rng(0)
    fed = (rng.integers(-4, 5, SIZE * made.devices).astype("f4") for _ in range(3))
    found = [executable.run([array]) for array in fed]
    after = {name: held[sharing.same.get(Value(name, 0), Value(name, 0)).op] for name in held}
    return [x for results in found for x in results], after, executable.sent()


@pytest.mark.slow
@settings(max_examples=200)
@given(
    devices=st.integers(2, 3),
    steps=STEPS,
    results=st.lists(st.integers(0, 12), min_size=1, max_size=3),
    workers=st.sampled_from((1, 1, 3)),
)
def test_sharing_preserves_all_bits(
    devices: int,
    steps: list[tuple[str, int, int]],
    results: list[int],
    workers: int,
) -> None:
    made = program(devices, steps, results)
    graph = made.builder.build()
    try:
        apart = run(made, graph, NO_DEDUP, workers)
    except GraphError:  # two exchanged variables: each update would have to precede the other
        reject()
    together = run(made, graph, shared(made, graph), workers)
    for a, b in zip(together[0], apart[0], strict=True):
        np.testing.assert_array_equal(a, b)
    for name, value in apart[1].items():
        np.testing.assert_array_equal(together[1][name], value, err_msg=name)
    assert together[2] == apart[2]


def test_rows_of_all_devices_are_computed_together() -> None:
    """An addend is equal on all devices only if it is broadcast along the rows."""
    made = program(3, [("negative", 2, 0), ("add", 0, 2), ("all_reduce", 1, 0)], [0, 1])
    graph, sharing = made.builder.build(), shared(made, made.builder.build())
    found = with_device_batching(graph, sharing, registry().ops, registry().find_kernel)
    assert [graph.ops[name].type for name in found.batched] == ["negative"]
    (first,) = found.batched
    assert found.executes[first] == tuple(v.op for v in made.values[3][1:])
    assert found.adjacent[made.values[0][0]] == tuple(made.values[0])
    assert set(found.executes[first]) <= found.idle()


def test_ops_that_would_depend_on_themselves_are_not_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = program(2, [("negative", 2, 0), ("all_reduce", 0, 0), ("negative", 0, 0)], [0])
    graph = made.builder.build()
    wrong = with_device_batching(graph, shared(made, graph), registry().ops, registry().find_kernel)
    first, *_ = wrong.batched
    circle = replace(wrong, executes={**wrong.executes, first: (made.values[-1][0].op,)})
    monkeypatch.setattr(ordering, "with_device_batching", lambda *_: circle)
    options = CompileOptions(sharing=shared(made, graph), workers=1)
    plan = lower(graph, registry(), ["x"], "job", options)
    assert len([t for t in plan.tasks if t.type == "negative"]) == 2 + 1


def test_ops_that_only_read_weights_run_once() -> None:
    made = program(3, [("negative", 1, 0), ("add", 0, 1), ("update", 0, 0)], [0])
    sharing = shared(made, made.builder.build())
    assert len(sharing.merged) == 3 * 2
    assert sharing.shared_variables == {n for names in made.variables for n in names[1:]}


def test_sum_of_different_values_is_equal_on_all_devices() -> None:
    made = program(3, [("all_reduce", 2, 0), ("update", 1, 0), ("update", 0, 0)], [0])
    sharing = shared(made, made.builder.build())
    assert len(sharing.shared_variables) == 4
    assert {value.index for value in sharing.same if value.op.startswith("all_reduce")} == {1, 2}


def test_search_terminates_when_variables_diverge_one_after_another() -> None:
    """Each variable is updated by the previous one, so that each pass finds one divergence."""
    made = Program(2)
    made.values.append(made.each("input"))
    for _ in range(3 * MOST_WALKS):
        values = made.each("variable", shape=(SIZE,), dtype="float32")
        made.each("assign", values, made.values[-1])
        made.variables.append([value.op for value in values])
        made.values.append(values)
    assert shared(made, made.builder.build()) == NO_DEDUP


@pytest.mark.parametrize("kind", ["apart", "all_to_all"])
def test_different_updates_keep_variables_separate(kind: str) -> None:
    """The first variable is updated by a per-device value, the others by values derived from it."""
    steps = [(kind, 2, 0), ("update", 0, 0), ("negative", 2, 0), ("update", 1, 0)]
    made = program(2, steps, [0])
    sharing = shared(made, made.builder.build())
    assert sharing == NO_DEDUP
