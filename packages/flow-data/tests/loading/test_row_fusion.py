"""Row fusion: several ops process one row at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_core.base.dtypes import int64
from flow_core.ir.graph import tensor_type
from flow_data.instances import RowError
from flow_data.loading.body import Member
from flow_data.loading.row_fusion import FusedRows, Stage, Stopped, fuse_rows
from flow_data.rows import StepLaunch, for_each_row

ROWS = 3
GO = threading.Event()


def member(name: str, *inputs: int) -> Member:
    return Member(
        name, name, "test", tuple((i, 0) for i in inputs), {}, (tensor_type((ROWS,), int64),)
    )


class Batch:
    """Return ops that add up their inputs, by row or for the batch, in object buffers."""

    def __init__(self, inputs: list[list[int]], by_row: list[bool]) -> None:
        self.members = [member(f"m{i}", *sources) for i, sources in enumerate(inputs)]
        self.arrays = [[np.full(ROWS, None, object)] for _ in inputs]
        self.log: list[tuple[int, int]] = []
        self.stages = [self._stage(i, rows) for i, rows in enumerate(by_row)]

    def _stage(self, i: int, by_row: bool) -> Stage:
        def work(row: int) -> None:
            self.log.append((i, row))
            sources = self.members[i].inputs
            self.arrays[i][0][row] = 10 * i + row + sum(self.arrays[m][k][row] for m, k in sources)

        def whole() -> None:
            for row in range(ROWS):
                work(row)

        return Stage(i, f"m{i}", for_each_row("test", ROWS, work) if by_row else whole)

    def run(self, kept: list[int], chains: bool) -> list[Any]:
        slots = [(i, 0) for i in kept]
        parts = fuse_rows(self.stages, self.members, self.arrays, slots) if chains else self.stages
        for part in parts:
            part.run(GO, {})
        return [self.arrays[i][0].tolist() for i in kept]


@st.composite
def graphs(draw: Callable[..., Any]) -> tuple[list[list[int]], list[bool], list[int]]:
    count = draw(st.integers(1, 7))
    inputs = [
        draw(st.lists(st.integers(0, i - 1), max_size=2, unique=True)) if i else []
        for i in range(count)
    ]
    by_row = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    kept = draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True))
    return inputs, by_row, kept


@given(graphs())
def test_chains_match_unfused_execution(graph: tuple[Any, Any, Any]) -> None:
    inputs, by_row, kept = graph
    plain, chain = Batch(inputs, by_row), Batch(inputs, by_row)
    for _ in range(2):  # the second batch reuses the state of the first
        assert chain.run(kept, True) == plain.run(kept, False)
    assert sorted(chain.log) == sorted(plain.log)


def test_each_row_passes_all_ops_and_leaves_no_temporaries() -> None:
    batch = Batch([[], [0], [], [1, 2]], [True, True, False, True])
    batch.run([3], True)
    whole, chain = [(2, r) for r in range(ROWS)], [(i, r) for r in range(ROWS) for i in (0, 1, 3)]
    assert batch.log == whole + chain  # ops that do not read the chain run before it
    assert [a[0].tolist() for a in batch.arrays[:2]] == [[None] * ROWS] * 2
    assert None not in batch.arrays[2][0].tolist()


def test_op_that_reads_the_whole_batch_ends_a_chain() -> None:
    batch = Batch([[], [0], [1], [2]], [True, True, False, True])
    parts = fuse_rows(batch.stages, batch.members, batch.arrays, [(3, 0)])
    assert [type(p) for p in parts] == [FusedRows, Stage, Stage]
    assert isinstance(parts[0], FusedRows)
    assert len(parts[0].temporaries) == 1  # m0's; m1 is read later


def test_random_draws_of_a_later_op_do_not_end_a_chain() -> None:
    batch = Batch([[], [0]], [True, True])
    draws = Stage(1, "m1", StepLaunch(lambda: batch.log.append((9, 9))))
    first, second = batch.stages
    parts = fuse_rows([first, draws, second], batch.members, batch.arrays, [(1, 0)])
    assert [type(p) for p in parts] == [Stage, FusedRows]


def test_errors_name_the_row() -> None:
    def work(row: int) -> None:
        if row == 1:
            raise ValueError("no picture")

    with pytest.raises(RowError, match=r"(?s)test, instance 1.*no picture") as raised:
        for_each_row("test", ROWS, work)()
    assert raised.value.row == 1


def test_chain_stops_between_rows() -> None:
    stop = threading.Event()
    batch = Batch([[], [0]], [True, True])
    stop.set()
    (chain,) = fuse_rows(batch.stages, batch.members, batch.arrays, [(1, 0)])
    with pytest.raises(Stopped):
        chain.run(stop, {})
    assert not batch.log
