"""Cuts of a network into stages: the best ones, and where there are none."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from flow_core.base.dtypes import float32
from flow_core.frontend.job.forms.cuts import MOST, Cuts, cut
from flow_core.ir.graph import Attrs, Op, TensorType, Value, tensor_type
from flow_core.sharding.topology import Placement

PLACE = Placement("cpu", ((0, 0),))


class Network:
    """Ops with their times, and the sizes of their results."""

    def __init__(self) -> None:
        self.ops: dict[str, Op] = {}
        self.types: dict[str, tuple[TensorType]] = {}
        self.seconds: dict[str, float] = {}

    def add(self, name: str, type_: str, *inputs: str, size: int = 1, seconds: float = 0.0) -> str:
        values = tuple(Value(v, 0) for v in inputs)
        attrs = Attrs({"trainable": type_ == "variable"})
        kind = "variable" if type_ == "frozen" else type_
        self.ops[name] = Op(name, kind, values, attrs, PLACE)
        self.types[name] = (tensor_type((size,), float32),)
        self.seconds[name] = seconds
        return name

    def layer(self, i: int, x: str, seconds: float, size: int = 1, weight: str = "") -> str:
        weight = weight or self.add(f"w{i}", "variable", size=100)
        return self.add(f"y{i}", "matmul", x, weight, size=size, seconds=seconds)

    def cut(self, count: int, per_byte: float = 0.0) -> Cuts:
        return cut(self.ops, self.types, count, lambda op: self.seconds[op.name], per_byte)


def chain(seconds: list[float], sizes: list[int] | None = None) -> Network:
    network = Network()
    x = network.add("x", "input")
    for i, taken in enumerate(seconds):
        x = network.layer(i, x, taken, sizes[i] if sizes else 1)
    return network


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_slowest_stage_is_as_fast_as_possible(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    seconds, sizes = rng.integers(1, 20, 9).tolist(), rng.integers(1, 20, 9).tolist()
    found = chain(seconds, sizes).cut(count, per_byte=0.1).stage

    def slowest(cuts: tuple[int, ...]) -> float:
        spans = pairwise((0, *cuts, 9))
        return max(sum(seconds[a:b]) + (0.4 * sizes[a - 1] if a else 0) for a, b in spans)

    cuts = tuple(i for i in range(1, 9) if found[f"y{i}"] != found[f"y{i - 1}"])
    assert len(cuts) == count - 1
    assert slowest(cuts) == pytest.approx(min(map(slowest, combinations(range(1, 9), count - 1))))


def test_of_equal_cuts_the_one_with_fewest_bytes() -> None:
    """A residual network is cut between its layers."""
    network, x = Network(), "x"
    network.add("x", "input", size=4)
    for i in range(4):
        a = network.layer(2 * i, x, 1.0, size=9)
        b = network.layer(2 * i + 1, a, 1.0, size=9)
        x = network.add(f"s{i}", "add", b, x, size=4)
    found = network.cut(2).stage
    assert found["s1"] == 0
    assert found["y4"] == 1


def test_other_ops_are_where_they_are_read_first() -> None:
    network = Network()
    for name in ("x", "labels"):
        network.add(name, "input")
    network.add("shaped", "reshape", "labels")
    mask = network.add("mask", "frozen")
    x = "x"
    for i in range(4):
        x = network.add(f"m{i}", "add", network.layer(i, x, 1.0), mask, seconds=0.5)
    network.add("loss", "cross_entropy", x, "shaped")
    found = network.cut(2).stage
    assert {name for name, stage in found.items() if stage == 1} == {
        "labels", "shaped", "w2", "w3", "y2", "y3", "m2", "m3", "loss",
    }  # fmt: skip


@pytest.mark.parametrize("casts", [False, True])
def test_a_trained_variable_is_read_in_one_stage(casts: bool) -> None:
    network = Network()
    x, tied = network.add("x", "input"), network.add("tied", "variable")
    if casts:
        tied = network.add("half", "cast", tied)
    x = network.layer(0, x, 1.0, weight=tied)
    for i in range(1, 4):
        x = network.layer(i, x, 1.0, weight=tied if i == 2 else "")
    found = network.cut(2).stage
    assert [found[f"y{i}"] for i in range(4)] == [0, 0, 0, 1]
    network.layer(4, x, 1.0, weight=tied)
    assert network.cut(2).stage == {}


@pytest.mark.parametrize(("layers", "count"), [(0, 2), (1, 2), (3, 4)])
def test_too_few_layers(layers: int, count: int) -> None:
    assert chain([1.0] * layers).cut(count).stage == {}


def test_large_networks_have_few_borders() -> None:
    """Of neighboring borders, the one that the fewest bytes cross is kept."""
    count = 20 * MOST
    sizes = [1 if i % 10 == 9 else 50 for i in range(count)]
    found = chain([1.0] * count, sizes).cut(4).stage
    cuts = [i for i in range(1, count) if found[f"y{i}"] != found[f"y{i - 1}"]]
    assert [sizes[i - 1] for i in cuts] == [1, 1, 1]
    assert all(abs(i - k * count / 4) <= 20 for k, i in enumerate(cuts, 1))
