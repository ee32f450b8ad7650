"""Measurement of the memory that a step takes beside the memory that its plan predicts."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flow_core.compiler.request import Compiled
from flow_core.frontend.session.session import Session
from flow_core.observe.feeds import draw_feeds, draw_variable, whole_batches
from flow_core.observe.isolated_run import isolated
from flow_core.runtime.executable import Executable


@dataclass(frozen=True, slots=True)
class MeasuredMemory:
    """The memory of a step in this process, which simulates all devices, in bytes."""

    arenas: int  # the sizes of the arenas of the plan
    allocated: int  # the bytes that the drivers have allocated for them
    predicted: int  # the arenas and variables of the plan
    # By how much the resident memory of the process grew from before the plan was bound to after
    # its first step, when the code of the kernels was loaded already; None where the system does
    # not tell.
    resident: int | None


def measure_memory(session: Session, compiled: Compiled) -> MeasuredMemory:
    """Bind a plan and run one step on random inputs and separate variables.

    Args:
        session: the session, whose variables do not change.
    """
    _return_freed_memory()
    plan, rng = compiled.plan, np.random.default_rng(0)
    names = [op.name for op in compiled.optimized_logical.of_type("variable")]
    values = {name: draw_variable(session.declared[name], rng) for name in names}
    drawn = draw_feeds(compiled.optimized_logical, compiled.inputs, rng)
    feeds = whole_batches(drawn, plan.micro_batches)
    isolated(session, plan, values, Executable)[0].run(feeds)  # loads the code of the kernels
    gc.collect()
    before = resident_bytes()
    executable, variables = isolated(session, plan, values, Executable)
    executable.run(feeds)
    after = resident_bytes()
    held = sum(array.nbytes for _, array in variables.parts().values())
    arenas = sum(arena.nbytes for arena in plan.arenas)
    return MeasuredMemory(
        arenas=arenas,
        allocated=sum(arena.nbytes for arena in executable.arenas.values()),
        predicted=arenas + held,
        resident=None if before is None or after is None else after - before,
    )


MMAP_THRESHOLD = -3
"""The number of this parameter of ``mallopt`` in glibc's ``malloc.h``."""


def _return_freed_memory() -> None:
    """Let glibc return freed blocks to the system, which otherwise stay resident up to 32 MiB."""
    if sys.platform == "linux":
        set_option = getattr(ctypes.CDLL(None), "mallopt", None)
        if set_option is not None:  # musl has none
            set_option(MMAP_THRESHOLD, 1 << 16)


def resident_bytes() -> int | None:
    """Return the bytes of this process that are in memory, None if the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
