"""The comm of any device types passes the kit with arrays that the host cannot read."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from opaque_devices import OpaqueDriver, core_registry, opaque_registry

from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import DeviceUnavailableError
from flow_core.builtin.in_process import staged
from flow_core.builtin.null_driver import NullComm
from flow_core.device import SLAB_BYTES, Comm
from flow_core.plugins.registry import Registry
from flow_core.plugins.specs import Available, CommSpec
from flow_core.sharding.topology import Device
from flow_core.testing import CommKit, comm_cases, comms


def devices(*types: str) -> tuple[Device, ...]:
    counts: dict[str, int] = {}
    found = []
    for type_ in types:
        found.append(Device(type_, 0, counts.setdefault(type_, 0)))
        counts[type_] += 1
    return tuple(found)


class StagedKit(CommKit):
    comm_name = "staged"
    plugin = "core.comm"
    dtypes: ClassVar[tuple[str, ...]] = ("float32",)

    def registry(self) -> Registry:
        return opaque_registry(emulate_gpus=2)


class TestFour(StagedKit):
    devices = devices(*["opaque"] * 4)
    dtypes = CommKit.dtypes


class TestThree(StagedKit):
    devices = devices(*["opaque"] * 3)


class TestTwo(StagedKit):
    devices = devices(*["opaque"] * 2)


class TestOne(StagedKit):
    devices = devices("opaque")


class TestOneWithCpus(StagedKit):
    devices = devices("cpu", "opaque", "cpu", "cpu")


class TestTwoWithCpus(StagedKit):
    devices = devices("opaque", "cpu", "opaque", "cpu")


class TestThreeWithCpu(StagedKit):
    devices = devices("opaque", "opaque", "cpu", "opaque")


class TestFourWithCpu(StagedKit):
    """The first four take part in exchanges."""

    devices = devices("opaque", "cpu", "opaque", "opaque", "opaque")


class TestThreeTypes(StagedKit):
    devices = devices("gpu", "opaque", "cpu", "gpu")


class TestCpus(StagedKit):
    devices = devices(*["cpu"] * 4)


# ----------------------------------------------------------------------------------- copies

OPAQUE, CPU = devices("opaque", "opaque"), devices("cpu", "cpu")


def copies(case: str, *group: Device) -> tuple[comms.BoundExchange, dict[str, int]]:
    """Run an exchange; return it and the copies of the devices."""
    kit = StagedKit()
    kit._made.clear()
    (exchange,) = comm_cases.CASES[case](group, as_dtype("float32"))
    comm = staged(group)
    comm.attach(kit.driver)
    run = comms.BoundExchange(kit, comm, exchange, 0)
    drivers = [d for d in map(kit.driver, group) if isinstance(d, OpaqueDriver)]
    for driver in drivers:
        driver.copies.clear()
    run.launch()
    total = sum((driver.copies for driver in drivers), start=drivers[0].copies.__class__())
    run.check()
    return run, dict(total)


@pytest.mark.parametrize(
    ("case", "group", "wanted"),
    [
        ("send_recv", (OPAQUE[0], CPU[0]), {"in": 1}),
        ("send_recv", (CPU[0], OPAQUE[0]), {"out": 1}),
        ("send_recv", OPAQUE, {"in": 1, "out": 1}),
        ("all_reduce", OPAQUE, {"in": 2, "out": 2}),
        ("all_reduce", (OPAQUE[0], CPU[0]), {"in": 1, "out": 1}),
        ("slice", (OPAQUE[0],), {"in": 1, "out": 1}),
        ("pad_nothing", (OPAQUE[0],), {"in": 1}),
        ("broadcast", (OPAQUE[0], CPU[0]), {"in": 1}),
    ],
)
def test_each_array_is_copied_once_and_into_staging_memory(
    case: str, group: tuple[Device, ...], wanted: dict[str, int]
) -> None:
    assert copies(case, *group)[1] == wanted


def test_a_transfer_needs_no_other_copy() -> None:
    """The host array is the CPU's own, so that nothing is left to do between the copies."""
    for group in ((OPAQUE[0], CPU[0]), (CPU[0], OPAQUE[0])):
        run, _ = copies("send_recv", *group)
        assert len(run._launches) == 2, "the copy, and the count of its bytes"


def test_exchanges_of_a_stream_share_staging_memory() -> None:
    kit, comm = StagedKit(), staged(OPAQUE)
    comm.attach(kit.driver)
    for stream in (0, 0, 1):
        exchange = comm_cases.all_gather((1 << 18, 1 << 18))(OPAQUE, as_dtype("float32"))
        comms.BoundExchange(kit, comm, replace(exchange, stream=stream), 0)
    held = [sum(slab.nbytes for slab in s._slabs) for s in comm._staging.values()]
    assert held == [2 * SLAB_BYTES] * 2


# ----------------------------------------------------------------------------------- selection


class Wires:
    """A comm of a plugin."""

    FLOW_PLUGIN_API = "1.0"
    __name__ = "wires"

    def flow_register_comms(self) -> Iterator[CommSpec]:
        yield CommSpec("wires", ("opaque",), lambda: Available(1), NullComm)


class Processes:
    """A world of two processes on CPUs."""

    FLOW_PLUGIN_API = "1.0"
    __name__ = "processes"
    size = 2

    def flow_register_comms(self) -> Iterator[CommSpec]:
        yield CommSpec("mesh", ("cpu",), lambda: Available(2), NullComm, 10, lambda: self)


def test_it_connects_what_no_other_comm_does() -> None:
    registry = opaque_registry(Wires())
    assert isinstance(registry.comm(CPU), Comm)
    assert registry.comm_spec(CPU).name == "in_process"
    assert registry.comm_spec(OPAQUE).name == "wires"
    assert registry.comm_spec((*OPAQUE, *CPU)).name == "staged"
    assert opaque_registry().comm_spec(OPAQUE).name == "staged"
    assert not opaque_registry().comm_spec(OPAQUE).shares_memory
    assert core_registry().comm_spec(devices("null")).name == "null"


def test_it_connects_the_devices_of_one_process_only() -> None:
    registry = opaque_registry(Processes())
    assert registry.comm_spec(CPU).name == "mesh"
    with pytest.raises(DeviceUnavailableError, match=r"staged: .*2 processes"):
        registry.comm_spec(OPAQUE)


def test_launches_allocate_nothing() -> None:
    kit, comm = StagedKit(), staged(OPAQUE)
    comm.attach(kit.driver)
    exchange = comm_cases.all_reduce((1 << 16,))(OPAQUE, as_dtype("float32"))
    run = comms.BoundExchange(kit, comm, exchange, 0)
    run.launch()
    tracemalloc.start()
    run.launch()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4096


def test_arrays_of_the_device_refuse_the_host() -> None:
    """The device of these tests is what they need."""
    kit, uses = (
        StagedKit(),
        (np.asarray, len, list, bool, lambda x: x[...], lambda x: x.reshape(-1), np.sum),
    )
    array: Any = kit.driver(OPAQUE[0]).allocate(8).view(0, (2,), np.float32)
    for use in uses:
        with pytest.raises(AssertionError, match="the host used"):
            use(array)
