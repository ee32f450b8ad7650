"""The built-in null and emulated devices."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from flow_core.base.config import Settings
from flow_core.base.dtypes import float32
from flow_core.base.errors import DeviceUnavailableError, PlanError
from flow_core.builtin.null_driver import NullDriver
from flow_core.device import Driver
from flow_core.ir.graph import tensor_type
from flow_core.plugins.host import Host
from flow_core.plugins.registry import Registry
from flow_core.plugins.specs import Available, BindContext, KernelQuery, load
from flow_core.sharding.topology import Device

BUILTINS = tuple(
    f"flow_core.builtin.{name}_plugin" for name in ("ops", "numpy", "null", "emulated")
)


def registry(emulate_gpus: int = 0, *extra: object) -> Registry:
    return Host(Settings(plugins=(), emulate_gpus=emulate_gpus), extra, BUILTINS).load()


def test_null_device_is_a_driver() -> None:
    driver = registry().driver(Device("null", 0, 3))
    assert isinstance(driver, Driver)
    assert driver.device == Device("null", 0, 3)
    assert driver.memory() is None


def test_null_device_allocates_nothing() -> None:
    tracemalloc.start()
    arena = NullDriver(Device("null", 0, 0)).allocate(1 << 40)
    array = arena.view(1 << 39, (1 << 18, 1 << 10), "float32")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert array.nbytes == 1 << 30
    assert peak < 100_000


def test_null_arrays_stay_inside_their_arena() -> None:
    arena = NullDriver(Device("null", 0, 0)).allocate(64)
    assert arena.view(0, (4, 4), "float32").size == 16
    for offset in (-4, 4):
        with pytest.raises(PlanError, match="0 to 64"):
            arena.view(offset, (4, 4), "float32")


def test_null_device_counts_launches_and_bytes() -> None:
    driver = NullDriver(Device("null", 0, 0))
    ran: list[int] = []
    step = driver.compile([lambda: ran.append(1)] * 3)
    step()
    step()
    array = driver.allocate(256).view(0, (2, 3), "float32")
    driver.copy_in(array, np.ones((2, 3), np.float32))
    out = driver.copy_out(array)
    assert (driver.launched, driver.allocated, driver.copied_in, driver.copied_out) == (
        6,
        256,
        24,
        24,
    )
    assert not ran
    assert (out.shape, out.dtype) == ((2, 3), np.float32)


@pytest.mark.parametrize("bad", [np.ones((3, 2), np.float32), np.ones((2, 3))])
def test_null_device_checks_fed_arrays(bad: Any) -> None:
    driver = NullDriver(Device("null", 0, 0))
    array = driver.allocate(256).view(0, (2, 3), "float32")
    with pytest.raises(PlanError, match=r"float32\[2, 3\]"):
        driver.copy_in(array, bad)


def test_null_device_streams() -> None:
    stream = NullDriver(Device("null", 0, 0)).stream("compute")
    stream.wait_event(stream.record())
    stream.synchronize()


def test_null_device_has_a_kernel_for_every_op() -> None:
    type_ = tensor_type((2,), float32)
    query = KernelQuery("anything", {}, (type_,), (type_,))
    spec = registry().find_kernel(query, "null")
    assert load(spec.load)(BindContext(query, (), ()))() is None


def test_no_emulated_gpu_without_the_setting() -> None:
    with pytest.raises(DeviceUnavailableError, match="ONEFLOW_EMULATE_GPUS=1"):
        registry().require_device("gpu")


def test_setting_determines_the_number_of_emulated_gpus() -> None:
    found = registry(2)
    assert found.probe("gpu") == Available(2, "emulated on the CPU")
    assert found.require_device("gpu", 2).kernels == "cpu"
    with pytest.raises(DeviceUnavailableError, match="2 available"):
        found.require_device("gpu", 3)
