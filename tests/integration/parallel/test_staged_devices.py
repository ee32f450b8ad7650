"""Jobs on a device type that only has a driver and kernels: the comm of core connects it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from opaque_devices import OpaqueDriver, opaque_registry
from parallel_networks import (
    NETWORKS,
    STEPS,
    Form,
    assert_near,
    batches,
    step_of,
    train,
    train_here,
    train_job,
)

import oneflow as flow
import oneflow.typing as tp
from flow_core.comm.exchange import exchanges, links_of
from flow_core.frontend.session import session as sessions
from flow_core.sharding.topology import Device
from flow_core.testing import assert_like_one_device

OPAQUE, MIXED = ("opaque",), ("opaque", "cpu")
FORMS = {
    "one": Form(1, kinds=OPAQUE),
    "data-2": Form(2, kinds=OPAQUE),
    "data-3": Form(3, kinds=OPAQUE),
    "rows-3": Form(3, weights=0, kinds=OPAQUE),
    "columns-4": Form(4, weights=1, kinds=OPAQUE),
    "hybrid-2": Form(2, weights=0, hybrid=True, kinds=OPAQUE),
    "pipeline-2": Form(2, stages=2, kinds=OPAQUE),
    "pipeline-2-with-cpu": Form(2, stages=2, kinds=MIXED),
    "pipeline-4-with-cpu-micro-3": Form(4, stages=4, micro=3, kinds=MIXED),
    "pipeline-2-data-2-with-cpu": Form(4, stages=2, kinds=MIXED),
    "grid-2x2": Form(4, hierarchy=(2, 2), kinds=OPAQUE),
    "grid-2x2-columns": Form(4, weights=1, hierarchy=(2, 2), kinds=OPAQUE),
    "zero-3": Form(3, optimizer="distributed_split", kinds=OPAQUE),
    "mirrored-2": Form(2, mirrored=True, kinds=OPAQUE),
}
MORE = {("lenet", "data-2"), ("transformer", "grid-2x2"), ("wide_deep", "pipeline-2-with-cpu")}
REGISTRIES = {
    numbers: opaque_registry(host_numbers=numbers == "host") for numbers in ("device", "host")
}


@pytest.fixture(params=REGISTRIES)
def session(fresh_session: None, request: pytest.FixtureRequest) -> Iterator[sessions.Session]:
    """A default session whose registry has the device type, which reads numbers here or there."""
    before = list(sessions._default)
    made = sessions.Session(REGISTRIES[request.param])
    sessions._default[:] = [made]
    yield made
    made.close()
    sessions._default[:] = before


@cache
def alone(network: str, form: Form) -> tuple[Any, dict[str, Any]]:
    return train(NETWORKS[network], form)


def predicted(job: Any, steps: int) -> dict[Any, int]:
    total: Counter[Any] = Counter()
    for once, times in ((True, 1), (False, steps)):
        for link, nbytes in links_of(exchanges(job.plan(), once)).items():
            total[link] += nbytes * times
    return dict(total)


@pytest.mark.slow
@pytest.mark.representative(
    r"\[host-mlp-one\]", "step numbers on the host, and every copy between host and device"
)
@pytest.mark.parametrize(("network", "form"), [*(("mlp", form) for form in FORMS), *sorted(MORE)])
def test_training_equals_the_cpu(session: sessions.Session, network: str, form: str) -> None:
    job = train_job(NETWORKS[network], FORMS[form])
    losses, weights = train_here(NETWORKS[network], FORMS[form], job)
    executable = job.executable()
    assert executable.comm.name == "staged"
    assert executable.sent() == predicted(job, STEPS)
    wanted, wanted_weights = alone(network, FORMS[form].alone())
    assert_near(losses, wanted, "losses")
    assert weights.keys() == wanted_weights.keys()
    for name, value in weights.items():
        assert_near(value, wanted_weights[name], name)


@pytest.mark.slow
@pytest.mark.representative(
    r"\[host\]", "step numbers on the host, which kernels of the device read"
)
def test_the_oracle_compares_it_with_one_device(session: sessions.Session) -> None:
    form = FORMS["hybrid-2"]
    feeds = [[*batch[0], batch[1]] for batch in batches(NETWORKS["mlp"])]
    assert len(assert_like_one_device(train_job(NETWORKS["mlp"], form), feeds=feeds).ops) > 20


@pytest.mark.parametrize("ids", ["0:0", "0:0-1", "0:1-3"])
def test_feeds_and_fetches_cross_devices(session: sessions.Session, ids: str) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((5, 3))) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        host = x * 3
        with flow.scope.placement("opaque", ids):
            y = flow.nn.relu(host)
            z = y + 1
        return y, flow.math.reduce_sum(z), flow.nn.relu(z - 2)

    for seed in range(2):
        x = np.random.default_rng(seed).normal(size=(5, 3)).astype(np.float32)
        y, total, last = job(x)
        want = np.maximum(x * 3, 0)
        np.testing.assert_array_equal(y, want)
        np.testing.assert_allclose(total, (want + 1).sum(), rtol=1e-6)
        np.testing.assert_array_equal(last, np.maximum((want + 1) - np.float32(2), 0))
    assert job.executable().sent() == predicted(job, 2)


@pytest.mark.representative(
    r"\[host\]", "step numbers on the host, which kernels of the device read"
)
def test_steps_copy_into_memory_that_binding_allocated(session: sessions.Session) -> None:
    """Only results are new arrays."""
    form = FORMS["data-2"]
    job, (feeds, *_) = train_job(NETWORKS["mlp"], form), batches(NETWORKS["mlp"])
    job(*step_of(form, feeds))
    drivers = [session.driver(Device("opaque", 0, i)) for i in range(2)]
    assert all(isinstance(driver, OpaqueDriver) for driver in drivers)
    for driver in drivers:
        driver.copies.clear()
    job(*step_of(form, feeds))
    plan = job.plan()
    fetched = Counter(plan.buffers[i].device for i in plan.fetches)
    for driver in drivers:
        assert driver.copies["new"] == fetched[driver.device]
        assert driver.copies["out"] >= 4, "gradients of two layers"
