"""Ranks print whole lines, whatever Python's buffering."""

import os
import socket
import sys

import processes
import pytest

PROGRAM = """
from flow_dist.bootstrap.output import choose_output
choose_output({rank})
print("one", 2, "three")
print("four", end=" ")
print("five", flush=True)
"""


@pytest.mark.parametrize("arguments", [[], ["-u"]])
def test_a_line_is_one_write(arguments: list[str]) -> None:
    """A datagram socket keeps writes apart, where a pipe would join them."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        command = [sys.executable, *arguments, "-c", PROGRAM.format(rank=0)]
        env = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
        processes.run(command, stdout=theirs, check=True, env=env)
        assert [ours.recv(100), ours.recv(100)] == [b"one 2 three\n", b"four five\n"]


@pytest.mark.parametrize(("says", "printed"), [("", ""), ("all", "one 2 three\nfour five\n")])
def test_other_ranks_are_silent_unless_asked(says: str, printed: str) -> None:
    env = {**os.environ, "FLOW_DIST_OUTPUT": says}
    command = [sys.executable, "-c", PROGRAM.format(rank=1)]
    done = processes.run(command, check=True, env=env)
    assert done.stdout == printed
