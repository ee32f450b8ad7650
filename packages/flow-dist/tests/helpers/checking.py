"""Count checks in every rank of a program, and print one line per rank."""

import os
import sys
import traceback
from collections.abc import Callable

from flow_dist.mpi.world import world


def in_ranks(run: Callable[[], int]) -> None:
    """Runs them; a rank in which one fails takes the others along."""
    try:
        found = run()
        ends = world().gather(b"%d checks" % found, "the end")
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # the launcher ends the others
    if world().rank == 0:
        sys.stdout.write("".join(f"{end.decode()}\n" for end in ends))
