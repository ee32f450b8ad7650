"""Streams: waits are sufficient and acyclic, and threads respect them."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import processes
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_core.base.dtypes import float32
from flow_core.base.errors import GraphError, PlanError
from flow_core.base.hazards import Access, find_waits
from flow_core.comm.liveness import check_liveness
from flow_core.compiler.schedule.pipeline import micro_batches
from flow_core.compiler.schedule.streams import Timetable, stream_name, timetable, useful_workers
from flow_core.ir.graph import NO_ATTRS, Graph, GraphBuilder, Op, Origin, Value, tensor_type
from flow_core.plan import Plan, Task
from flow_core.runtime.streams import (
    LONG,
    TRIALS,
    OverlapIfLong,
    StreamRunner,
    own_tasks,
    segments,
)
from flow_core.sharding.topology import Device, Placement

ranges = st.tuples(st.integers(0, 12), st.integers(1, 5)).map(lambda t: (t[0], t[0] + t[1]))
accesses = st.builds(
    lambda space, r, writes: Access(space, *r, writes), st.sampled_from("ab"), ranges, st.booleans()
)
calm = settings(max_examples=60)
programs = st.lists(
    st.tuples(st.integers(0, 3), st.lists(accesses, min_size=1, max_size=3)), max_size=25
)


def task(stream: int, waits: Sequence[int] = (), op: str = "t") -> Task:
    return Task(
        op, "t", {}, (), (), None, Device("cpu", 0, 0), "t", stream=stream, waits=tuple(waits)
    )


def conflict(a: Access, b: Access) -> bool:
    overlap = a.space == b.space and a.low < b.high and b.low < a.high
    return overlap and (a.writes or b.writes)


def ordered(streams: Sequence[int], waits: Sequence[tuple[int, ...]]) -> list[set[int]]:
    """Return for each task all tasks that must precede it, by brute force."""
    before: list[set[int]] = []
    for i, stream in enumerate(streams):
        direct = {j for j in range(i) if streams[j] == stream} | set(waits[i])
        before.append(direct.union(*(before[j] for j in direct)))
    return before


@calm
@given(programs)
def test_conflicting_tasks_are_ordered(program: list[tuple[int, list[Access]]]) -> None:
    streams = [stream for stream, _ in program]
    touched = [accesses for _, accesses in program]
    before = ordered(streams, find_waits(streams, touched))
    for j in range(len(program)):
        for i in range(j):
            if any(conflict(a, b) for a in touched[i] for b in touched[j]):
                assert i in before[j]


@calm
@given(programs)
def test_every_wait_is_necessary(program: list[tuple[int, list[Access]]]) -> None:
    """Waits are for conflicts with other streams, and none is implied by others."""
    streams = [stream for stream, _ in program]
    touched = [accesses for _, accesses in program]
    waits = find_waits(streams, touched)
    for j, found in enumerate(waits):
        for i in found:
            assert streams[i] != streams[j]
            assert any(conflict(a, b) for a in touched[i] for b in touched[j])
            fewer = [tuple(w for w in ws if (k, w) != (j, i)) for k, ws in enumerate(waits)]
            assert i not in ordered(streams, fewer)[j]


@calm
@given(programs, st.integers(1, 4), st.integers(0, 99))
def test_threads_respect_the_waits(
    program: list[tuple[int, list[Access]]], workers: int, seed: int
) -> None:
    streams = [stream for stream, _ in program]
    waits = find_waits(streams, [accesses for _, accesses in program])
    tasks = [task(*pair) for pair in zip(streams, waits, strict=True)]
    dice, done = random.Random(seed), []
    parts = segments(tasks)
    for part in parts:
        pause = partial(time.sleep, dice.choice([0, 0, 1e-4]))
        part.launch = lambda part=part, pause=pause: (pause(), done.extend(part.tasks))
    waiting = {i for i in range(len(parts)) if dice.random() < 0.3}
    run = StreamRunner(parts, workers, waiting=waiting)
    before = ordered(streams, waits)
    for _ in range(2):
        done.clear()
        run()
        assert sorted(done) == list(range(len(tasks)))
        position = {t: i for i, t in enumerate(done)}
        assert all(position[i] < position[j] for j, earlier in enumerate(before) for i in earlier)


def test_independent_streams_run_concurrently() -> None:
    together = threading.Barrier(2, timeout=processes.scaled(120))
    parts = segments([task(0), task(1)])
    for part in parts:
        part.launch = together.wait
    StreamRunner(parts, 2)()


def test_computation_goes_on_while_a_segment_waits_for_other_processes() -> None:
    computed = threading.Event()
    parts = segments([task(0), task(1), task(1, waits=(0,))])
    parts[0].launch = lambda: (
        computed.wait(processes.scaled(120)) or pytest.fail("no second thread")
    )
    parts[1].launch = computed.set
    StreamRunner(parts, 1, waiting={0})()


@pytest.mark.parametrize("workers", [1, 2])
def test_threads_for_waiting_do_not_compute_more_at_the_same_time(workers: int) -> None:
    lock, running, most = threading.Lock(), 0, 0

    def compute() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(1e-3)
        with lock:
            running -= 1

    parts = segments([task(stream) for stream in range(5)])
    for part in parts[1:]:
        part.launch = compute
    StreamRunner(parts, workers, waiting={0})()
    assert 1 <= most <= workers


def test_only_long_steps_overlap_with_waiting() -> None:
    counts = {"in order": 0, "overlapping": 0}

    def step(kind: str, seconds: float) -> None:
        counts[kind] += 1
        time.sleep(seconds)

    for pause, wanted in ((0.0, 0), (3 * LONG, 2)):
        counts.update({"in order": 0, "overlapping": 0})
        count = 1 if pause else 10**6
        run = OverlapIfLong(
            partial(step, "in order", pause), partial(step, "overlapping", 0), count
        )
        for _ in range(TRIALS + 2):
            run()
        assert counts == {"in order": TRIALS + 2 - wanted, "overlapping": wanted}


def test_steps_run_while_the_interpreter_exits() -> None:
    """Pools start no work then, but the steps of pending asynchronous calls still run."""
    program = """
