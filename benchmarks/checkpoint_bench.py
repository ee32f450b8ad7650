"""Measure checkpoints of several processes: saving, and loading into other layouts.

    python checkpoint_bench.py --megabytes 1024 --ranks 4 --folder /var/tmp/checkpoints

The script saves variables that are split over the ranks, and compares the time with that of as many
threads as ranks that write and sync the same number of bytes as plain files.  Then it loads the
variables into the same layout, into a layout split along the other axis, and into half as many
processes, and compares these times with reading the files once in one process.  All reads are from
the page cache.  The output has one row per measurement, in Markdown.
"""

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

COUNT = 16
"""Number of variables."""


def rank_program(action, folder, rows, axis):
    """Run one rank, which saves or loads the variables and prints the seconds taken."""
    import oneflow as flow
    import oneflow.typing as tp
    from flow_dist.bootstrap.membership import Membership
    from flow_dist.recovery.restart import Checkpoints

    here = Membership.from_env()

    @flow.global_function()
    def total() -> tp.Numpy:
        with flow.scope.placement("cpu", f"0:0-{here.size - 1}"):
            values = [
                flow.get_variable(
                    f"v{n}",
                    (rows, rows),
                    initializer=flow.constant_initializer(n),
                    distribute=flow.distribute.split(axis),
                )
                for n in range(COUNT)
            ]
            return flow.math.add_n([flow.math.reduce_sum(value) for value in values])

    checkpoints = Checkpoints(folder)
    if action == "save":
        total()
        times = []
        for step in (1, 2):
            began = time.perf_counter()
            checkpoints.save(step)
            returned = time.perf_counter() - began
            checkpoints.wait()
            times.append((time.perf_counter() - began, returned))
        if here.rank == 0:
            print(*min(times))
    else:
        began = time.perf_counter()
        assert checkpoints.restore() == 2
        loaded = time.perf_counter() - began
        found = float(total()[0])
        if here.rank == 0:
            print(time.perf_counter() - began, loaded)
        assert found == rows * rows * COUNT * (COUNT - 1) / 2, found
    checkpoints.close()


def launch(ranks, *arguments):
    """Run the ranks; return the numbers that the ranks print."""
    program = Path(sys.executable).with_name("flow-dist")
    command = [program, "run", "-n", str(ranks), __file__]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return [float(text) for text in done.stdout.splitlines()[-1].split()]


def plain_write(folder, nbytes, writers):
    """Return the seconds that threads take to write and sync files of ``nbytes`` bytes in all."""
    block = np.ones(1 << 24, np.uint8).data
    folder.mkdir(parents=True, exist_ok=True)

    def write(number):
        with (folder / f"plain-{number}").open("wb", 0) as file:
            for _ in range(nbytes // writers // len(block)):
                file.write(block)
            os.fsync(file.fileno())

    began = time.perf_counter()
    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(write, range(writers)))
    return time.perf_counter() - began


def plain_read(folder):
    """Return the seconds that it takes to read all files of a folder once."""
    block = bytearray(1 << 24)
    began = time.perf_counter()
    for path in folder.iterdir():
        with path.open("rb", 0) as file:
            while file.readinto(block):
                pass
    return time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--folder", type=Path, default=Path("checkpoint-bench"))
    args = parser.parse_args()
    nbytes = args.megabytes << 20
    rows = int((nbytes / COUNT / 4) ** 0.5) // 8 * 8
    folder, size = args.folder / "saved", str(rows)
    writes = [plain_write(args.folder / "plain", nbytes, args.ranks)]
    saved, returned = launch(args.ranks, "save", str(folder), size, "0")
    writes.append(plain_write(args.folder / "plain", nbytes, args.ranks))
    read = plain_read(folder / "step-000000000002")
    rows_of_table = {
        "plain files, written and synced, before": writes[0],
        "plain files, written and synced, afterwards": writes[1],
        "save, complete": saved,
        "save, until training goes on": returned,
        "plain files, read once by one process": read,
    }
    layouts = {
        "the same layout": (args.ranks, "0"),
        "split along the other axis": (args.ranks, "1"),
        "half as many processes": (args.ranks // 2, "0"),
    }
    for name, (ranks, axis) in layouts.items():
        found, restored = launch(ranks, "load", str(folder), size, axis)
        rows_of_table[f"load and first step, {name}"] = found
        rows_of_table[f"of it restore, {name}"] = restored
    print(f"| {args.megabytes} MiB, {args.ranks} processes | s | MB/s |\n|---|---|---|")
    for name, seconds in rows_of_table.items():
        print(f"| {name} | {seconds:.2f} | {nbytes / seconds / 1e6:.0f} |")


if __name__ == "__main__":
    if sys.argv[1:2] in (["save"], ["load"]):
        action, where, length, split = sys.argv[1:]
        rank_program(action, where, int(length), int(split))
    else:
        main()
