"""Ranks that start late, fork, or end in child processes."""

import os
import re
import select
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import processes
import pytest

from flow_core.base.errors import ForkError
from flow_dist.control import channel
from flow_dist.control.board import FIRST_JOB, Board, Limits
from flow_dist.recovery.restart import Checkpoints

FLOW_DIST = [sys.executable, str(Path(sys.executable).with_name("flow-dist")), "run"]


# ---------------------------------------------------------------------------- the first job

APART = """
import sys, time
from flow_dist.control import channel as control
from flow_dist.mpi.world import world

late, how = int(sys.argv[1]), sys.argv[2]
if control.current().membership.rank == late:
    if how == "late":
        time.sleep(6)
    if how == "ends":
        sys.exit(0)
    while how == "loops":
        pass
print(world().gather_json("here"), flush=True)
"""


@pytest.mark.slow
@pytest.mark.representative(r"\[0\]", "the rank that is late")
@pytest.mark.parametrize("late", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_ranks_reach_their_first_job_far_apart(tmp_path: Path, late: int) -> None:
    """Further than a rank may be silent, and than an exchange may take."""
    script = tmp_path / "apart.py"
    script.write_text(APART)
    limits = ["--beat", "0.1", "--silence", "2.5", "--exchange", "2", "--start", "60"]
    ended = processes.run([*FLOW_DIST, "-n", "2", *limits, str(script), str(late), "late"])
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "['here', 'here']\n"


@pytest.mark.slow
@pytest.mark.representative("ends.*-1", "a rank that has ended, and not the first one")
@pytest.mark.parametrize("late", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("ends", r", at work at step 0, has ended, while rank {} waits for it in"),
        ("loops", r", at work at step 0 \(.*apart.py:\d+\), keeps rank {} waiting in"),
    ],
)
def test_a_rank_that_does_not_reach_the_first_job_is_named(
    tmp_path: Path, late: int, how: str, said: str
) -> None:
    script = tmp_path / "apart.py"
    script.write_text(APART)
    silence, start = (str(processes.scaled(seconds)) for seconds in (5, 3))
    limits = ["--beat", "0.1", "--silence", silence, "--exchange", "1", "--start", start]
    ended = processes.run([*FLOW_DIST, "-n", "2", *limits, str(script), str(late), how])
    assert ended.returncode == 1
    message = ended.stderr[ended.stderr.index("flow-dist: ") :]
    assert re.match(rf"flow-dist: rank {late} of 2 on \S+{said.format(1 - late)}", message), message
    assert f"'gather {FIRST_JOB}'" in message


def test_the_first_job_has_the_longer_one_of_two_limits() -> None:
    def verdict(limits: Limits, key: str, now: float) -> str:
        board = Board(2, limits, 0.0)
        waiting = {
            "sequence": 1,
            "teams": [[0, [[0, 2, 1]], "control"]],
            "sites": [[0, f"gather {key}", "", "", 0]],
            "counts": [[0, 1]],
            "site": 0,
        }
        for rank in (0, 1):
            board.joined(rank, "h", "a", 0.0)
        for second in (0.0, now):
            board.beat(0, waiting if second == 0 else {}, second)
            board.beat(1, {}, second)
        board.check(now)
        found = board.verdict(now)
        return found.kind if found else "healthy"

    short, long = Limits(exchange=10, start=100), Limits(exchange=300, start=100)
    told = [
        verdict(limits, key, now)
        for limits in (short, long)
        for key in (FIRST_JOB, "x")
        for now in (90.0, 110.0)
    ]
    assert told == ["healthy", "stuck", "stuck", "stuck"] + ["healthy"] * 4


def test_rank_0_may_reach_its_first_job_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it has the server, which it starts there: others knock as long as a start may take."""
    asked: dict[str, Any] = {}
    monkeypatch.setattr(channel, "ControlClient", lambda *_, **given: asked.update(given))
    monkeypatch.setattr(channel, "_register", lambda client: client)
    env = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    channel.join(env={**env, "FLOW_DIST_TOKEN": "t"})
    assert asked["patience"] == Limits().start


# ------------------------------------------------------------------------------------ forks

FORKING = """
import multiprocessing, os, sys, warnings
import numpy as np
from flow_dist.control import channel as control
from flow_dist.mpi.world import world

warnings.simplefilter("ignore", DeprecationWarning)

def work(size):
    return float(np.ones(size).sum()), control.current()

if sys.argv[1] == "joined":
    world()
client = control.current()
for end in ("pass", "sys.exit(3)", "raise ValueError", "os._exit(4)", "kept"):
    child = os.fork()
    if child == 0 and end == "kept":
        kept = open(sys.argv[2], "w")
        kept.write("written at the end")
        sys.exit()
    if child == 0:
        sys.stderr = open(os.devnull, "w")
        exec(end)
        sys.exit()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(end, status, flush=True)
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(work, [3, 4]), flush=True)
assert client.gather("still here", 0) == [0] * client.membership.size
print("done", open(sys.argv[2]).read(), flush=True)
"""


@pytest.mark.slow
@pytest.mark.representative("2-joined", "the others differ in the number of processes")
@pytest.mark.parametrize(
    ("size", "how"),
    [
        (2, "joined"),
        pytest.param(2, "apart", marks=pytest.mark.slow),
        pytest.param(1, "apart", marks=pytest.mark.slow),
    ],
)
def test_children_of_a_rank_are_none(tmp_path: Path, size: int, how: str) -> None:
    """However they end, they say nothing for it, and leave its MPI alone."""
    script = tmp_path / "forking.py"
    script.write_text(FORKING)
    ended = processes.run([*FLOW_DIST, "-n", str(size), str(script), how, str(tmp_path / "file")])
    assert ended.returncode == 0, ended.stderr
    expected = ["pass 0", "sys.exit(3) 3", "raise ValueError 1", "os._exit(4) 4", "kept 0"]
    expected += ["[(3.0, None), (4.0, None)]", "done written at the end"]
    ranks = 1 if how == "joined" else size  # once they have joined, the first one prints
    assert sorted(ended.stdout.splitlines()) == sorted(expected * ranks)


ORPHANED = """
import os, signal, time
from flow_dist.control import channel as control

client = control.current()
if client.membership.rank == 1:
    if os.fork() == 0:
        time.sleep(1000)
    os.kill(os.getpid(), signal.SIGKILL)
client.gather("never", 0)
"""


@pytest.mark.slow
def test_a_child_does_not_keep_up_a_dead_rank(tmp_path: Path) -> None:
    """The connection to the supervisor ends with the rank, whatever its children do."""
    script = tmp_path / "orphaned.py"
    script.write_text(ORPHANED)
    ended = processes.run([*FLOW_DIST, "-n", "2", "--silence", "90", str(script)])
    assert ended.returncode == 1
    assert re.search(r"rank 1 of 2 .* died without an error", ended.stderr), ended.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_checkpoint_that_is_being_written_is_the_parents(tmp_path: Path) -> None:
    free, back = threading.Event(), os.pipe()
    checkpoints = Checkpoints(tmp_path)
    checkpoints._pending = checkpoints._thread.submit(free.wait, 60)  # type: ignore[assignment]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            checkpoints._close_at_exit()
            checkpoints.wait()
        except ForkError as error:
            os.write(back[1], str(error).encode())
        os._exit(0)
    said = os.read(back[0], 1000) if select.select([back[0]], [], [], 30)[0] else b"hangs"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    free.set()
    checkpoints.close()
    assert b"a fork of process" in said
    assert str(tmp_path).encode() in said
