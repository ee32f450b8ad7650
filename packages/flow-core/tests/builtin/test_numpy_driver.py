"""Launches that the driver of CPUs joins."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from flow_core.builtin.numpy_driver import NumpyDriver
from flow_core.device import Launch
from flow_core.sharding.topology import Device

Join = Callable[[Sequence[Launch]], Launch]


class Noted:
    """A launch that notes its name, and the names of the launches with which it is joined."""

    def __init__(self, name: str, seen: list[str], join: Join) -> None:
        self.name, self._seen, self.join = name, seen, join

    def __call__(self) -> None:
        self._seen.append(self.name)


def joins(kind: str, seen: list[str]) -> Join:
    def join(launches: Sequence[Launch]) -> Launch:
        names = "".join(launch.name for launch in launches if isinstance(launch, Noted))
        return Noted(f"{kind}{names}", seen, join)

    return join


def test_neighbors_of_one_package_are_one_call() -> None:
    seen: list[str] = []
    first, second = joins("1", seen), joins("2", seen)
    launches: list[Launch] = [Noted(name, seen, first) for name in "abc"]
    launches += [Noted(name, seen, second) for name in "de"]
    launches += [lambda: seen.append("f"), Noted("g", seen, first), lambda: seen.append("h")]
    step = NumpyDriver(Device("cpu", 0, 0)).compile(launches)
    assert seen == []
    step()
    step()
    assert seen == ["1abc", "2de", "f", "g", "h"] * 2


def test_other_launches_run_without_floating_point_warnings() -> None:
    seen: list[str] = []
    launches = [lambda: seen.append(np.geterr()["divide"]), Noted("a", seen, joins("1", seen))]
    NumpyDriver(Device("cpu", 0, 0)).compile(launches)()
    assert seen == ["ignore", "a"]
