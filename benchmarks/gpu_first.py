"""Check a GPU step by step in five minutes; run this first on a new kind of machine.

    python benchmarks/gpu_first.py [--out FOLDER] [--from RUNG] [--seconds 300] [--simulate]

The rungs are, in order: device and versions; memory, pinned copies and events; graph capture with
forced garbage collection; conversions and random numbers, bit by bit; matrix products against
float64; cuDNN against numpy; three trainings next to the CPU; and all kernels against their
references, one process per family.  A rung runs only if the one before it has passed; ``--from``
continues at a rung after a repair.  A family that fails runs again with ``FLOW_CUDA_SYNC=1``, and
then under compute-sanitizer if it is installed.

After each rung, all files are packed into ``FOLDER.tar``: rows, table and logs.  A rung that hangs
ends the process after its time limit, with a traceback in ``FOLDER/hanging.log``.

`cuda_checks.py` is the second command, which measures speed.  ``--simulate`` runs all rungs on the
host in small sizes.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import os
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "helpers")]

import cuda_checks  # noqa: E402 - found by the lines above
from cuda_order import FAMILIES, WORKERS, Part, Row  # noqa: E402

STOPPING = ("FAILED", "missing")
FEW = ("rows",)
"""The kernel families that are checked in a simulator."""


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu-first"))
    parser.add_argument("--from", dest="first", choices=NAMES, default=NAMES[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--simulate", action="store_true")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Climb the ladder until a rung fails; return status 0 if none did."""
    given = arguments(words)
    given.out.mkdir(parents=True, exist_ok=True)
    report, stop = cuda_checks.Report(given.out), time.monotonic() + given.seconds
    with tempfile.TemporaryDirectory() as site:
        names = argparse.Namespace(wheels=given.wheels, shared="", tree=None)
        env = cuda_checks.environment(Path(site), names)
        sys.path += env["PYTHONPATH"].split(os.pathsep)
        call = cuda_checks.Call(given.out, env, stop, True, given.simulate)
        for name in NAMES[NAMES.index(given.first) :]:
            passed = climb(name, call, report)
            pack(given.out)
            if not passed:
                print(f"stopped; after a repair: {sys.argv[0]} --from {name}")
                return 1
    return 0


def climb(name: str, call: Any, report: cuda_checks.Report) -> bool:
    """Run one rung and report its rows; return whether it passed."""
    left = call.stop - time.monotonic()
    if left < 1:
        report.add([Row(name, "not run", "the time is over")])
        return False
    passed = True
    with (call.out / "hanging.log").open("a") as file:
        faulthandler.dump_traceback_later(left, exit=True, file=file)
        try:
            for row in RUNGS[name](call):
                report.add([row])
                passed = passed and row.result not in STOPPING
        finally:
            faulthandler.cancel_dump_traceback_later()
    return passed


def pack(folder: Path) -> None:
    """Write all files of a folder to a tar next to it; an earlier tar stays until this is whole."""
    file = folder.with_name(f"{folder.name}.tar")
    partial = file.with_suffix(".part")
    with tarfile.open(partial, "w") as made:
        made.add(folder, folder.name)
    partial.replace(file)


def checked(name: str, call: Any) -> Iterator[Row]:
    """Yield the rows of a check in this process; an exception becomes a row."""
    import cuda_parts
    import gpu_rungs
    from cuda_rig import Run

    check = getattr(cuda_parts if name == "environment" else gpu_rungs, name)
    run = Run(call.simulated, call.stop)
    yield from cuda_parts.guarded(name, functools.partial(check, run))


def families(call: Any) -> Iterator[Row]:
    """Check the kernel families in parallel processes; repeat failing ones to find the launch."""
    parts = [Part(f"kernels:{name}", 60) for name in (FEW if call.simulated else FAMILIES)]
    with ThreadPoolExecutor(min(WORKERS, max(1, (os.cpu_count() or 2) // 2))) as pool:
        rows = pool.map(functools.partial(cuda_checks.run, call=call), parts)
        for part, found in zip(parts, rows, strict=True):
            yield from found
            if any(row.result == "FAILED" for row in found):
                yield from repeated(part, call)


def repeated(part: Part, call: Any) -> Iterator[Row]:
    """Run a part again, with the host waiting for each launch, and under compute-sanitizer."""
    alone = replace(call, env={**call.env, "FLOW_CUDA_SYNC": "1"})
    for row in cuda_checks.run(part, alone):
        yield replace(row, name=f"{row.name}, synchronous")
    tool = shutil.which("compute-sanitizer")
    if tool is not None:
        for row in cuda_checks.run(part, replace(alone, prefix=(tool, "--print-limit", "20"))):
            yield replace(row, name=f"{row.name}, compute-sanitizer")


RUNGS: dict[str, Callable[[Any], Iterator[Row]]] = {
    name: functools.partial(checked, name)
    for name in (
        "environment", "memory", "capture", "numbers", "products", "cudnn", "training",
    )
} | {"families": families}  # fmt: skip
NAMES = tuple(RUNGS)

if __name__ == "__main__":
    raise SystemExit(main())
