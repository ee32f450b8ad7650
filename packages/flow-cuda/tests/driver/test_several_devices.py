"""Training on several simulated GPUs of one process, whose exchanges go through the host."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cuda_cases import Collector, core_registry, simulated_registry
from cuda_simulator import host_compiler
from cuda_simulator import plugin as simulated

import oneflow as flow
import oneflow.typing as tp
from flow_core.comm.exchange import exchanges, links_of
from flow_core.frontend.session import session as sessions
from flow_core.sharding.topology import Device
from flow_cuda.driver.capture import describe
from flow_cuda.driver.gpu import Step

pytestmark = pytest.mark.skipif(
    host_compiler.compiler() is None, reason="no C++ compiler to run the kernels with"
)


BATCH, STEPS = 8, 4
RNG = np.random.default_rng(1)
IMAGES = RNG.uniform(0, 1, (STEPS, BATCH, 1, 12, 12)).astype(np.float32)
LABELS = RNG.integers(0, 5, (STEPS, BATCH)).astype(np.int32)
REGISTRIES = {"gpu": simulated_registry(), "cpu": core_registry()}


@pytest.fixture(autouse=True)
def own_sessions() -> Iterator[None]:
    before = list(sessions._default)
    yield
    sessions._default[:] = before


def lenet(device: str, count: int, split: bool = False) -> Any:
    """Build a small LeNet whose batch, and optionally one layer, is split over devices."""
    session = sessions.Session(REGISTRIES[device])
    sessions._default[:] = [session]
    if device == "gpu":
        flow.config.gpu_device_num(count)
    model = flow.distribute.split(0) if split else flow.distribute.broadcast()
    init = flow.random_uniform_initializer(-0.3, 0.3)

    @flow.global_function("train")
    def job(
        x: tp.Numpy.Placeholder(IMAGES.shape[1:]), y: tp.Numpy.Placeholder((BATCH,), flow.int32)
    ) -> tuple[tp.Numpy, tp.Numpy]:
        with flow.scope.placement(device, f"0:0-{count - 1}"):
            x = x.with_distribute(flow.distribute.split(0)) if count > 1 else x
            x = flow.layers.conv2d(
                x, 4, 3, padding="SAME", activation=flow.nn.relu, name="c1", kernel_initializer=init
            )
            x = flow.nn.max_pool2d(x, 2, 2, "VALID", "NCHW")
            x = flow.layers.conv2d(x, 6, 3, padding="VALID", name="c2", kernel_initializer=init)
            x = flow.nn.avg_pool2d(flow.nn.relu(x), 2, 2, "VALID", "NCHW")
            x = flow.reshape(x, (BATCH, -1))
            x = flow.layers.dense(
                x, 16, flow.nn.relu, name="h", kernel_initializer=init, model_distribute=model
            )
            x = flow.nn.dropout(x, rate=0.3, name="drop")
            logits = flow.layers.dense(x, 5, name="last", kernel_initializer=init)
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            schedule = flow.optimizer.CosineScheduler(0.05, 20)
            flow.optimizer.SGD(schedule, momentum=0.9).minimize(loss)
        return loss, logits

    return session, job


def trained(job: Any) -> list[Any]:
    return [
        np.concatenate([x.reshape(-1) for x in job(*fed)])
        for fed in zip(IMAGES, LABELS, strict=True)
    ]


@pytest.fixture(scope="module")
def wanted() -> list[Any]:
    """Return the losses of one CPU, equal to those of one GPU."""
    before = list(sessions._default)
    collected = Collector()
    # to compile all kernels at once; libraries meanwhile compute on arbitrary values
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(simulated, "compiler", lambda: collected)
        for form in ((1, False), (2, False), (2, True)):
            _, job = lenet("gpu", *form)
            with np.errstate(all="ignore"):  # values that no kernel has computed
                job(IMAGES[0], LABELS[0])
    simulated.compiler().preload(collected.found.values())
    _, job = lenet("cpu", 1)
    on_cpu = trained(job)
    on_gpu = trained(lenet("gpu", 1)[1])
    np.testing.assert_allclose(on_gpu, on_cpu, rtol=2e-4, atol=1e-5)
    sessions._default[:] = before
    assert abs(on_cpu[0][:BATCH].mean() - on_cpu[-1][:BATCH].mean()) > 1e-3
    return on_cpu


@pytest.mark.representative(r"\[4-False\]", "each device exchanges with several others")
@pytest.mark.parametrize(("count", "split"), [(2, False), (4, False), (2, True)])
def test_training_on_several_devices_matches_one_device(
    count: int, split: bool, wanted: list[Any]
) -> None:
    session, job = lenet("gpu", count, split)
    np.testing.assert_allclose(trained(job), wanted, rtol=2e-4, atol=1e-5)
    hardware = [session.driver(Device("gpu", 0, i)).hardware for i in range(count)]
    step = job.executable()._launch
    graphs = [part for part in step.parts if part.captured]
    replays = [sum(line.startswith("replay") for line in h.log) for h in hardware]
    assert replays == [len(graphs) * (STEPS - 1), *[0] * (count - 1)], "graphs of all devices"
    used = {work.hardware.index for part in graphs for work in part.queued}
    assert used == set(range(count))
    assert any(len({w.hardware.index for w in part.queued}) == count for part in graphs)
    plan, comm = job.plan(), job.executable().comm
    links = {k: STEPS * n for k, n in links_of(exchanges(plan)).items() if n}
    assert links
    assert dict(comm.sent()) == links, "exact, including replays"
    for device in hardware:
        device.log.clear()
    trained(job)
    assert not [x for h in hardware for x in h.log if x.startswith(("allocate", "begin"))]


def mixed(device: str) -> Any:
    """Train layers placed alternately on the CPU and on a device."""
    sessions._default[:] = [sessions.Session(REGISTRIES[device])]
    init = flow.random_uniform_initializer(-0.3, 0.3)

    @flow.global_function("train")
    def job(
        x: tp.Numpy.Placeholder((BATCH, 6)), y: tp.Numpy.Placeholder((BATCH,), flow.int32)
    ) -> tuple[tp.Numpy, tp.Numpy]:
        with flow.scope.placement(device, "0:0"):
            h = flow.layers.dense(x, 7, flow.nn.relu, name="a", kernel_initializer=init)
        with flow.scope.placement("cpu", "0:0"):
            h = flow.math.tanh(flow.layers.dense(h, 6, name="b", kernel_initializer=init))
        with flow.scope.placement(device, "0:0"):
            logits = flow.layers.dense(h, 5, name="c", kernel_initializer=init)
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            schedule = flow.optimizer.CosineScheduler(0.3, 20)
            flow.optimizer.SGD(schedule, momentum=0.9).minimize(loss)
        return loss, h

    return job


def test_layers_may_alternate_between_cpu_and_gpu() -> None:
    rows = RNG.normal(size=(STEPS, BATCH, 6)).astype(np.float32)

    def run(device: str) -> list[Any]:
        job = mixed(device)
        found = [job(*fed) for fed in zip(rows, LABELS, strict=True)]
        return [np.concatenate([x.reshape(-1) for x in row]) for row in found]

    want = run("cpu")
    assert abs(want[0][:BATCH].mean() - want[-1][:BATCH].mean()) > 1e-3
    np.testing.assert_allclose(run("gpu"), want, rtol=2e-4, atol=1e-5)
    (job,) = sessions._default[0].jobs
    steps = [call for call in job.executable()._launch.calls if isinstance(call, Step)]
    parts = [part for step in steps for part in step.parts]
    kinds = [line.split(":")[0].split()[0] for line in describe(parts).splitlines()]
    assert "graph" in kinds, "device work between host calls is captured"
    placed = [b for b in job.executable().plan.buffers if b.device.type == "gpu" and b.offset > 0]
    assert placed
    assert not [b for b in placed if b.offset % 256], "cuBLASLt requires workspaces at 256 bytes"