import atexit, sys
from flow_core.plan import Task
from flow_core.runtime.streams import StreamRunner, segments
from flow_core.sharding.topology import Device

device = Device("cpu", 0, 0)
tasks = [Task("t", "t", {}, (), (), None, device, "t", stream=i) for i in range(2)]
parts = segments(tasks)
for part in parts:
    part.launch = lambda part=part: sys.stdout.write(f"ran {part.tasks[0]}\\n")
run = StreamRunner(parts, 2)
run()
atexit.register(run)
"""
    done = processes.run([sys.executable, "-c", program])
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split("\n")) == ["", "ran 0", "ran 0", "ran 1", "ran 1"]


def test_error_ends_the_step_but_not_the_runner() -> None:
    parts = segments([task(0), task(1, [0]), task(0)])
    fails = [True]

    def first() -> None:
        if fails:
            raise ValueError(fails.pop())

    ran: list[int] = []
    parts[0].launch = first
    for part in parts[1:]:
        part.launch = partial(ran.append, part.tasks[0])
    run = StreamRunner(parts, 3)
    with pytest.raises(ValueError, match="True"):
        run()
    run()
    assert ran[-2:] in ([1, 2], [2, 1])


def plan(*tasks: Task) -> Plan:
    return Plan("job", (), (), (), tasks, (), (), {})


def test_cyclic_waits_are_rejected_before_the_run() -> None:
    check_liveness(plan(task(0), task(1, [0]), task(0, [1])))
    check_liveness(plan(task(0, [1]), task(1)))  # out of order, but acyclic
    with pytest.raises(PlanError, match=r"t 'a' waits for t 'b'.*\n.*t 'b' waits for t 'a'"):
        check_liveness(plan(task(0, [1], "a"), task(1, [0], "b")))
    with pytest.raises(PlanError, match=r"t 'a' waits for t 'c'"):
        check_liveness(plan(task(0, [2], "a"), task(1, [0], "b"), task(0, [], "c")))
    with pytest.raises(PlanError, match=r"waits \(7,\)"):
        check_liveness(plan(task(0, [7])))


def graph(*rows: tuple[str, int, tuple[str, ...]], micro_batches: int = 0) -> Graph:
    """Build a graph from op names, devices and inputs of one type, or with micro-batches."""
    type_ = tensor_type((4096,), float32)
    builder = GraphBuilder()
    for micro in range(micro_batches) if micro_batches else (None,):
        for name, device, inputs in rows:
            origin = Origin(name, micro_batch=micro)
            values = tuple(Value(str(Origin(n, micro_batch=micro)), 0) for n in inputs)
            placement = Placement.parse("gpu", f"0:{device}")
            op = Op(str(origin), "relu" if inputs else "input", values, NO_ATTRS, placement)
            builder.add(op, (type_,), origin=origin)
    return builder.build()


def seconds(op: Op) -> float:
    return 7e-6


def stages(micro: int) -> Graph:
    rows = (
        ("in", 0, ()), ("f0", 0, ("in",)), ("f1", 1, ("f0",)),
        ("f2", 2, ("f1",)), ("b2", 2, ("f2",)),
        ("b1", 1, ("b2", "f1")), ("b0", 0, ("b1", "f0")),
    )  # fmt: skip
    return graph(*rows, micro_batches=micro)


def test_stages_alternate_as_in_1f1b() -> None:
    g = stages(6)
    before = {name: {v.op for v in op.inputs} for name, op in g.ops.items()}
    rank = {name: float(i) for i, name in enumerate(g.ops)}
    table = timetable(g, before, rank, seconds)
    names = [op.name.split("/")[0] + op.name[-1] for op in table.order]
    own = {i: [n for n in names if n[1] == str(i) and n[0] in "fb"] for i in range(3)}
    assert own[2][:6] == ["f20", "b20", "f21", "b21", "f22", "b22"]
    assert own[0][:6] == ["f00", "f01", "f02", "b00", "f03", "b01"]
    assert table.span < 0.6 * table.total
    done: set[str] = set()
    for op in table.order:
        assert before[op.name] <= done
        done.add(op.name)


def pipeline_rows(stages: int, chunks: int) -> list[tuple[str, int, tuple[str, ...]]]:
    """Return forward ops, gradients of inputs and gradients of weights of all chunks."""
    last = stages * chunks - 1
    rows: list[tuple[str, int, tuple[str, ...]]] = [("in", 0, ())]
    rows += [(f"f{k}", k % stages, (f"f{k - 1}" if k else "in",)) for k in range(last + 1)]
    for k in reversed(range(last + 1)):
        dy = f"b{k + 1}" if k < last else f"f{k}"
        rows.append((f"b{k}", k % stages, tuple(dict.fromkeys((dy, f"f{k}")))))
        rows.append((f"w{k}", k % stages, (dy, f"f{k - 1}" if k else "in")))
    return rows


@pytest.mark.parametrize(
    ("stages_", "chunks", "micro"),
    [(2, 1, 8), (4, 1, 8), (4, 1, 16), (2, 2, 8), (4, 2, 8), (4, 2, 16)],
)
def test_bubbles_of_pipelines_are_those_of_their_formulas(
    stages_: int, chunks: int, micro: int
) -> None:
    """In seconds, where each op takes one: (S - 1)(F + B + W), and (S - 1)(F + B - W) of ZB-H1.

    Gradients of inputs are sent before those of weights are computed, so 1F1B has smaller bubbles,
    (S - 1)(F + B), except where a stage waits for units of several chunks.
    """
    g = graph(*pipeline_rows(stages_, chunks), micro_batches=micro)
    before = {name: {v.op for v in op.inputs} for name, op in g.ops.items()}
    rank = {name: float(i) for i, name in enumerate(g.ops)}
    busy = 3 * micro * chunks
    plain, postponed = (
        timetable(g, before, rank, lambda op: 1.0, postpone=late) for late in (False, True)
    )
    assert plain.span - busy <= (2 if chunks == 1 else 4) * (stages_ - 1)
    assert not plain.postpones
    assert postponed.span - busy == stages_ - 1
    assert postponed.postpones


@pytest.mark.parametrize("postpone", [False, True])
def test_constraints_from_an_order_keep_its_choice(postpone: bool) -> None:
    """Postponed ops keep more units open than the other order allows, which would be circular."""
    g = graph(*pipeline_rows(4, 1), micro_batches=8)
    before = {name: {v.op for v in op.inputs} for name, op in g.ops.items()}
    rank = {name: float(i) for i, name in enumerate(g.ops)}
    first = timetable(g, before, rank, lambda op: 1.0, postpone=postpone)
    last: dict[str, str] = {}
    for op in first.order:
        stream = stream_name(op)
        before[op.name] |= {last[stream]} if stream in last else set()
        last[stream] = op.name
    again = timetable(g, before, rank, lambda op: 1.0, like=first)
    assert (again.span, again.postpones) == (first.span, postpone)


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("postpone", [False, True])
def test_open_units_are_bounded(chunks: int, postpone: bool) -> None:
    """A stage holds activations of a bounded number of units, for any number of micro-batches."""
    count = 4
    g = graph(*pipeline_rows(count, chunks), micro_batches=24)
    before = {name: {v.op for v in op.inputs} for name, op in g.ops.items()}
    rank = {name: float(i) for i, name in enumerate(g.ops)}
    found = timetable(g, before, rank, lambda op: 1.0, postpone=postpone)
    held, most = [0] * count, [0] * count
    for op in found.order:
        stage = op.placement.devices[0][1]
        held[stage] += (op.name[0] == "f") - (op.name[0] == "w")
        most[stage] = max(most[stage], held[stage])
    bounds = [
        count - i if chunks == 1 else 2 * (count - 1 - i) + (chunks - 1) * count + 1
        for i in range(count)
    ]
    assert all(n <= (bounds[0] if postpone else bounds[i]) for i, n in enumerate(most))


def test_op_before_itself_is_rejected() -> None:
    g = graph(("a", 0, ()), ("b", 1, ("a",)))
    with pytest.raises(GraphError, match="before and after itself"):
        timetable(g, {"a": {"b"}, "b": {"a"}}, {"a": 0.0, "b": 1.0}, seconds)


def test_micro_batches_are_traced_through_the_graph() -> None:
    g = stages(2)
    found = micro_batches(g)
    assert found["b0/micro_1"] == 1
    assert found["in/micro_0"] == 0
    assert micro_batches(graph(("x", 0, ()), ("y", 0, ("x",)))) == {"x": -1, "y": -1}


def test_streams_are_named_by_device_and_kind() -> None:
    op = Op("x", "relu", (), NO_ATTRS, Placement.parse("gpu", "0:2"))
    assert stream_name(op) == "gpu[0:2] compute"
    assert stream_name(replace(op, type="boxing")) == "gpu[0:2] transfer"


def table(total: float, ops: int, overlap: float, streams: int = 2) -> Timetable:
    """Build a timetable whose streams take the given fraction of the total time of the ops."""
    order: list[Op] = [graph(("x", 0, ())).ops["x"]] * ops
    return Timetable(order, [], total, overlap * total, streams)


@pytest.mark.parametrize(
    ("found", "cores", "workers"),
    [
        (table(0.1, 20, 0.5), 2, 2),
        (table(0.1, 20, 0.5), 1, 1),  # there is one core
        (table(0.1, 20, 1.0), 2, 1),  # streams wait for one another
        (table(0.01, 500, 0.5), 2, 1),  # ops are short
        (table(0.1, 20, 0.3, 4), 3, 3),  # no more threads than cores
        (table(0.1, 1000, 0.25, 4), 64, 4),  # no more threads than streams
    ],
)
def test_threads_are_assigned_where_kernels_leave_cores_idle(
    found: Timetable, cores: int, workers: int
) -> None:
    assert useful_workers(found, cores) == workers


PROCESSES = 3
joint_programs = st.lists(
    st.tuples(
        st.integers(0, 3),  # the stream
        st.sets(st.integers(0, PROCESSES - 1), min_size=1),  # the participating processes
        st.sets(st.integers(1, 6), max_size=2),  # waits, as distances in tasks
    ),
    max_size=18,
)


def run_process(
    rank: int, tasks: Sequence[Task], parts: Sequence[set[int]], meet: Sequence[threading.Barrier]
) -> list[int]:
    """Run the tasks of a process in three threads; exchanges wait for all participants."""
    positions, own = own_tasks(
        tasks, lambda t: (rank in parts[int(t.op)], len(parts[int(t.op)]) > 1)
    )
    done: list[int] = []

    def launch(position: int) -> None:
        if len(parts[position]) > 1:
            meet[position].wait(processes.scaled(20))
        done.append(position)

    found = segments(own)
    for segment in found:
        todo = [partial(launch, positions[i]) for i in segment.tasks]
        segment.launch = lambda todo=todo: [run() for run in todo]
    StreamRunner(found, 3)()
    return done


@pytest.mark.slow
@calm
@given(joint_programs)
def test_processes_exchange_in_plan_order(
    program: list[tuple[int, set[int], set[int]]],
) -> None:
    parts = [members for _, members, _ in program]
    tasks = [
        task(stream, sorted({i - back for back in waits if back <= i}), str(i))
        for i, (stream, _, waits) in enumerate(program)
    ]
    meet = [threading.Barrier(len(members)) for members in parts]
    with ThreadPoolExecutor(PROCESSES) as pool:
        runs = [pool.submit(run_process, r, tasks, parts, meet) for r in range(PROCESSES)]
        found = [run.result() for run in runs]
    for rank, done in enumerate(found):
        assert sorted(done) == [i for i, members in enumerate(parts) if rank in members]
        shared = [i for i in done if len(parts[i]) > 1]
        assert shared == sorted(shared)
