"""The work of the control server per check and per message, counted in operations."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from flow_dist.control.board import Board, Limits
from flow_dist.control.report import Reporter
from flow_dist.control.watch import Watch

LIMITS = Limits(stall=10)
SMALL, LARGE = 16, 64


def operations(call: Callable[[], Any]) -> int:
    """Return the number of bytecode instructions that a call executes."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    previous = sys.gettrace()
    # Python 3.12 counts instructions only if a frame has asked for them before `settrace`.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(previous)
    return count


def stalled_board(size: int, host: int = 8) -> Board:
    """Return a board on which all ranks but the last one wait for it, all with full histories."""
    board, reporters = Board(size, LIMITS, 0.0), []
    for rank in range(size):
        board.joined(rank, f"host{rank // host}", f"10.0.0.{rank // host}", 0.0)
        watch = Watch()
        sites = [watch.site("loss", "x", ranks=range(size), at="t.py:3")]
        sites.append(watch.site("peers", "x", ranks=range(rank % host, size, host), at="t.py:4"))
        for site in sites * 40:
            with site:
                pass
        if rank != size - 1:
            sites[0].enter()
        reporters.append(Reporter(watch))
    for now in range(4):
        for rank, reporter in enumerate(reporters):
            board.beat(rank, reporter.changes(), float(now))
    return board


def board_in_doubt(size: int) -> Board:
    """Return a board on which a rank has died, and nothing was heard from other hosts since."""
    board = stalled_board(size)
    board.lost(0, 3.5)
    assert board.in_doubt
    return board


def growth(make: Callable[[int], Board], call: Callable[[Board], Any]) -> float:
    """Return how many times more operations a call takes for four times as many ranks."""
    few, many = make(SMALL), make(LARGE)
    return operations(lambda: call(many)) / operations(lambda: call(few))


@pytest.mark.parametrize("make", [stalled_board, board_in_doubt])
def test_a_check_takes_time_in_proportion_to_the_ranks(make: Callable[[int], Board]) -> None:
    assert growth(make, lambda board: board.check(4.0)) < 1.1 * LARGE / SMALL


def test_a_report_of_all_ranks_takes_time_in_proportion_to_them() -> None:
    assert growth(stalled_board, lambda board: board.stalled(20.0)) < 1.1 * LARGE / SMALL


@pytest.mark.parametrize("make", [stalled_board, board_in_doubt])
def test_a_heartbeat_takes_the_same_time_for_any_number_of_ranks(
    make: Callable[[int], Board],
) -> None:
    changes = {"step": 8, "counts": [[0, 42]], "site": -1}
    assert growth(make, lambda board: board.beat(20 % board.size, changes, 4.0)) == 1


@pytest.mark.slow
def test_a_stall_of_many_ranks_is_described_in_few_lines() -> None:
    text = stalled_board(1024).stalled(20.0)
    assert text is not None
    head, *lines = text.splitlines()
    assert head.endswith("; ranks 0-1022 wait for rank 1023, which waits for none")
    assert lines[0].startswith("  ranks 0-1022: at step 0 in 'loss' (t.py:3), x, waiting for ranks")
    assert "waiting for ranks 0-1023, not heard lately" in lines[0]
    assert lines[1].startswith("  rank 1023: on host127, at work at step 0")
    assert len(lines) == 2


def test_ranks_at_many_places_are_described_in_few_lines() -> None:
    board = stalled_board(100)
    for rank in range(90):
        board.beat(rank, {"site": -1, "line": f"t.py:{rank // 2}"}, 4.0)
    text = board.stalled(20.0)
    assert text is not None
    _, *lines = text.splitlines()
    assert len(lines) == 33
    assert lines[0] == "  ranks 0, 1: at work at step 0 (t.py:0), not heard lately"
    assert any(line.startswith("  ranks 90-98: at step 0 in 'loss'") for line in lines)
    assert lines[-1] == "  30 more ranks at 15 other places"
