"""The comm kit over a NCCL that runs in Python, on several ranks, which are threads."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from nccl_fakes import Device, Fabric, array_of, on_ranks

from flow_core.device import Comm
from flow_core.testing import CommKit
from flow_dist.nccl import NcclComm
from flow_dist.nccl_groups import Groups

DEVICES = tuple(f"gpu:0:{index}" for index in range(4))


class RanksKit(CommKit):
    """Each of several threads is a process with some of four devices."""

    comm_name = "nccl"
    devices = DEVICES
    ranks = 2
    ordered = False
    gpus: dict[str, Device]

    def everywhere(self, body: Callable[[Comm], None]) -> None:
        fabric, self.gpus = Fabric(), {name: Device(i) for i, name in enumerate(self.devices)}

        def one(world: Any) -> None:
            groups = Groups(fabric.library(), world)
            body(NcclComm(self.devices, groups, ordered=self.ordered))

        on_ranks(self.ranks, one)
        fabric.check()

    def array(self, device: str, value: Any) -> Any:
        return array_of(self.gpus[device], value) if device else value

    def host(self, array: Any) -> Any:
        return array.numpy().copy()


class TestOnTwoRanks(RanksKit):
    ranks = 2
    dtypes = ("float32",)


class TestOnThreeRanks(RanksKit):
    """One of them has two devices."""

    ranks = 3
    dtypes = ("float32", "bool")


class TestOnFourRanks(RanksKit):
    ranks = 4
    dtypes = ("float32",)


class TestInOneProcess(RanksKit):
    ranks = 1
    dtypes = ("float32",)


class TestInOrder(RanksKit):
    """Floating sums in the order of the exchange: by sends and receives."""

    ranks = 3
    ordered = True
    dtypes = ("float32",)


@pytest.mark.slow
class TestAllTypes(RanksKit):
    ranks = 3


@pytest.mark.slow
class TestAllTypesInOrder(RanksKit):
    ranks = 4
    ordered = True
