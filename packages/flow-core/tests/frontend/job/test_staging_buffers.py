"""Staging buffers of asynchronous steps, which several threads feed."""

import threading
from typing import Any

import numpy as np
import processes

import oneflow as flow
import oneflow.typing as tp
from flow_core.frontend.session.session import default_session


def one(value: float) -> Any:
    return np.array([value], np.float32)


def asynchronous_job(width: int) -> Any:
    """Return a job that adds 1, with ``width`` steps in flight."""
    config = flow.function_config()
    config.concurrency_width(width)

    @flow.global_function(function_config=config)
    def job(x: tp.Numpy.Placeholder((1,))) -> tp.Callback[tp.Numpy]:
        return x + 1

    return job


def test_a_step_keeps_its_feeds_while_other_threads_overtake_it(monkeypatch: Any) -> None:
    job, got, pipeline = asynchronous_job(width=3), [], default_session().pipeline
    staged, overtaken = threading.Event(), threading.Event()
    enter, late = pipeline.enter, threading.Thread(target=lambda: job(one(0))(got.append))

    def enter_late(step: Any) -> None:
        if threading.current_thread() is late:
            staged.set()
            assert overtaken.wait(processes.scaled(50))
        enter(step)

    monkeypatch.setattr(pipeline, "enter", enter_late)
    late.start()
    assert staged.wait(processes.scaled(50))
    for i in range(1, 7):
        job(one(i))(lambda y: None)
    overtaken.set()
    late.join(processes.scaled(50))
    flow.sync_default_session()
    assert [float(y[0]) for y in got] == [1.0]
