"""`restart_program` with ranks that die while saving: ``RANK:PLACE`` per start in CRASHES."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import restart_program

from flow_dist.bootstrap.membership import Membership
from flow_dist.recovery import restart, restart_files

SAVE = "step-000000000004"


def die(*args: Any) -> None:
    """The end of this process, if it is at the save that it is not to survive."""
    if any(SAVE in str(part) for part in args if isinstance(part, Path)):
        os.kill(os.getpid(), signal.SIGKILL)


def die_before(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, before which the process dies."""

    def called(*args: Any) -> Any:
        die(*args)
        return function(*args)

    return called


def die_after(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, when it has done its work."""

    def called(*args: Any) -> None:
        function(*args)
        die(*args)

    return called


PLACES = {
    "data": (restart, "write_part", die_before),
    "list": (restart_files, "_write_list", die_before),
    "mark": (restart.Checkpoints, "_finish", die_before),
    "name": (restart.swap, "put_in_place", die_before),
    "old": (restart.swap, "put_in_place", die_after),
}
"""What a process is about to do, or has just done, when it dies."""

here = Membership.from_env()
crashes = os.environ["CRASHES"].split(",")
if here.restart < len(crashes):
    rank, place = crashes[here.restart].split(":")
    if int(rank) == here.rank:
        owner, name, change = PLACES[place]
        setattr(owner, name, change(getattr(owner, name)))
restart_program.main(sys.argv[1], int(sys.argv[2]))
