"""Kernels of a device type read learning rates, step numbers and loss scales in host memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from opaque_devices import OTHERS, OpaqueDriver, opaque_registry

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.config import Settings
from flow_core.comm.exchange import exchanges, links_of
from flow_core.frontend.session import session as sessions
from flow_core.plan import Plan
from flow_core.plugins.host import load_plugins
from flow_core.plugins.registry import Registry
from flow_core.plugins.specs import DeviceSpec
from flow_core.sharding.topology import Device
from flow_core.testing import queued_device

REGISTRIES = {host: opaque_registry(host_numbers=host) for host in (False, True)}
STEPS = 5


@pytest.fixture(autouse=True)
def own_sessions() -> Iterator[None]:
    before = list(sessions._default)
    yield
    sessions._default[:] = before


def optimizer(name: str) -> Any:
    warmup = flow.optimizer.warmup.linear(3, 0.1)
    rate = flow.optimizer.PolynomialScheduler(0.1, 10, warmup=warmup)
    clip = flow.optimizer.grad_clipping.by_global_norm(0.3)
    scale = flow.optimizer.loss_scale.dynamic_loss_scale(2.0**8, increment_period=2)
    made = {
        "sgd": lambda: flow.optimizer.SGD(rate, momentum=0.0),
        "momentum": lambda: flow.optimizer.SGD(rate, momentum=0.9),
        "adam": lambda: flow.optimizer.Adam(rate, do_bias_correction=True),
        "lars": lambda: flow.optimizer.LARS(rate),
        "lamb": lambda: flow.optimizer.LAMB(rate),
        "static": lambda: flow.optimizer.SGD(
            rate, loss_scale_policy=flow.optimizer.loss_scale.static_loss_scale(4.0)
        ),
        "clip": lambda: flow.optimizer.Adam(rate, grad_clipping=clip),
        "dynamic": lambda: flow.optimizer.Adam(rate, loss_scale_policy=scale),
        "dynamic-clip": lambda: flow.optimizer.Adam(
            rate, loss_scale_policy=scale, grad_clipping=clip
        ),
    }
    return made[name]()


OPTIMIZERS = {
    "sgd": 0, "momentum": 0, "adam": 0, "lars": 0, "lamb": 0, "static": 0, "clip": 1, "dynamic": 1,
    "dynamic-clip": 2,
}  # fmt: skip
"""Optimizers, and the numbers that only the device can compute."""


def trained(
    name: str, ids: str, host: bool, registry: Registry | None = None, kind: str = "opaque"
) -> tuple[Any, Any, list[Any]]:
    """Train in a session of its own; return the job, the session and all results."""
    session = sessions.Session(registry or REGISTRIES[host])
    sessions._default[:] = [session]
    init = flow.random_normal_initializer(stddev=0.3)

    @flow.global_function("train")
    def job(
        x: tp.Numpy.Placeholder((6, 10)),  # type: ignore[valid-type]
        y: tp.Numpy.Placeholder((6,), dtype=flow.int32),  # type: ignore[valid-type]
    ) -> tp.Numpy:
        with flow.scope.placement(kind, ids):
            h = flow.layers.dense(x, 7, kernel_initializer=init, name="h")
            h = flow.layers.dense(flow.nn.relu(h), 4, kernel_initializer=init, name="o")
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, h)
            optimizer(name).minimize(loss)
        return loss

    rng = np.random.default_rng(0)
    losses = []
    for step in range(STEPS):
        x, y = rng.normal(size=(6, 10)).astype("f4"), rng.integers(0, 4, 6).astype("i4")
        if step == 3 and name.startswith("dynamic"):
            x[0] = np.inf  # the updates are skipped
        for driver in (session.driver(Device(kind, 0, index)) for index in range(2)):
            if isinstance(driver, OpaqueDriver):
                driver.copies.clear()
        losses.append(job(x, y))
    weights = [v.numpy() for _, v in sorted(flow.get_all_variables().items())]
    return job, session, [*losses, *weights]


@pytest.mark.representative(
    r"\[(sgd-0:0|dynamic-clip-0:0-1)\]",
    "the fewest and the most numbers per step; one device and two",
)
@pytest.mark.parametrize("ids", ["0:0", "0:0-1"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_is_the_same_with_numbers_on_the_host(name: str, ids: str) -> None:
    *_, wanted = trained(name, ids, host=False)
    job, _, found = trained(name, ids, host=True)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    links = links_of(exchanges(job.plan()))
    once = links_of(exchanges(job.plan(), once=True))
    sent = {link: STEPS * n + once.get(link, 0) for link, n in links.items()}
    assert job.executable().sent() == {**once, **sent}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_copies_only_what_the_device_computes(name: str) -> None:
    _, session, _ = trained(name, "0:0", host=True)
    driver: OpaqueDriver = session.driver(Device("opaque", 0, 0))
    assert driver.copies["out"] == OPTIMIZERS[name]


class Queued:
    """The asynchronous test device, whose kernels read numbers in host memory."""

    FLOW_PLUGIN_API = "1.0"
    __name__ = "queued"
    flow_register_kernels = staticmethod(queued_device.flow_register_kernels)

    def flow_register_devices(self) -> list[DeviceSpec]:
        (spec,) = queued_device.flow_register_devices()
        return [replace(spec, host_numbers=True)]


@pytest.mark.representative(r"\[lars\]", "an update that reads the step number besides the rate")
@pytest.mark.parametrize("name", ["momentum", "lars", "dynamic-clip"])
def test_asynchronous_kernels_read_the_numbers_of_their_step(name: str) -> None:
    """Each update runs after the numbers of the next step could have been computed."""
    *_, wanted = trained(name, "0:0-1", host=False)
    registry = load_plugins(Settings(disabled_plugins=OTHERS), [Queued()])
    *_, found = trained(name, "0:0-1", True, registry, "queued")
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


def devices_of(plan: Plan) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for task in plan.tasks:
        found.setdefault(task.type, set()).add(task.device.type)
    return found


@pytest.mark.parametrize("ids", ["0:0", "0:0-1"])
def test_numbers_are_computed_where_they_are_read(ids: str) -> None:
    for host, where in ((True, {"cpu"}), (False, {"opaque"})):
        job, *_ = trained("dynamic", ids, host)
        found = devices_of(job.plan())
        for type_ in ("learning_rate_schedule", "advance_step", "dynamic_loss_scale_schedule"):
            assert found[type_] == where, type_
        assert found["adam_update"] == {"opaque"}


def test_numbers_from_the_program_are_read_on_the_host() -> None:
    """A learning rate that the job computes on the device is copied once per step."""
    session = sessions.Session(REGISTRIES[True])
    sessions._default[:] = [session]

    @flow.global_function("train")
    def job(rate: tp.Numpy.Placeholder((1,))) -> tp.Numpy:  # type: ignore[valid-type]
        with flow.scope.placement("opaque", "0:0"):
            w = flow.get_variable("w", (3,), initializer=flow.ones_initializer())
            schedule = flow.identity(rate * 2, name="rate")
            loss = flow.math.square(w)
            flow.optimizer.SGD(flow.optimizer.CustomScheduler(schedule.op_name)).minimize(loss)
        return loss

    np.testing.assert_allclose(job(np.array([0.25], "f4")), 1)
    driver: OpaqueDriver = session.driver(Device("opaque", 0, 0))
    driver.copies.clear()
    np.testing.assert_allclose(job(np.array([0.25], "f4")), (1 - 0.5 * 2 / 3) ** 2, rtol=1e-6)
    assert driver.copies["out"] == 1
