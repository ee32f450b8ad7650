"""Looking at plans: the ledger, budgets, saved plans, differences."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import BudgetError, FlowError, PlanError
from flow_core.observe.diff import diff_tables
from flow_core.observe.document import PlanDocument, document
from flow_core.observe.streams import flow_rows, stream_rows
from flow_core.observe.tables import joined
from flow_core.observe.text import plan_report, plan_tables
from flow_core.plan import Plan, Transfer
from flow_core.plugins.host import default_registry

HERE = Path(__file__).name


def make(devices: str = "0:0-3", **hint: Any) -> Any:
    hint = {"kernel_initializer": flow.random_normal_initializer(), **hint}

    @flow.global_function(type="train")
    def job(
        x: tp.Numpy.Placeholder((8, 4)), y: tp.Numpy.Placeholder((8,), dtype=flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement("cpu", devices):
            x = flow.layers.dense(x, 8, activation=flow.nn.relu, name="hidden", **hint)
            x = flow.layers.dense(x, 4, name="output")
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, x)
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(rate, momentum=0).minimize(loss)
        return loss

    return job


def documents(*jobs: Any) -> list[PlanDocument]:
    found = []
    for how in jobs:
        found.append(document(make(**how)))
        flow.clear_default_session()
    return found


def test_the_ledger_is_part_of_the_plan() -> None:
    plan = make().plan()
    gathered = [e for e in plan.ledger if e.value == "hidden-matmul/grad/matmul:0"]
    assert sum(e.nbytes for e in gathered) == 2 * 3 * 8 * 4 * 4  # an all-reduce of the gradient
    assert all(HERE in e.line for e in plan.ledger)
    assert plan.bytes_per_step == sum(e.nbytes for e in plan.ledger) > 0


def test_a_budget_that_is_kept() -> None:
    plan = make().plan()
    plan.assert_budget(bytes_per_step=plan.bytes_per_step, no=("all_to_all", "copy_h2d"))
    flow.clear_default_session()
    make("0:0").plan().assert_budget(bytes_per_step=0, no="slice")


def test_too_many_bytes_are_named_by_line_and_largest_first() -> None:
    plan = make().plan()
    with pytest.raises(AssertionError, match="bytes per step") as caught:
        plan.assert_budget(bytes_per_step=plan.bytes_per_step - 1)
    assert isinstance(caught.value, BudgetError)
    lines = [line for line in str(caught.value).splitlines() if HERE in line]
    counts = [int(line.split()[-2].replace(",", "")) for line in lines]
    assert counts == sorted(counts, reverse=True)
    assert sum(counts) == plan.bytes_per_step


def test_a_step_that_does_not_exist_is_no_budget() -> None:
    with pytest.raises(PlanError, match="no step is called 'allreduce'") as caught:
        make().plan().assert_budget(no="allreduce")
    assert "did you mean all_reduce" in str(caught.value)


def test_steps_of_some_devices_are_found_where_others_do_something_else() -> None:
    plan = replace(make("0:0").plan(), ledger=(mixed("send_recv+all_gather"),))
    plan.assert_budget(no="all_reduce")
    with pytest.raises(BudgetError, match="none by send_recv"):
        plan.assert_budget(no="send_recv")


def mixed(step: str) -> Transfer:
    return Transfer("x:0", (step,), "gpu[0:0-2] S(0)", "gpu[0:0-3] B", 8, 1e-6)


def test_steps_that_must_not_be_there() -> None:
    plan = make(model_distribute=flow.distribute.split(0)).plan()
    steps = {step for entry in plan.ledger for step in entry.steps}
    step = min(steps)
    with pytest.raises(BudgetError, match=f"none by {step}") as caught:
        plan.assert_budget(no=step)
    offending = [e for e in plan.ledger if step in e.steps]
    assert all(str(e) in str(caught.value) for e in offending)


def test_a_document_goes_through_json() -> None:
    (doc,) = documents({})
    assert PlanDocument.from_json(doc.to_json()) == doc
    assert json.loads(doc.to_json())["plan"]["ledger"][0]["nbytes"] == doc.plan.ledger[0].nbytes


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "flow plan 0"}'])
def test_something_else_is_no_saved_plan(text: str) -> None:
    with pytest.raises(PlanError, match="reading a saved plan"):
        PlanDocument.from_json(text)


CHANGES: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "a text for a list": (("plan", "feeds"), "01", "plan.feeds"),
    "a place that is not there": (("plan", "tasks", 0, "inputs"), [10**6], "plan.tasks[0]"),
    "a place before the first": (("plan", "fetches"), [-1], "plan.fetches"),
    "a stream that is not there": (("plan", "tasks", 0, "stream"), 99, "plan.tasks[0].stream"),
    "a task that is not there": (("plan", "tasks", 0, "waits"), [10**6], "plan.tasks[0].waits"),
    "another type": (("plan", "buffers", 0, "type", "dtype", "name"), "f4,", "buffers[0].type"),
    "no size": (("plan", "buffers", 0, "type", "shape"), [-1], "buffers[0].type.shape"),
    "too large a size": (("plan", "buffers", 0, "type", "shape"), [2**40] * 3, "type.shape"),
    "an object as an attribute": (("plan", "tasks", 0, "attrs"), {"a": {}}, "attrs['a']"),
    "an unknown field": (("plan", "arenas", 0, "size"), 1, "plan.arenas[0]"),
    "an unknown op": (("ops", 1, "inputs"), [["unknown", 0]], "ops[1]"),
    "an unknown output": (("ops", -1, "inputs"), [["x", 9]], "ops["),
    "a layout too many": (("ops", 0, "wants"), ["B", "B", "B"], "ops[0].wants"),
    "a lone surrogate": (("job",), "\ud800", "job"),
    "no device": (("plan", "tasks", 0, "device"), "cpu:0", "plan.tasks[0].device"),
    "a number for a device": (("plan", "buffers", 0, "home"), 0, "plan.buffers[0].home"),
    "no number": (("passes", 0, "seconds"), "long", "passes[0].seconds"),
}


@pytest.fixture(scope="module")
def saved() -> str:
    return document(make("0:0")).to_json()


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_wrong_in_a_saved_plan_is_named(saved: str, change: str, tmp_path: Path) -> None:
    path, value, where = CHANGES[change]
    data = json.loads(saved)
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(data))
    with pytest.raises(PlanError, match=r"reading the saved plan .*plan\.json") as caught:
        PlanDocument.read(file)
    assert where in str(caught.value.found)
    str(caught.value).encode()


@pytest.mark.parametrize("content", [b"\xff", b"[" * 100_000, b"1" * 5000, b""])
def test_a_file_that_is_no_json_is_no_saved_plan(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "plan.json"
    file.write_bytes(content)
    with pytest.raises(PlanError, match="no JSON"):
        PlanDocument.read(file)
    with pytest.raises(PlanError, match="reading"):
        PlanDocument.read(tmp_path)
    with pytest.raises(PlanError, match="reading a saved plan"):
        Plan.from_json(content.decode(errors="replace"))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
def test_a_pipe_is_no_saved_plan(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "plan.json")
    with pytest.raises(PlanError, match="a pipe instead of a regular file"):
        PlanDocument.read(tmp_path / "plan.json")


def test_the_report_shows_layouts_and_the_ledger() -> None:
    report = plan_report(make())
    assert "cpu[0:0-3]" in report
    assert "bytes cross devices per step" in report
    assert "S(0)" in report


def test_the_report_shows_streams_and_what_goes_between_them() -> None:
    job = make()
    plan, report = job.plan(), plan_report(job)
    assert f"streams: {len(plan.streams)}, in turn, on one thread" in report
    rows = {row[0]: row for row in stream_rows(plan)}
    assert list(rows) == list(plan.streams)
    assert sum(row[1] for row in rows.values()) == len(plan.tasks)
    assert any(row[2] and row[3] for row in rows.values())
    assert len(list(flow_rows(plan))) == len(plan.flows) > 0
    for producer, value, consumers, slots in flow_rows(plan):
        assert producer in rows
        assert set(consumers.split(", ")) <= set(rows)
        assert slots >= 1
        assert value in report


def test_equal_plans_do_not_differ() -> None:
    a, b = documents({}, {})
    text = joined(diff_tables(a, b))
    assert "boxing that differs" not in text
    assert "ops that differ" not in text


def test_what_a_hint_changes() -> None:
    a, b = documents({}, {"model_distribute": flow.distribute.split(0)})
    text = joined(diff_tables(a, b))
    rows = [line.split() for line in text.splitlines()]
    ways = ["variable", "cpu[0:0-3]", "B", "variable", "cpu[0:0-3]", "S(0)"]
    assert ["changed", "hidden-weight", *ways] in [row[:8] for row in rows]
    added = [e.value for e in b.plan.ledger if e.value not in {o.value for o in a.plan.ledger}]
    assert added
    for value in added:
        assert any(row[:2] == ["added", value] for row in rows)
    total = b.plan.bytes_per_step - a.plan.bytes_per_step
    assert total != 0


def test_errors_of_budgets_are_flow_errors() -> None:
    assert issubclass(BudgetError, FlowError)


def test_what_hints_cost() -> None:
    job = make(model_distribute=flow.distribute.split(0))
    assert document(job).hints == ()
    doc = document(job, hints=2)
    ((hint, cost, saved, more),) = doc.hints
    assert hint.startswith("'hidden-weight' is S(0) at ")
    assert hint.endswith(", and 1 more there")  # the bias
    assert more == "takes 120 B more per device"
    assert cost.startswith("without it: ")
    assert saved.startswith("saves ")
    assert PlanDocument.from_json(doc.to_json()) == doc
    assert any(table.title == "if a hint were dropped" for table in plan_tables(doc))


def test_the_report_lists_all_passes_with_what_each_changed() -> None:
    doc = document(make())
    rows = {row.name: row for row in doc.passes}
    names = [spec.name for spec in default_registry().passes]
    stages = {"to_physical", "lower"}
    assert [row.name for row in doc.passes if row.name not in stages] == names
    assert rows["mixed_precision"].stage == "logical, idle"
    assert rows["mixed_precision"].changes == ()
    assert any(row.changes for row in doc.passes)
    for row in doc.passes:
        if row.stage and "idle" not in row.stage:
            added, removed = (
                sum(int(c[1:].split()[0]) for c in row.changes if c[0] == sign) for sign in "+-"
            )
            assert row.after == row.before + added - removed, row.name
    assert "after constant_folding" in rows["common_subexpressions"].order
    assert "fold_norms is before it" in rows["fuse_elementwise"].order
    assert PlanDocument.from_json(doc.to_json()).passes == doc.passes
    text = joined(plan_tables(doc))
    assert "passes and stages" in text


def test_the_report_has_the_options_that_a_job_sets() -> None:
    config = flow.function_config()
    config.fuse_elementwise.limit(3)
    config.math_mode("bfloat16")

    @flow.global_function("predict", config)
    def job(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
        return flow.nn.relu(x)

    rows = {row.name: row.options for row in document(job).passes}
    assert rows["fuse_elementwise"] == ("limit=3",)
    assert rows["dead_code"] == ()
