"""Compile flow's modules to byte-code once, instead of in each of many ranks."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

from flow_core.base.programs import interpreter_options
from flow_dist.bootstrap.output import report

_MODULES = ("oneflow", "flow_dist.mpi.world", "flow_dist.mpi.comm")
"""Modules that a rank imports before it connects; the first stands for all of them."""


def compile_if_missing(ranks: int, seconds: float) -> bool:
    """Import flow in one process if its byte-code is missing and there are more ranks than cores.

    Otherwise the ranks compile the modules themselves, which takes no longer.  Errors are left to
    the ranks, which report them.

    Args:
        seconds: the time after which the process is killed, and the ranks compile what is missing.

    Returns:
        Whether the process was started.
    """
    if ranks <= (os.cpu_count() or 1) or sys.dont_write_bytecode:
        return False
    spec = importlib.util.find_spec(_MODULES[0])
    if spec is None or not spec.origin or not spec.has_location:
        return False
    if os.path.exists(importlib.util.cache_from_source(spec.origin)):
        return False
    script = f"import {', '.join(_MODULES)}"
    command = [sys.executable, *interpreter_options(), "-c", script]
    try:
        subprocess.run(command, check=False, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        report(f"importing flow to compile it took more than {seconds:g} s; now each rank does so")
    return True
