"""Run kernels under sanitizers: ``python -m cuda_sanitize [--share 0.1] [--seed S] [OP ...]``."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count

from cuda_cases import CudaKit

from .defects import DEFECTS, missed
from .device import TOOLS, missing
from .runs import errors, samples


def main(words: Sequence[str] | None = None) -> int:
    """Return 0 if no kernel has an error and every planted defect is found."""
    parser = argparse.ArgumentParser(prog="cuda_sanitize", description=__doc__)
    parser.add_argument("ops", nargs="*")
    parser.add_argument("--share", type=float, default=1.0, help="the share of ops and defects")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=cpu_count() or 1)
    given = parser.parse_args(words)
    if reason := missing():
        print(reason)
        return 1
    draw = random.Random(given.seed)
    ops = given.ops or CudaKit().covered_ops()
    chosen = [op for op in ops if draw.random() < given.share]
    planted = [] if given.ops else [d for d in DEFECTS if draw.random() < given.share]
    failed = 0
    with ThreadPoolExecutor(given.workers) as pool:
        for op, found in zip(chosen, pool.map(_errors, chosen), strict=True):
            failed += bool(found)
            print(op, *(found or ["clean"]), flush=True)
        for defect, lost in zip(planted, pool.map(missed, planted), strict=True):
            failed += lost
            print(defect.name, "MISSED" if lost else "found", flush=True)
    print(f"{len(chosen)} ops, {len(planted)} planted defects, {failed} failed")
    return int(failed > 0)


def _errors(op: str) -> list[str]:
    """Return the reports on an op, of each tool."""
    cases = [case for dtype in CudaKit().dtypes_of(op) for case in samples(op, dtype)][:4]
    return [text for tool in TOOLS for _, text in errors(cases, tool)] if cases else []


if __name__ == "__main__":
    sys.exit(main())
