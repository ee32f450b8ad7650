"""The comm over NCCL on simulated GPUs: their kernels pack, their streams order, their graphs run.

A rank is a thread with one device, and NCCL is the fake of flow-dist's tests: what it is asked to
do is queued on the device's stream, and runs when a thread waits for it.
"""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from cuda_cases import core_registry, simulated_registry
from cuda_simulator import host_compiler
from nccl_fakes import on_ranks
from nccl_simulated import GPUS, Fabric, rank

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.dtypes import as_dtype
from flow_core.comm.exchange import exchanges, links_of
from flow_core.device import Comm, Driver
from flow_core.frontend.session import session as sessions
from flow_core.runtime.executable import Executable
from flow_core.sharding.topology import Device
from flow_core.testing import CommKit, comm_cases, comms
from flow_cuda.driver.capture import describe
from flow_dist.control.waiting import VERDICT
from flow_dist.nccl.comm import NcclComm

pytestmark = [
    pytest.mark.skipif(
        host_compiler.compiler() is None, reason="no C++ compiler to run the kernels with"
    ),
    pytest.mark.slow,
]
DEVICES = tuple(Device("gpu", 0, index) for index in range(4))


class TestOnSimulatedGpus(CommKit):
    comm_name = "nccl"
    devices = DEVICES
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "bfloat16")
    ordered = False

    def everywhere(self, body: Callable[[Comm], None]) -> None:
        fabric = Fabric()

        def one(world: Any) -> None:
            _, groups = rank(fabric, world)
            body(NcclComm(self.devices, groups, ordered=self.ordered))

        on_ranks(4, one)
        fabric.check()

    def parameters(self, check: str) -> Any:
        """Cases in which something is packed, combined or filled on the device."""
        rows = list(super().parameters(check))
        return [row for row in rows if row[0] in (self.comm_name, *PACKED)]

    def driver(self, device: Device) -> Driver:
        return GPUS[device.index].driver


PACKED = (
    "all_gather", "all_gather_columns", "all_gather_uneven", "reduce_scatter_columns",
    "reduce_scatter_uneven", "all_reduce_bucket", "all_to_all_transpose", "all_to_all_uneven",
    "broadcast_scalar", "reduce_max", "slice", "pad_max", "pad_sum", "pad_nothing",
)  # fmt: skip


class TestInOrder(TestOnSimulatedGpus):
    ordered = True
    dtypes: ClassVar[tuple[str, ...]] = ("bfloat16", "bool")


@pytest.mark.parametrize("case", ["all_reduce_bucket", "all_gather_columns", "all_to_all_uneven"])
def test_exchanges_run_in_a_captured_graph(case: str) -> None:
    """A step with an exchange is one graph; a replay of it calls nothing and moves new numbers."""
    (exchange,) = comm_cases.CASES[case](DEVICES, as_dtype("float32"))
    fabric = Fabric()

    def body(world: Any) -> None:
        gpu, groups = rank(fabric, world)
        comm = NcclComm(DEVICES, groups, ordered=False)
        kit = TestOnSimulatedGpus()
        run = comms.BoundExchange(kit, comm, exchange, 0)
        step = gpu.driver.compile(run._launches)
        calls = []
        for number in range(4):
            run.refill(number)
            comm.before_step()
            step()
            comm.after_step()
            run.check()
            calls.append(len(groups.library.depths))
        assert calls == [1, 2, 2, 2], "queued, captured, then replayed"
        assert describe(step.parts).startswith("graph of ")
        assert len(step.parts) == 1
        want = {link: 4 * n for link, n in exchange.links().items() if link[0] in comm.local}
        assert dict(comm.sent()) == want

    on_ranks(4, body)
    fabric.check()


# -------------------------------------------------------------------------------- a whole plan

PAIR = "0:0-1"


