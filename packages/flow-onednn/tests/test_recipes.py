"""Results of problems are kept as long as plans use them."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import numpy as np
import processes
import pytest

from flow_onednn import primitives, recipes, threads
from flow_onednn.library import library
from flow_onednn.primitives import address, bind_primitive, create, plain
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


@pytest.mark.usefixtures("onednn")
def test_bound_primitives_share_what_is_executed_while_it_is_in_use() -> None:
    types = [plain(shape, "float32") for shape in ((2, 3), (3, 4), (2, 4))]
    made = create("matmul", *types[:2], library().ffi.NULL, types[2])
    arrays = [np.zeros(shape, np.float32) for shape in ((2, 3), (3, 4), (2, 4))]
    rows = zip(
        ("src", "weights", "dst"), zip(types, map(address, arrays), strict=True), strict=True
    )
    tensors = dict(rows)
    first, second = (bind_primitive(made, tensors) for _ in range(2))
    assert first.primitive is second.primitive
    with threads.limited(3):
        other = bind_primitive(made, tensors)
    assert (other.primitive is first.primitive) == (threads.runtime() is None)
    before = len(primitives._executables)
    del first, second
    assert len(primitives._executables) == before - 1


SIZES = Path(__file__).parents[3] / "tests" / "helpers" / "programs" / "memory_of_sizes.py"


@pytest.mark.slow
@pytest.mark.usefixtures("onednn")
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and glibc")
def test_memory_does_not_grow_with_the_number_of_sizes() -> None:
    """The bounds are lowered, so that half of the sizes reach them."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FLOW_", "ONEFLOW_"))}
    command = [sys.executable, "-W", "ignore", str(SIZES), "convolution", "80", "64"]
    done = processes.run(command, env=kept, check=True)
    resident = [int(number) for number in done.stdout.split()]
    assert len(resident) == 8
    assert resident[-1] - resident[3] < 6 << 20, "40 more sizes"
