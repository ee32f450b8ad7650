"""Proofs that steps end: seeded circles of waits are refused, and the plans of programs are not."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from parallel_forms import emulated
from parallel_networks import NETWORKS, train_job
from run_forms import FORMS

from flow_core.base import planning
from flow_core.base.errors import PlanError
from flow_core.cli.app import cli
from flow_core.comm.exchange import BOXING
from flow_core.comm.liveness import EVENT, EXCHANGE, ORDER, check_liveness
from flow_core.frontend.session.default import clear_default_session
from flow_core.plan import Plan, Task
from flow_core.sharding.topology import Device

NAMES = ("data", "columns", "pipeline", "pipeline-data", "zero", "zero-pipeline", "zero-again")


@cache
def plan_of(form: str, network: str = "mlp") -> Plan:
    clear_default_session()
    with emulated(4):
        return train_job(NETWORKS[network], FORMS[form]).plan()


def by_index(device: Device) -> int:
    return device.index


def reordered(plan: Plan, order: Sequence[int]) -> Plan:
    """Return a plan with its tasks in another order, and the same waits."""
    place = {old: new for new, old in enumerate(order)}
    tasks = [
        replace(plan.tasks[old], waits=tuple(sorted(place[i] for i in plan.tasks[old].waits)))
        for old in order
    ]
    return replace(plan, tasks=tuple(tasks))


def needs(plan: Plan) -> list[set[int]]:
    """Return, for each task, all tasks that must end before it starts."""
    found: list[set[int]] = []
    last: dict[int, int] = {}
    for position, task in enumerate(plan.tasks):
        direct = {*task.waits, *([last[task.stream]] if task.stream in last else [])}
        found.append(direct.union(*(found[i] for i in direct)))
        last[task.stream] = position
    return found


def add_event(plan: Plan, rng: random.Random) -> Plan:
    """Let a task wait for one that needs it."""
    pairs = [(a, b) for b, before in enumerate(needs(plan)) for a in before]
    first, later = rng.choice(pairs)
    tasks = list(plan.tasks)
    tasks[first] = replace(tasks[first], waits=(*tasks[first].waits, later))
    return replace(plan, tasks=tuple(tasks))


def swap_on_a_stream(plan: Plan, rng: random.Random) -> Plan:
    """Start a task before one of its stream that it needs by events."""
    pairs = []
    for later, task in enumerate(plan.tasks):
        by_events = set().union(*({i} | needs(plan)[i] for i in task.waits))
        pairs += [(a, later) for a in by_events if plan.tasks[a].stream == task.stream]
    return _swapped(plan, *rng.choice(pairs))


def swap_exchanges(plan: Plan, rng: random.Random) -> Plan:
    """Let processes come to an exchange before one that it needs, on another stream."""

    def meets(task: Task) -> set[Device]:
        found = {plan.buffers[i].device for i in (*task.inputs, *task.outputs)}
        return found if task.type == BOXING and len(found) > 1 else set()

    before = needs(plan)
    pairs = [
        (first, later)
        for later, task in enumerate(plan.tasks)
        for first in before[later]
        if meets(task) & meets(plan.tasks[first]) and task.stream != plan.tasks[first].stream
    ]
    return _swapped(plan, *rng.choice(pairs))


def _swapped(plan: Plan, first: int, later: int) -> Plan:
    order = [*range(len(plan.tasks))]
    order.insert(first, order.pop(later))
    return reordered(plan, order)


def take_a_slot(plan: Plan, rng: random.Random) -> Plan:
    """Take the tokens of the registers between the actors of steps."""
    registers = [replace(r, initial=0) for r in plan.registers]
    i = rng.randrange(len(registers))
    registers[i] = replace(registers[i], slots=0 if rng.random() < 0.5 else registers[i].slots)
    return replace(plan, registers=tuple(registers))


CIRCLES = [
    *((add_event, NAMES[i % len(NAMES)], i) for i in range(10)),
    *((swap_on_a_stream, ("pipeline", "pipeline-data", "zero")[i % 3], i) for i in range(8)),
    *((swap_exchanges, ("pipeline", "pipeline-data", "zero-pipeline")[i % 3], i) for i in range(8)),
    *((take_a_slot, NAMES[i], i) for i in range(4)),
]


@pytest.mark.parametrize(("mistake", "form", "seed"), CIRCLES)
def test_a_seeded_circle_is_refused(mistake: object, form: str, seed: int) -> None:
    assert callable(mistake)
    plan = mistake(plan_of(form), random.Random(seed))
    with pytest.raises(PlanError, match="a circle:") as caught:
        check_liveness(plan, by_index)
    lines = str(caught.value.found).splitlines()[1:]
    assert len(lines) >= 1
    assert all(" waits for " in line for line in lines)
    if mistake is not take_a_slot:
        assert f"{Path(train_job.__code__.co_filename).name}:" in "".join(lines)
        names = [line.split("'")[1] for line in lines]
        assert [line.split("'")[3] for line in lines] == [*names[1:], names[0]]


def test_a_circle_through_processes_is_none_in_a_single_one() -> None:
    for seed in range(10):  # some swaps are a circle in any case
        plan = swap_exchanges(plan_of("pipeline"), random.Random(seed))
        with suppress(PlanError):
            found = check_liveness(plan)
            break
    assert found[EXCHANGE] == 0
    with pytest.raises(PlanError, match="the next exchange of rank"):
        check_liveness(plan, by_index)


@pytest.mark.slow
@pytest.mark.representative("mlp", "the other networks have the same kinds of tasks")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("network", NETWORKS)
def test_no_false_alarm(network: str, form: str) -> None:
    plan = plan_of(form, network)
    for processes in (1, 2, 4):
        count = check_liveness(plan, lambda device, n=processes: device.index * n // 4)
        assert count[EVENT] == sum(len(task.waits) for task in plan.tasks)
        assert count[ORDER] == len(plan.tasks) - len(plan.streams)
        if processes == 1:
            assert count[EXCHANGE] == 0


# ------------------------------------------------------------------------------------- command


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_active", [])
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    script = tmp_path / "job.py"
    script.write_text("""
