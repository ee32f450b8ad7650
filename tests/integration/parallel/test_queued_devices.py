"""Jobs on asynchronous devices whose memory the host cannot read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from opaque_devices import OTHERS
from parallel_networks import NETWORKS, STEPS, Form, assert_near, train, train_here, train_job

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.config import Settings
from flow_core.base.errors import FlowError
from flow_core.device import Launch
from flow_core.frontend.session import session as sessions
from flow_core.plugins.host import load_plugins
from flow_core.sharding.topology import Device
from flow_core.testing import assert_like_one_device, queued_device

QUEUED, MIXED = ("queued",), ("queued", "cpu")
FORMS = {
    "one": Form(1, kinds=QUEUED),
    "data-3": Form(3, kinds=QUEUED),
    "columns-2": Form(2, weights=1, kinds=QUEUED),
    "pipeline-2": Form(2, stages=2, kinds=QUEUED),
    "pipeline-4-with-cpu-micro-3": Form(4, stages=4, micro=3, kinds=MIXED),
    "zero-2": Form(2, optimizer="distributed_split", kinds=QUEUED),
}


class Counted(queued_device.QueuedDriver):
    """A driver with a shorter delay that counts the launches that it compiles."""

    def __init__(self, device: Device) -> None:
        super().__init__(device, delay=0.0005)
        self.launches = 0

    def compile(self, launches: Sequence[Launch]) -> Launch:
        self.launches += len(launches)
        return super().compile(launches)


def plugin() -> ModuleType:
    """Return the plugin of the test device."""
    module: Any = ModuleType("queued")
    module.FLOW_PLUGIN_API = "1.0"
    module.flow_register_kernels = queued_device.flow_register_kernels
    module.flow_register_devices = lambda: [
        replace(spec, driver=Counted) for spec in queued_device.flow_register_devices()
    ]
    return module


REGISTRY = load_plugins(Settings(disabled_plugins=OTHERS), [plugin()])


@pytest.fixture
def settings() -> Settings:
    """Return the settings of the session."""
    return Settings()


@pytest.fixture
def session(fresh_session: None, settings: Settings) -> Iterator[sessions.Session]:
    before = list(sessions._default)
    made = sessions.Session(REGISTRY, settings)
    sessions._default[:] = [made]
    yield made
    made.close()
    sessions._default[:] = before


@cache
def alone(form: Form) -> tuple[Any, dict[str, Any]]:
    return train(NETWORKS["mlp"], form)


@pytest.mark.representative(
    "data-3|pipeline-4", "an uneven split of rows, and a chain of four devices"
)
@pytest.mark.parametrize("form", FORMS)
def test_training_equals_the_cpu(session: sessions.Session, form: str) -> None:
    job = train_job(NETWORKS["mlp"], FORMS[form])
    losses, weights = train_here(NETWORKS["mlp"], FORMS[form], job)
    drivers = [session.driver(d) for d in job.executable().arenas if d.type == "queued"]
    for driver in drivers:
        assert isinstance(driver, Counted)
        assert driver.launches, f"{driver.device} compiles its launches"
    wanted, wanted_weights = alone(FORMS[form].alone())
    assert_near(losses, wanted, "losses")
    assert len(losses) == STEPS
    for name, value in weights.items():
        assert_near(value, wanted_weights[name], name)


def test_checkpoints_feeds_and_fetches(session: sessions.Session, tmp_path: Path) -> None:
    def counter() -> Any:
        @flow.global_function("train")
        def count(x: tp.Numpy.Placeholder((3,))) -> tuple[tp.Numpy, tp.Numpy]:
            with flow.scope.placement("queued", "0:1"):
                w = flow.get_variable("w", (3,), initializer=flow.ones_initializer())
                y = w * x
                rate = flow.optimizer.PiecewiseConstantScheduler([], [1.0])
                flow.optimizer.SGD(rate, momentum=0).minimize(y * 3.0)
            with flow.scope.placement("cpu", "0:0"):
                return y, y + 1

        return count

    job, x = counter(), np.float32([1, 2, 3])
    for step in range(3):
        y, more = job(x)
        np.testing.assert_array_equal(y, (1 - step * x) * x)
        np.testing.assert_array_equal(more, y + 1)
    np.testing.assert_array_equal(flow.get_all_variables()["w"].numpy(), 1 - 3 * x)
    flow.checkpoint.save(str(tmp_path / "saved"))
    flow.load_variables({"w": np.zeros(3, np.float32)})
    np.testing.assert_array_equal(job(x)[0], 0)
    flow.load_variables(flow.checkpoint.get(str(tmp_path / "saved")))
    np.testing.assert_array_equal(job(x)[0], (1 - 3 * x) * x)


def test_deferred_error_reaches_the_caller(session: sessions.Session) -> None:
    """A kernel that fails when its work runs: the step raises when results are copied."""

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3)), y: tp.Numpy.Placeholder((2,), flow.int32)) -> tp.Numpy:
        with flow.scope.placement("queued", "0:0"):
            return flow.nn.sparse_softmax_cross_entropy_with_logits(y, x)

    x = np.zeros((2, 3), np.float32)
    with pytest.raises(FlowError, match=r"label(.|\n)*FLOW_SYNC_LAUNCHES=1"):
        job(x, np.int32([0, 7]))
    np.testing.assert_allclose(job(x, np.int32([0, 1])), np.log(3), rtol=1e-6)


@pytest.mark.parametrize("settings", [Settings(sync_launches=True)])
def test_synchronous_launches_name_the_op_of_an_error(session: sessions.Session) -> None:
    """The op that fails is not the last one, and other asynchronous work follows."""

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3)), y: tp.Numpy.Placeholder((2,), flow.int32)) -> tp.Numpy:
        with flow.scope.placement("queued", "0:0"):
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, x * 2)
        with flow.scope.placement("queued", "0:1"):
            return flow.math.exp(loss)

    x = np.zeros((2, 3), np.float32)
    np.testing.assert_allclose(job(x, np.int32([0, 1])), 3, rtol=1e-6)
    with pytest.raises(FlowError, match="label") as caught:
        job(x, np.int32([0, 7]))
    line = job.__wrapped__.__code__.co_firstlineno + 3
    assert str(caught.value.at) == f"{__file__}:{line}"
    assert "FLOW_SYNC_LAUNCHES" not in str(caught.value)
    np.testing.assert_allclose(job(x, np.int32([0, 1])), 3, rtol=1e-6)


def test_ops_match_one_device(session: sessions.Session) -> None:
    """The oracle runs the plan task by task next to that of one device."""

    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        with flow.scope.placement("queued", "0:0-1"):
            draw = flow.random_normal_initializer(stddev=0.3)
            y = flow.layers.dense(x, 5, flow.nn.relu, kernel_initializer=draw, name="a")
            y = flow.layers.dense(y, 2, kernel_initializer=draw, name="b")
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.Adam(rate).minimize(flow.math.reduce_mean(y))
        return y

    assert_like_one_device(job, devices=2)


def test_asynchronous_calls_draw_the_numbers_of_their_step(session: sessions.Session) -> None:
    """Launches read the step number when they are called, not when their work runs."""

    def dropout(device: str) -> Any:
        @flow.global_function("train")
        def job(x: tp.Numpy.Placeholder((4, 30))) -> tp.Callback[tp.Numpy]:
            with flow.scope.placement(device, "0:0"):
                w = flow.get_variable("w", (30,), initializer=flow.ones_initializer())
                y = flow.nn.dropout(x * w, rate=0.5, seed=7)
                rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
                flow.optimizer.SGD(rate, momentum=0).minimize(y)
            return y

        return job

    found: dict[str, list[Any]] = {"cpu": [], "queued": []}
    for device, results in found.items():
        job = dropout(device)
        for i in range(5):
            job(np.full((4, 30), i + 1, np.float32))(results.append)
        flow.sync_default_session()
        flow.clear_default_session()
    for own, want in zip(found["queued"], found["cpu"], strict=True):
        np.testing.assert_allclose(own, want, rtol=1e-6)
    assert len({(x != 0).tobytes() for x in found["cpu"]}) == 5
