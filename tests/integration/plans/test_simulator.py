"""Simulated steps: pipelines against their formula, memory against the arena, and reports."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import processes
import pytest
from suite import work

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.formats import trace_file
from flow_core.comm.exchange import BOXING
from flow_core.costs.clock import Step, simulate_step
from flow_core.costs.links import Link, LinkModel
from flow_core.costs.model import DEFAULT, CostModel, DeviceModel
from flow_core.costs.task_costs import TaskCosts
from flow_core.costs.topology_file import read_topology, topology_text
from flow_core.frontend.session.session import default_session
from flow_core.observe.simulator.memory import memory_of
from flow_core.observe.simulator.probe import probe
from flow_core.observe.simulator.report import Simulated, critical_lines, trace_events
from flow_core.observe.simulator.what_if import what_if
from flow_core.plan import Task

GPU = DeviceModel(flops=1e13, bandwidth=1e12, held=0.0, launch=0.0)
FAST = LinkModel((Link("wire", "all", 0.0, 1e15),), ("ring", "tree"))
CLUSTER = CostModel("cluster", "a test", FAST, {"null": GPU, "cpu": GPU}, step=0.0)

HOSTED = CostModel("host", "a test", FAST, {"cpu": GPU}, step=0.0)


class Products(TaskCosts):
    """Costs in which every matrix product takes a second, and nothing else takes time."""

    def seconds(self, task: Task) -> float:
        return float("matmul" in task.type)


def pipeline(stages: int, micro_batches: int, width: int = 64) -> Any:
    """Return a job with one matrix product per stage."""
    flow.clear_default_session()
    config = flow.function_config()
    config.train.num_gradient_accumulation_steps(micro_batches)

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((8 * micro_batches, width))) -> tp.Numpy:
        h = x
        for i in range(stages):
            with flow.scope.placement("null", f"0:{i}"):
                init = flow.random_normal_initializer()
                h = flow.matmul(h, flow.get_variable(f"w{i}", (width, width), initializer=init))
        with flow.scope.placement("null", f"0:{stages - 1}"):
            loss = flow.math.reduce_mean(h)
            flow.optimizer.SGD(0.1, momentum=0).minimize(loss)
        return loss

    return job


def step_of(compiled: Any, model: CostModel = CLUSTER, kind: type[TaskCosts] = TaskCosts) -> Step:
    return simulate_step(kind(compiled.plan, compiled.request.registry.ops, model))


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (2, 8), (4, 8)])
def test_bubble_of_a_pipeline_is_that_of_its_formula(stages: int, micro_batches: int) -> None:
    """A stage does a forward and two backward products; the first one has no gradient of x."""
    step = step_of(pipeline(stages, micro_batches).compile(), kind=Products)
    ideal = 3 * (micro_batches + stages - 1)
    assert ideal - stages <= step.seconds <= ideal
    last = max(step.lanes, key=lambda lane: lane.computing)
    assert last.computing == 3 * micro_batches
    several = simulate_step(
        replace(step.costs, model=HOSTED), stages
    )  # exchanges overlap there, too
    assert several.seconds == pytest.approx(step.seconds)
    assert {lane.name for lane in several.lanes} == {f"process {i}" for i in range(stages)}
    for lane in step.lanes:
        assert lane.computing + lane.exposed + lane.bubble == pytest.approx(step.seconds)


def test_processes_share_the_cores_of_a_machine() -> None:
    """Of four stages on two cores, two compute at a time."""
    step = step_of(pipeline(4, 8).compile(), HOSTED, Products)
    total, found = 0.0, dict[int, float]()
    for cores in (0, 1, 2, 4):
        costs = replace(step.costs, model=replace(HOSTED, cores=cores))
        total = sum(map(costs.seconds, costs.plan.tasks))
        found[cores] = simulate_step(costs, 4).seconds
    assert found[0] == found[4] < found[2] < found[1] == pytest.approx(total)
    assert total / 2 <= found[2] <= total / 2 + 4


def data_parallel(machines: int, each: int, rows: int) -> Any:
    flow.clear_default_session()
    flow.config.machine_num(machines)

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((rows, 256))) -> tp.Numpy:
        with flow.scope.placement("null", [f"{m}:0-{each - 1}" for m in range(machines)]):
            h = x
            for i in range(3):
                init = flow.random_normal_initializer()
                w = flow.get_variable(f"w{i}", (256, 256), initializer=init)
                h = flow.math.tanh(flow.matmul(h, w))
            loss = flow.math.reduce_mean(h)
            flow.optimizer.SGD(0.1, momentum=0.9).minimize(loss)
        return loss

    return job


def test_classes_take_as_long_as_all_devices() -> None:
    links = LinkModel((Link("in", "machine", 1e-6, 1e11), Link("net", "all", 1e-5, 1e10, 2e10)))
    model = replace(CLUSTER, links=links)
    job = data_parallel(2, 4, 64)
    every = {a.device for a in job.compile().plan.arenas}
    whole, part = job.compile_classes(*every), job.compile_classes()
    assert len(part.plan.arenas) < 8 <= len(whole.plan.arenas)
    assert step_of(part, model).seconds == pytest.approx(step_of(whole, model).seconds, rel=1e-6)


def test_a_thousand_devices_take_hardly_more_work_than_sixteen() -> None:
    def simulate(machines: int) -> None:
        flow.clear_default_session()
        assert step_of(data_parallel(machines, 8, 32 * machines).compile_classes()).seconds > 0

    simulate(3)  # imports modules
    assert work.calls(lambda: simulate(128)) < 1.5 * work.calls(lambda: simulate(2))


@pytest.mark.parametrize("make", [lambda: pipeline(2, 4), lambda: data_parallel(1, 2, 64)])
def test_memory_never_exceeds_the_arena(make: Callable[[], Any]) -> None:
    job = make()
    compiled = job.compile_classes(*(a.device for a in job.compile().plan.arenas))
    for memory in memory_of(step_of(compiled)):
        (arena,) = (a for a in compiled.plan.arenas if a.device == memory.device)
        assert 0 < memory.peak[1] <= arena.nbytes == memory.arena
        assert memory.live[-1][1] == 0


def simulated(job: Any, model: CostModel) -> Simulated:
    compiled = job.compile()
    step = step_of(compiled, model)
    cases = tuple(what_if(step, 1, lambda: job.compile_scaled(2).plan))
    return Simulated(step, memory_of(step), cases, 1, len(compiled.plan.arenas))


def test_what_if_changes_the_step_as_expected() -> None:
    slow = replace(CLUSTER, links=LinkModel((Link("wire", "all", 1e-6, 1e9),)))
    job = data_parallel(1, 4, 64)
    found = simulated(job, slow)
    cases = {case.name: case for case in found.cases}
    assert list(cases) == ["twice the batch", "half the bandwidth", "a slow device", "a slow link"]
    for case in cases.values():
        assert case.seconds is not None
        assert case.seconds > found.step.seconds
    assert job.compile().plan.fed[0][1][0] == (0, 16)  # the job itself keeps its batch
    transfers = [
        end - start
        for task, (start, end) in zip(job.plan().tasks, found.step.spans, strict=True)
        if task.type == BOXING
    ]
    half = cases["half the bandwidth"].seconds
    assert half is not None
    assert half - found.step.seconds <= sum(transfers)


def test_critical_path_has_no_gaps_and_names_lines() -> None:
    step = simulated(data_parallel(1, 4, 64), CLUSTER).step
    ends = [step.spans[i] for i in step.path]
    assert ends[0][0] == 0.0
    for (_, end), (start, _) in pairwise(ends):
        assert start == pytest.approx(end)
    assert ends[-1][1] == step.seconds
    rows = critical_lines(step)
    assert sum(seconds for _, seconds, _, _ in rows) == pytest.approx(step.seconds)
    assert any(Path(__file__).name in line for line, *_ in rows)


def test_reports_are_tables_json_and_a_trace(tmp_path: Path) -> None:
    found = simulated(data_parallel(1, 2, 64), DEFAULT)
    text = " ".join(table.title for table in found.tables())
    assert "in the simulation" in text
    assert "costs: default (constants" in text
    data = json.loads(found.to_json())
    assert data["seconds"] == found.step.seconds
    assert len(data["tasks"]) == len(found.step.costs.plan.tasks)
    trace_file.write(tmp_path / "trace.json", trace_events(found))
    events = trace_file.read(tmp_path / "trace.json")
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == len(found.step.costs.plan.tasks)
    assert max(e["ts"] + e["dur"] for e in spans) / 1e6 <= found.step.seconds * 1.001
    assert {event["ph"] for event in events} >= {"X", "M", "s", "f", "C"}


@pytest.mark.slow
@pytest.mark.parametrize("machines", [1, 2])
def test_probe_measures_what_a_file_describes(machines: int, tmp_path: Path) -> None:
    found = probe(default_session(), machines)
    assert [link.joins for link in found.links.classes] == ["machine", "all"][2 - machines :]
    for link in found.links.classes:
        assert 0 <= link.latency < 1
        assert 1e6 < link.bandwidth < 1e13
    core = found.device("cpu")
    assert 1e8 < core.flops < 1e14
    assert 0 < core.launch < 0.1
    path = tmp_path / "links.toml"
    path.write_text(topology_text(found))
    assert read_topology(path) == found


SCRIPT = """
import oneflow as flow
import oneflow.typing as tp

@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((1024, 64))) -> tp.Numpy:
    w = flow.get_variable("w", (64, 64), initializer=flow.random_normal_initializer())
    loss = flow.math.reduce_mean(flow.matmul(x, w))
    flow.optimizer.SGD(0.1, momentum=0).minimize(loss)
    return loss
"""


@pytest.mark.slow
def test_command(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SCRIPT)
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def flow_command(*args: str) -> str:
        command = [sys.executable, "-m", "flow_core.cli", *args]
        return processes.run(command, cwd=tmp_path, env=env, check=True).stdout

    first = flow_command("plan", "--simulate", "--json", "net.py")
    assert json.loads(first)["measured_kernels"] > 0
    again = json.loads(flow_command("plan", "--simulate", "--json", "net.py"))
    assert again["seconds"] == json.loads(first)["seconds"]  # measured kernels are kept
    flow_command("topology", "--output", "links.toml")
    many = flow_command(
        "plan", "--simulate", "--topology", "links.toml", "--devices", "128x8", "--trace", "t.json",
        "net.py",
    )  # fmt: skip
    assert "on 1,024 devices" in many
    assert "t.json: open it" in many
    assert trace_file.read(tmp_path / "t.json")
