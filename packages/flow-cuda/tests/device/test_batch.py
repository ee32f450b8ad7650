"""Updates of many variables in one launch have the same bits as separate updates."""

from collections.abc import Iterator

import numpy as np
import pytest
from cuda_cases import Collector, on_device, simulated_registry, update_launches
from cuda_simulator import host_compiler
from cuda_simulator.hardware import Simulator

import oneflow as flow
import oneflow.typing as tp
from flow_core.authoring.update_rules import BY_TYPE
from flow_core.frontend.session import session as sessions
from flow_cuda.device import batch
from flow_cuda.device.batch import merge_launches
from flow_cuda.device.launch import ZeroLaunch
from flow_cuda.driver.gpu import GpuDriver

needs_compiler = pytest.mark.skipif(
    host_compiler.compiler() is None, reason="no C++ compiler to run the kernels with"
)
SHAPES = ((7,), (300,), (), (3, 5))


@pytest.fixture(autouse=True)
def own_sessions() -> Iterator[None]:
    before = list(sessions._default)
    yield
    sessions._default[:] = before


@pytest.mark.slow
@pytest.mark.representative("adam_update", "the others differ in the optimizer")
@needs_compiler
@pytest.mark.parametrize("op", BY_TYPE)
def test_joined_launches_have_the_bits_of_separate_launches(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "MAX_BLOCKS", 3)
    results = []
    for how in (list, merge_launches):
        driver = GpuDriver(Simulator())
        launches, arrays = update_launches(driver, op, SHAPES)
        made = how(launches)
        assert len(made) == len(launches) // (1 if how is list else len(SHAPES))
        for _ in range(2):
            for launch in made:
                launch()
        results.append([driver.copy_out(x) for row in arrays for x in row])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_different_types_are_not_joined() -> None:
    driver = GpuDriver(Simulator(compiler=Collector()))
    wide, _ = update_launches(driver, "sgd_update", SHAPES)
    narrow, _ = update_launches(driver, "sgd_update", SHAPES, "float16")
    assert len(merge_launches([*wide, *narrow])) == 2


def test_launch_does_not_move_before_its_dependencies() -> None:
    driver = GpuDriver(Simulator(compiler=Collector()))
    (first, second), (_, kept) = update_launches(driver, "sgd_update", SHAPES[:2])
    other = ZeroLaunch(driver.hardware, on_device(driver, np.zeros(4, np.float32)))
    needed = ZeroLaunch(driver.hardware, kept[0])
    assert len(merge_launches([first, other, second])) == 2
    assert len(merge_launches([first, needed, second])) == 3
    assert len(merge_launches([first, print, second])) == 3, "the effects of host calls are unknown"
    assert len(merge_launches([first, second, needed])) == 2
    assert len(merge_launches([first, second, first])) == 2, "one variable twice"


@pytest.mark.slow
@needs_compiler
def test_step_has_one_launch_for_all_updates() -> None:
    session = sessions.Session(simulated_registry())
    sessions._default[:] = [session]

    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((4, 6))) -> tp.Numpy:
        with flow.scope.placement("gpu", "0:0"):
            start = flow.random_uniform_initializer(-0.5, 0.5)
            for i in range(3):
                x = flow.layers.dense(x, 5 + i, kernel_initializer=start, name=f"layer{i}")
            loss = flow.math.reduce_mean(flow.math.square(x))
            schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(schedule, momentum=0.9).minimize(loss)
        return loss

    feed = np.ones((4, 6), np.float32)
    losses = [job(feed).item() for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    drivers = [d for d in session._drivers.values() if isinstance(d, GpuDriver)]
    log = [line for driver in drivers for line in driver.hardware.log]
    assert sum(": many_momentum" in line for line in log) == 3
    assert not [line for line in log if ": momentum" in line]
