"""The one-screen report of ``flow plan``."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.observe.document import PlanDocument, document
from flow_core.observe.measure import Measured, Span, measure
from flow_core.observe.summary.op_times import by_class, task_seconds
from flow_core.observe.summary.screen import WIDTH, summary_tables
from flow_core.observe.tables import Table, fitted, joined, plain
from flow_core.plan import Transfer
from flow_core.plugins import machine
from flow_core.plugins.host import default_registry


def report(doc: PlanDocument, measured: Measured | None = None) -> str:
    tables = summary_tables(doc) if measured is None else summary_tables(doc, measured)
    return joined(tables)


def make(**hint: Any) -> Any:
    """A train job of two layers on four devices."""

    @flow.global_function(type="train")
    def job(
        x: tp.Numpy.Placeholder((8, 4)), y: tp.Numpy.Placeholder((8,), dtype=flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-3"):
            begin = flow.random_normal_initializer()
            x = flow.layers.dense(x, 8, kernel_initializer=begin, name="hidden", **hint)
            x = flow.layers.dense(x, 4, name="output")
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, x)
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(rate, momentum=0).minimize(loss)
        return loss

    return job


def deep() -> Any:
    """A job with many ops, long names and long lines on four devices."""

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((512, 256))) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-3"):
            begin = flow.random_normal_initializer()
            for i in range(12):
                name = f"a_scope_with_a_long_name/another_scope_with_a_long_name/layer_{i}"
                hint = flow.distribute.split(0) if i % 2 else flow.distribute.broadcast()
                x = flow.layers.dense(
                    x, 256, kernel_initializer=begin, name=name, model_distribute=hint
                )
            loss = flow.math.reduce_mean(flow.math.tanh(x))
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(rate, momentum=0.9).minimize(loss)
        return loss

    return job


@pytest.mark.slow
def test_it_fits_one_screen() -> None:
    doc = replace(document(deep(), hints=4), warnings=("a warning " * 20,) * 9)
    lines = report(doc).splitlines()
    assert len(doc.plan.ledger) > 20
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) <= 60


def test_shares_add_up_and_transfers_are_sorted_by_cost() -> None:
    plan = document(deep()).plan
    times = by_class(plan)
    assert sum(c.tasks for c in times) == len(plan.tasks)
    assert sum(c.seconds for c in times) == pytest.approx(sum(task_seconds(plan)))
    transfers = next(c for c in times if c.name == "transfers")
    moved = sum(e.seconds for e in plan.ledger if e.nbytes)
    assert 0.8 * moved < transfers.seconds < moved  # buckets save latencies


def test_the_most_expensive_transfers_come_with_lines_and_alternatives() -> None:
    doc = document(make())
    entries = [
        Transfer(f"v{i}:0", ("all_gather",), "gpu[0:0-1] S(0)", "gpu[0:0-1] B", 8, i * 1e-6,
                 f"train.py:{i}", alternatives=(f"another way {i}",))
        for i in range(9)
    ]  # fmt: skip
    text = report(replace(doc, plan=replace(doc.plan, ledger=tuple(entries))))
    rows = [line.split() for line in text.splitlines()]
    found = [row[1] for row in rows if len(row) > 1 and row[1].startswith("v")]
    assert found == ["v8:0", "v7:0", "v6:0", "v5:0", "v4:0"]
    assert "train.py:8" in text
    assert "another way 8" in text
    assert "another way 3" not in text


def test_it_says_what_ran() -> None:
    doc = document(make())
    assert "No step was run" in report(doc)
    spans = tuple(Span(i, i, i + 1.0) for i in range(len(doc.plan.tasks)))
    text = report(doc, Measured(spans, 3, 2.0))
    assert "No step was run" not in text
    assert "3 steps ran on random inputs" in text
    assert "median of 3 steps\n" in text
    assert "median of 1 step: not representative\n" in report(doc, Measured(spans, 1, 2.0))


def test_warnings_are_shown() -> None:
    doc = document(make())
    assert "warnings" not in report(doc)
    text = report(replace(doc, warnings=("weights never change",)))
    assert "  weights never change" in text


def test_a_hint_that_costs_is_named() -> None:
    doc = document(make(model_distribute=flow.distribute.split(0)), hints=1)
    ((hint, *_),) = doc.hints
    assert "drop the hint" not in report(doc) or hint in " ".join(report(doc).split())
    costs = ("'w' is S(0)", "without it: 1 us", "saves 3 us")
    text = report(replace(doc, hints=((*costs, ""),)))
    assert "drop the hint that 'w' is S(0): saves 3 us per step" in text
    assert "drop the hint" not in report(replace(doc, hints=((*costs, "takes 1 KiB more"),)))


def hinted() -> Any:
    """A train job of three layers with Adam, of which the second has a hint."""

    @flow.global_function(type="train")
    def job(
        x: tp.Numpy.Placeholder((8, 4)), y: tp.Numpy.Placeholder((8,), dtype=flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-3"):
            x = flow.layers.dense(x, 32, name="first")
            split = flow.distribute.split(0)
            x = flow.layers.dense(x, 32, name="second", model_distribute=split)
            x = flow.layers.dense(x, 16, name="third")
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, x)
            flow.optimizer.Adam(0.1).minimize(loss)
        return loss

    return job


@pytest.mark.filterwarnings("ignore::flow_core.base.errors.ZeroWeightsWarning")
def test_only_hints_of_the_program_are_evaluated() -> None:
    doc = document(hinted(), hints=8)
    assert len(doc.hints) == 1  # neither the states of Adam nor the bias has a row of its own
    assert doc.hints[0][0].startswith("'second-weight' is S(0) at ")


@pytest.mark.filterwarnings("ignore::flow_core.base.errors.ZeroWeightsWarning")
def test_layers_that_are_model_parallel_without_a_hint_are_named() -> None:
    doc = document(hinted(), hints=8)
    (note,) = doc.notes
    assert re.match(
        r"'third-weight' at .*test_summary\.py:\d+ has no hint, but each device computes with its "
        r"part S\(1\) \(model parallel\), since 'second-weight' is S\(0\) at ",
        note,
    )
    assert "'third-weight'" in report(doc)
    assert PlanDocument.from_json(doc.to_json()) == doc


def test_measured_times_are_medians_of_warm_steps() -> None:
    job = make()
    found = measure(job)
    assert 1 <= found.steps <= 5
    assert found.seconds > 0
    assert all(span.seconds > 0 for span in found.spans)
    total = sum(c.seconds for c in by_class(job.plan(), found.spans))
    assert total == pytest.approx(sum(span.seconds for span in found.spans))


def test_progress_names_each_step() -> None:
    said: list[str] = []
    found = measure(make(), progress=said.append)
    assert len(said) == found.steps + 1
    assert "step 1 of" in said[0]


def test_tables_are_shortened_and_texts_are_wrapped() -> None:
    rng = np.random.default_rng(0)
    rows = tuple(("a/" * int(n), "b" * int(n)) for n in rng.integers(1, 90, 20))
    assert max(map(len, plain(fitted(Table("t", ("name", "line"), rows), 60)))) <= 60
    text = "word " * 40
    lines = list(plain(fitted(Table("t", (), ((text,),)), 60)))
    assert max(map(len, lines)) <= 60
    assert "".join(lines[1:]).split() == text.split()


def products(mixed: bool = False, size: int = 1024) -> PlanDocument:
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(mixed)

    @flow.global_function(function_config=config)
    def job(x: tp.Numpy.Placeholder((512, size))) -> tp.Numpy:
        weights = flow.get_variable(f"w{size}", (size, size), initializer=flow.zeros_initializer())
        return flow.matmul(flow.nn.relu(flow.matmul(x, weights)), weights)

    return document(job)


def test_mixed_precision_is_suggested_where_it_saves_time() -> None:
    advice = "set function_config.enable_auto_mixed_precision(True)"
    fast = replace(products(), fast="bfloat16")
    text = " ".join(report(fast).split())
    assert advice in text
    assert "multiplies bfloat16 at least twice as fast as float32" in text
    for other in (
        replace(fast, fast=""),
        replace(products(size=32), fast="bfloat16"),
        replace(products(mixed=True), fast="bfloat16"),
    ):
        assert advice not in " ".join(report(other).split())


def test_machine_names_its_fast_products(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"p: fast products on cpu": "bfloat16", "p: fast products on gpu": "float16"}
    monkeypatch.setattr(machine, "describe_machine", lambda _: found)
    registry = default_registry()
    assert machine.fast_products(registry, ["cpu"]) == "bfloat16"
    assert machine.fast_products(registry, ["cpu", "gpu"]) == ""
    assert machine.fast_products(registry, ["null"]) == ""