import oneflow as flow
import oneflow.typing as tp


@flow.global_function()
def job(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
    with flow.scope.placement("gpu", "0:0-3"):
        return flow.math.reduce_sum(flow.math.exp(x), axis=[0])
""")
    with emulated(4):
        table = CliRunner().invoke(cli, ["verify", "--waits", str(script)])
    assert table.exit_code == 0, table.output
    assert "no tasks wait for each other" in table.output
    with emulated(4):
        found = json.loads(
            CliRunner().invoke(cli, ["verify", "--waits", "--json", str(script)]).output
        )
    assert found["ok"]
    assert [proof["processes"] for proof in found["proofs"]] == [1, 2, 3, 4]
    assert found["proofs"][0]["exchanges"] == 0


def test_the_command_prints_a_circle_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = swap_exchanges(plan_of("pipeline"), random.Random(0))

    class Job:
        name, line = "train", "train.py:9"

        def compile(self) -> Any:
            return SimpleNamespace(plan=plan)

    monkeypatch.setattr("flow_core.cli.app.job_of", lambda target, args: Job())
    monkeypatch.setattr(planning, "_active", [])
    done = CliRunner().invoke(cli, ["verify", "--waits", "--json", "train.py"])
    assert done.exit_code == 1, done.output
    found = json.loads(done.output)
    assert not found["ok"]
    assert len(found["proofs"]) < 4
    waits = found["circle"]
    assert [link["waits_for"] for link in waits] == [
        *(link["waiting"] for link in waits[1:]), waits[0]["waiting"],
    ]  # fmt: skip
    assert all(link["why"] for link in waits)
    assert any(Path(train_job.__code__.co_filename).name in link["line"] for link in waits)
    text = CliRunner().invoke(cli, ["verify", "--waits", "train.py"])
    assert text.exit_code == 1
    assert "a circle:" in text.output
