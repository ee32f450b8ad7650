"""Devices with so much memory: plans are made to fit, or refused with the forms that would."""

from typing import Any

import numpy as np
import pytest
from parallel_forms import emulated

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.config import Settings
from flow_core.base.errors import ConfigError, OutOfMemoryError
from flow_core.builtin.numpy_driver import NumpyDriver
from flow_core.sharding.topology import Device

MIB = 1 << 20


def make_job(selector: str = "greedy", batch: int = 64, width: int = 256, **settings: Any) -> Any:
    config = flow.function_config()
    config.sbp_selector(selector)
    for name, value in settings.items():
        getattr(config, name)(value)

    def job(x: tp.Numpy.Placeholder((batch, width))) -> tp.Numpy:
        with flow.scope.placement("gpu", "0:0-3"):
            h = x
            for i in range(4):
                begin = flow.random_normal_initializer(stddev=0.1)
                h = flow.layers.dense(
                    h, width, flow.math.tanh, kernel_initializer=begin, name=f"l{i}"
                )
            loss = flow.math.reduce_mean(flow.math.square(h))
            rate = flow.optimizer.PiecewiseConstantScheduler([], [1e-3])
            flow.optimizer.Adam(rate).minimize(loss)
        return loss

    job.__name__ = f"of_{batch}_rows"
    return flow.global_function(type="train", function_config=config)(job)


def held(job: Any) -> dict[str, int]:
    """Bytes of arena and variables, by device."""
    plan = job.plan()
    found = {arena.device: arena.nbytes for arena in plan.arenas}
    own = (b for b in plan.buffers if b.kind == "variable" and not b.home)
    for buffer in {(b.name, b.device): b for b in own}.values():
        found[buffer.device] += buffer.type.nbytes
    return found


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("", None), ("4096", 4096), ("2GiB", 2 << 30), ("1.5 GB", 1_500_000_000), ("3m", 3_000_000)],
)
def test_the_setting(text: str, nbytes: int | None) -> None:
    settings = Settings.from_env({"ONEFLOW_EMULATE_GPU_MEMORY": text})
    assert settings.emulate_gpu_memory == nbytes


@pytest.mark.parametrize("text", ["much", "-5", "2 PB", "GiB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match="ONEFLOW_EMULATE_GPU_MEMORY"):
        Settings.from_env({"ONEFLOW_EMULATE_GPU_MEMORY": text})


def test_a_driver_knows_what_is_left() -> None:
    driver = NumpyDriver(Device("cpu", 0, 0), 1000)
    arena = driver.allocate(600)
    array = arena.view(0, (5,), np.float32)
    del arena
    assert driver.memory() == 400
    del array
    assert driver.memory() == 1000


@pytest.mark.slow
def test_a_plan_that_fits_runs_and_devices_hold_what_is_theirs() -> None:
    x = np.ones((64, 256), np.float32)
    with emulated(4):
        wanted = make_job()(x)
    with emulated(4, memory=8 * MIB):
        job = make_job()
        assert all(0 < nbytes <= 8 * MIB for nbytes in held(job).values())
        np.testing.assert_array_equal(job(x), wanted)


@pytest.mark.slow
def test_another_plan_must_do_with_what_is_left() -> None:
    with emulated(4, memory=8 * MIB):
        first, second = make_job(), make_job(batch=4096, memory_search="off")
        first(np.ones((64, 256), np.float32))
        with pytest.raises(OutOfMemoryError) as caught:
            second.plan()
        left = int(caught.value.allowed.split(" ")[0].replace(",", ""))
        assert abs(8 * MIB - max(held(first).values()) - left) < 4096


@pytest.mark.slow
@pytest.mark.representative(r"\[20000-", "a limit below every form")
@pytest.mark.parametrize(("limit", "fits"), [(4_000_000, True), (20_000, False)])
def test_a_refusal_names_owners_and_the_forms_that_fit(limit: int, fits: bool) -> None:
    with emulated(4, memory=limit), pytest.raises(OutOfMemoryError) as caught:
        make_job(memory_search="off").plan()
    error = caught.value
    assert "l0-weight" in error.found
    assert "a variable" in error.found
    assert __file__ in error.found
    assert error.hint is not None
    first, *lines = error.hint.split("\n")
    if fits:
        assert "fit with other settings" in first
        assert any("in parts: " in line and 'memory_search("on")' in line for line in lines)
    else:
        assert "the smallest of" in first
        assert lines[0].endswith(" bytes")


@pytest.mark.slow
def test_the_form_that_is_named_fits() -> None:
    with emulated(4, memory=4_000_000):
        job = make_job(optimizer_placement_optimization_mode="distributed_split")
        assert max(held(job).values()) <= 4_000_000
        job(np.ones((64, 256), np.float32))


@pytest.mark.slow
def test_layouts_for_less_memory() -> None:
    """Rows are split where they are many, until the weights have to be split."""
    with emulated(4, memory=64 * MIB):
        roomy = make_job("optimal", 1024, 512)
        needed, report = max(held(roomy).values()), roomy.compile().physical.report
    assert report is not None
    assert "its price" not in report.method
    with emulated(4, memory=needed - 64):
        tight = make_job("optimal", 1024, 512)
        assert max(held(tight).values()) < needed
        searched = tight.compile().searched
        tight(np.ones((1024, 512), np.float32))
    assert searched is not None
    assert "layouts" in searched.kinds


@pytest.mark.slow
def test_memory_that_is_reserved() -> None:
    with emulated(4, memory=8 * MIB):
        flow.config.reserved_device_mem_mbyte(7)
        with pytest.raises(OutOfMemoryError, match="allowed: 1,048,576 bytes"):
            make_job().plan()
        with pytest.raises(ConfigError):
            flow.config.reserved_device_mem_mbyte(-1)
