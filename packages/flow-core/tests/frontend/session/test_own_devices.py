"""What a process of several compiles, and what it knows of the parts of others."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flow_core.base.config import Settings
from flow_core.base.dtypes import float32
from flow_core.frontend.session.own_devices import own_devices
from flow_core.frontend.session.variable_storage import Part, StoredVariable, own_ranks
from flow_core.frontend.trace.variable_info import VariableInfo
from flow_core.ir.graph import NO_ATTRS, Op, tensor_type
from flow_core.sharding.layouts import TensorLayout
from flow_core.sharding.sbp import B, S, Sbp
from flow_core.sharding.topology import Device, Placement

FOUR = Placement.parse("cpu", "0:0-3")


class World:
    """Two processes, which have every other device."""

    rank, size = 1, 2

    def owner(self, device: Device) -> int:
        return device.index % 2


def job(placement: Placement, is_per_device: bool = False, **settings: Any) -> tuple[Any, Any]:
    """Return a session, and the build of a job with an op."""
    comm = SimpleNamespace(name="wires", binds_parts=settings.pop("binds_parts", True))
    spec = SimpleNamespace(is_per_device=lambda _: is_per_device)
    registry = SimpleNamespace(comm_spec=lambda _: comm, ops={"relu": spec})
    world = settings.pop("world", World())
    session = SimpleNamespace(world=world, registry=registry, settings=Settings(**settings))
    op = Op("relu", "relu", (), NO_ATTRS, placement)
    return session, SimpleNamespace(builder=SimpleNamespace(ops={"relu": op}))


def test_a_process_compiles_its_own_devices_and_their_hosts() -> None:
    found = own_devices(*job(Placement.parse("gpu", "0:0-3")))
    assert found.devices == [Device(kind, 0, i) for kind in ("cpu", "gpu") for i in (1, 3)]
    assert not found.reason


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (job(FOUR, world=None), "one process has all devices"),
        (job(FOUR, trace="trace.json"), "FLOW_TRACE observes"),
        (job(FOUR, stragglers="found.json"), "FLOW_STRAGGLERS observes"),
        (job(FOUR, check_finite="all"), "FLOW_CHECK_FINITE observes"),
        (job(FOUR, is_per_device=True), "mirrored view"),
        (job(Placement("cpu", ((0, 0), (0, 2)))), "one process has all devices of the job"),
        (job(FOUR, binds_parts=False), "comm 'wires' binds plans of all devices only"),
    ],
)
def test_what_needs_all_devices_compiles_all(given: tuple[Any, Any], reason: str) -> None:
    found = own_devices(*given)
    assert found.devices is None
    assert reason in found.reason


def adopted(sbp: Sbp) -> StoredVariable:
    """Return a variable of four devices, two of which belong to this process."""
    world: Any = World()
    info = VariableInfo("w", tensor_type((6, 2), float32), NO_ATTRS, "job", None)
    stored, layout = StoredVariable(info, "cpu", world=world), TensorLayout(FOUR, (sbp,))
    array: Any = np.zeros((1, 2), np.float32)
    own = own_ranks(FOUR, world.owner, world.rank, 1)
    parts = {FOUR.device(i): Part(layout.region((6, 2), i), array, None, 1) for i in own}
    stored.adopt(layout, parts)
    return stored


def test_parts_of_other_processes_follow_from_the_layout() -> None:
    stored = adopted(S(0))
    assert [part.region[0] for part in stored.local] == [(2, 4), (5, 6)]
    assert stored.has_parts
    assert stored.is_whole
    assert stored.is_in(TensorLayout(FOUR, (S(0),)))
    assert not stored.is_in(TensorLayout(FOUR, (B,)))
    found = [(d.index, p.region[0], p.root, p.array is None) for d, p in stored.parts.items()]
    assert found == [
        (0, (0, 2), 0, True),
        (1, (2, 4), 1, False),
        (2, (4, 5), 0, True),
        (3, (5, 6), 1, False),
    ]
    assert stored.is_in(TensorLayout(FOUR, (S(0),)))
    assert len(stored.local) == 2


def test_an_adopted_layout_can_be_restored() -> None:
    stored = adopted(B)
    restore = stored.state()
    assert len(stored.parts) == 4
    stored.parts.clear()
    assert not stored.has_parts
    restore()
    devices = [FOUR.device(i) for i in range(4)]
    assert list(stored.parts) == devices
    assert stored.apart_from(devices) == []
    assert stored.apart_from(devices[1:2]) == [devices[0], *devices[2:]]
