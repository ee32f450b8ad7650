"""The stages of a job: trace, differentiate, compile, bind."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.frontend.job import function, micro_batches, variant
from flow_core.frontend.job.differentiate import STEP_VARIABLE, differentiate
from flow_core.frontend.job.tracing import Traced, trace
from flow_core.frontend.session.session import default_session
from flow_core.frontend.trace.division import division

X = np.ones((4, 3), np.float32)


def train_job() -> function.JobFunction:
    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        w = flow.get_variable("w", (3, 2), initializer=flow.ones_initializer())
        loss = flow.math.reduce_mean(flow.matmul(x, w))
        scheduler = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
        flow.optimizer.SGD(scheduler, momentum=0.9).minimize(loss)
        return loss

    return job


def traced(job: function.JobFunction) -> Traced:
    build = job._build(default_session())
    return trace(job.function, job.signature, build, job._feed().declared)


def test_tracing_does_not_differentiate() -> None:
    found = traced(train_job())
    types = [op.type for op in found.build.builder.ops.values()]
    assert types == ["input", "variable", "matmul", "reduce_mean"]
    assert not found.build.forward
    assert [value.op for value in found.fetched] == [found.returned.blobs[0].op_name]


def test_differentiation_adds_updates_and_states() -> None:
    found = traced(train_job())
    before = list(found.build.builder.ops)
    gradients = differentiate(found)
    ops = found.build.builder.ops
    added = [op.type for name, op in ops.items() if name not in before]
    assert "momentum_update" in added
    assert "advance_step" in added
    assert STEP_VARIABLE.format(job="job") in ops
    assert ops["w"].output() in gradients
    assert set(default_session().declared) >= {"w", "w-momentum"}


def test_each_stage_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(module: ModuleType, name: str) -> Callable[..., Any]:
        original = getattr(module, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return original(*args, **kwargs)

        return call

    stages = ("trace_micro_batch", "differentiate", "Compilation", "Executable")
    for name in stages:
        module = micro_batches if name == "trace" else variant
        monkeypatch.setattr(module, name, counted(module, name))
    job = train_job()
    job(X)
    job(X)
    assert calls == list(stages)


def test_querying_the_sbp_of_a_variable_does_not_change_the_graph() -> None:
    seen: list[bool] = []

    @flow.global_function()
    def job() -> tp.Numpy:
        w = flow.get_variable("w", (3, 2), initializer=flow.ones_initializer())
        before = dict(w.job.builder.ops)
        assert str(division(w.job, w)) == "B"
        seen.append(w.job.builder.ops == before)
        return w

    job()
    assert seen == [True]