def job_on(device: str) -> Any:
    """Training whose first layer is split by rows, the second one replicated."""
    registry = simulated_registry() if device == "gpu" else core_registry()
    sessions._default[:] = [sessions.Session(registry)]
    init = flow.random_normal_initializer(stddev=0.3)
    config = flow.function_config()
    config.share_replicas(False)

    @flow.global_function("train", function_config=config)
    def job(
        x: tp.Numpy.Placeholder((6, 10)), y: tp.Numpy.Placeholder((6,), dtype=flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement(device, PAIR):
            split = flow.distribute.split(0)
            h = flow.layers.dense(x, 7, kernel_initializer=init, name="h", model_distribute=split)
            h = flow.layers.dense(flow.nn.relu(h), 4, kernel_initializer=init, name="o")
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, h)
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(rate, momentum=0.9).minimize(loss)
        return loss

    return job


def feeds() -> Any:
    rng = np.random.default_rng(0)
    return [(rng.random((6, 10), "f4"), rng.integers(0, 4, 6).astype("i4")) for _ in range(4)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
def test_a_plan_on_two_gpus_computes_what_it_does_on_two_cpus(ordered: bool, parts: bool) -> None:
    """Each rank binds and runs its part; from the second step on it replays one graph.

    The plan has all devices, or describes exchanges for the device of the rank.
    """
    before = list(sessions._default)
    on_cpu = job_on("cpu")
    on_cpu.executable()
    session = on_cpu.active_session()
    initial = {name: session.value(name) for name in session.declared}
    wanted = [on_cpu(*fed) for fed in feeds()]
    job = job_on("gpu")
    registry = job.active_session().registry
    plans = [
        job.compile_classes(Device("gpu", 0, i)).plan if parts else job.plan() for i in range(2)
    ]
    assert all(bool(plan.classes) == parts for plan in plans)
    sessions._default[:] = before
    results: list[Any] = []
    fabric = Fabric()

    def body(world: Any) -> None:
        gpu, groups = rank(fabric, world)
        made, plan = list[Any](), plans[world.rank]

        def comm(devices: Any) -> Comm:
            made.append(NcclComm(devices, groups, ordered=ordered))
            return made[0]

        def variable(name: str, device: Device, region: Any, shape: Any) -> Any:
            window = (...,) if region is None else tuple(slice(a, b) for a, b in region)
            return gpu.array(np.ascontiguousarray(initial[name][window]).reshape(shape))

        part = Executable(plan, registry, lambda device: gpu.driver, variable, comm=comm)
        assert set(part.arenas) == set(made[0].local)
        found = []
        for fed in feeds():
            found.extend(part.run(fed))
            gpu.hardware.synchronize(gpu.hardware.record(gpu.hardware.compute))  # no fetch, no wait
        results.extend(loss for loss in found if loss is not None)
        assert len(part._launch.parts) == 1, describe(part._launch.parts)
        assert gpu.hardware.log.count("begin capture") == 1
        step, once = (links_of(exchanges(plan, once=kind)) for kind in (False, True))
        links = {
            link: len(feeds()) * step.get(link, 0) + once.get(link, 0) for link in (*step, *once)
        }
        mine = {link: n for link, n in links.items() if link[0] in made[0].local and n}
        assert dict(made[0].sent()) == mine, "to the byte, also where a graph is replayed"

    on_ranks(2, body)
    fabric.check()
    np.testing.assert_allclose(results, wanted, rtol=2e-5)


# ------------------------------------------------------------- the script for real devices


@pytest.mark.slow
def test_the_checks_for_real_gpus_pass_on_simulated_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VERDICT, "error", None)
    path = Path(__file__).parents[3] / "benchmarks" / "nccl_checks.py"
    spec = importlib.util.spec_from_file_location("nccl_checks", path)
    assert spec is not None
    assert spec.loader is not None
    checks = sys.modules["nccl_checks"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(checks)
    checks.DTYPE_NAMES, checks.LARGE = ("float32", "bool"), 1 << 10
    rows: list[Any] = []
    fabric = Fabric()

    def body(world: Any) -> None:
        gpu, groups = rank(fabric, world)
        setup = checks.Setup(
            (Device("gpu", 0, 0), Device("gpu", 0, 1)),
            {Device("gpu", 0, world.rank): gpu.driver},
            groups,
            world,
        )
        for check in (*checks.CHECKS, *checks.TOGETHER, checks.abort):
            rows.extend(checks.guarded(check, setup))

    on_ranks(2, body)
    assert not fabric.violations
    assert not [row for row in rows if row.result == "FAILED"]
    names = {row.name for row in rows if row.result == "passed"}
    assert names == {
        "one device", "exchanges", "exchanges, in order", "captured", "same bits",
        "same bits, in order", "abort",
    }  # fmt: skip
