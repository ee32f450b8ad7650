"""Results of problems are kept as long as plans use them."""

from __future__ import annotations

import gc
import os
import sys

import processes
import pytest

from flow_onednn import recipes, threads
from flow_onednn.library import CAPACITY_SETTINGS
from flow_onednn.recipes import KEPT, Known, Problem


def problem(number: int) -> Problem:
    return Problem("op", (), (), (("number", number),))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the problems for which a result was made."""
    monkeypatch.setattr(recipes, "_unbound", type(recipes._unbound)())
    monkeypatch.setattr(recipes, "_bound", type(recipes._bound)())
    monkeypatch.setattr(recipes, "_owned", type(recipes._owned)())
    return []


def known_of(made: list[int]) -> Known[str]:
    def make(given: Problem) -> str:
        made.append(given.attrs["number"])
        return f"result {made[-1]}"

    return Known(make)


def test_a_result_is_made_once_and_kept_as_long_as_its_launches(made: list[int]) -> None:
    known = known_of(made)
    assert known(problem(1)) == known(problem(1)) == "result 1"
    first, second = [lambda: None], [lambda: None]
    assert known.bound(problem(1), first) is first
    known.bound(problem(1), second)
    assert not recipes._unbound
    del first
    gc.collect()
    assert known(problem(1)) == "result 1"
    assert made == [1], "the second plan still uses it"
    recipes._unbound.clear()
    del second
    gc.collect()
    assert not recipes._bound
    assert not recipes._owned
    assert known(problem(1)) == "result 1"
    assert made == [1, 1]


def test_results_that_no_plan_binds_are_few(made: list[int]) -> None:
    one, other = known_of(made), known_of(made)
    for number in range(KEPT):
        one(problem(number))
        other(problem(-number))
    assert len(recipes._unbound) == KEPT
    one(problem(KEPT - 1))
    assert len(made) == 2 * KEPT
    one(problem(0))
    assert len(made) == 2 * KEPT + 1


def test_a_result_is_for_a_number_of_threads(made: list[int]) -> None:
    known = known_of(made)
    for count in (1, 2, 1):
        with threads.limited(count):
            known(problem(1))
    assert len(made) == (2 if threads.runtime() is not None else 1)


SIZES = """
import ctypes, gc, sys
import numpy as np
import oneflow as flow, oneflow.typing as tp
from flow_onednn import recipes

@flow.global_function(type="train")
def job(x: tp.Numpy.Placeholder((None, 12, 12, 1))) -> tp.Numpy:
    draw = flow.truncated_normal_initializer(stddev=0.1)
    h = flow.layers.conv2d(x, 8, 3, padding="SAME", data_format="NHWC", activation=flow.nn.relu,
                           kernel_initializer=draw, name="c")
    h = flow.nn.max_pool2d(h, 2, 2, "VALID", "NHWC")
    h = flow.layers.dense(flow.reshape(h, (-1, 288)), 64, activation=flow.nn.relu,
                          kernel_initializer=draw, name="a")
    loss = flow.layers.dense(h, 1, kernel_initializer=draw, name="b")
    rate = flow.optimizer.PiecewiseConstantScheduler([], [0.01])
    flow.optimizer.SGD(rate, momentum=0).minimize(loss)
    return loss

def resident():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(open("/proc/self/statm").read().split()[1]) * 4096

recipes.KEPT = 64
for first in (1, 2):
    for size in range(first, 80, 2):
        job(np.ones((size, 12, 12, 1), np.float32))
    print(resident())
"""


@pytest.mark.slow
@pytest.mark.usefixtures("onednn")
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and glibc")
def test_memory_does_not_grow_with_the_number_of_sizes() -> None:
    """The bounds are lowered, so that half of the sizes reach them."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FLOW_", "ONEFLOW_"))}
    env = {**kept, CAPACITY_SETTINGS[0]: "64"}
    done = processes.run([sys.executable, "-W", "ignore", "-c", SIZES], env=env, check=True)
    before, after = map(int, done.stdout.split())
    assert after - before < 6 << 20, "40 more sizes"
