"""Measure what recording steps for a replay, and timing them for `flow stragglers`, cost.

python benchmarks/observation_cost.py [JOB...]

Steps with and without the observation alternate in one process on one thread, and their CPU times
are compared, which other programs hardly prolong.  Each step is fed other arrays, as those of
a data set; read-only ones are recorded without a copy.  The jobs are those of simulation_jobs.py.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from flow_core.runtime.executable import Executable

BLOCK = 96
"""Pairs of steps in a block: two windows of `flow stragglers`, 3 copies of variables or more."""

BATCHES = 48
"""The number of batches that are fed in turn: of the mlp, more than the caches hold."""

SECONDS = 15.0
"""The time after which no further block starts."""

JOBS = "mlp", "lenet", "gpt"
OBSERVED = {
    "replay": ("FLOW_REPLAY", True),
    "replay, read-only": ("FLOW_REPLAY", False),
    "stragglers": ("FLOW_STRAGGLERS", True),
}
"""The setting that turns on what is measured, and whether fed arrays can be written to."""


def timed(run, executable, arrays):
    """Return the CPU seconds of a step."""
    started = time.process_time_ns()
    run(executable, arrays)
    return (time.process_time_ns() - started) / 1e9


def block(executable, recorder, batches):
    """Return the mean CPU seconds of a plain and of an observed step, in a block of pairs."""
    plain = observed = 0.0
    for i in range(0, 2 * BLOCK, 2):
        one, other = batches[i % BATCHES], batches[(i + 1) % BATCHES]
        if recorder is None:
            executable._launch = executable._plain
        seconds = timed(Executable.run, executable, one)
        if recorder is not None:  # as if the plain step had not run
            recorder._writes = recorder.writes.count
            recorder._began += seconds
        plain += seconds
        observed += timed(type(executable).run, executable, other)
    return plain / BLOCK, observed / BLOCK


def measure(name, writeable):
    """Print the time of a step, what the observation adds, and the memory of a recorder."""
    import simulation_jobs

    import oneflow

    job = simulation_jobs.make(name)
    arrays = simulation_jobs.feeds(job)
    batches = [[x.copy() for x in arrays] for _ in range(BATCHES)]
    for x in [x for batch in batches for x in batch]:
        x.flags.writeable = writeable
    job(*arrays)
    executable = job.executable()
    recorder = job.active_session().recorder
    blocks, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(blocks) < 2:
        blocks.append(block(executable, recorder, batches))
    step, cost = median(a for a, _ in blocks), median(b / a for a, b in blocks) - 1
    text = f"{step * 1e3:8.2f} ms{cost:9.2%}{len(blocks):8}"
    if recorder is not None:
        kept = [x for recorded in recorder._kept for x in recorded.feeds]
        parts = [part for snapshot in recorder._snapshots for part in snapshot.parts.values()]
        kept += [array for part in parts for array in part.values()]
        text += f"{sum(array.nbytes for array in kept) / 2**20:8.1f} MiB"
    print(text, flush=True)
    oneflow.clear_default_session()  # writes the recording before its folder is removed


def main():
    """Measure each job with each setting in a process of its own."""
    threads = ("ONEFLOW_CPU_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    env = {**os.environ, **dict.fromkeys(threads, "1")}
    print(f"{'job':7}{'observed':19}{'step':>11}{'cost':>9}{'blocks':>8}{'memory':>12}", flush=True)
    for name in sys.argv[1:] or JOBS:
        for text, (setting, writeable) in OBSERVED.items():
            print(f"{name:7}{text:19}", end="", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                own = {**env, setting: str(Path(folder) / "steps")}
                command = [sys.executable, __file__, "--one", name, *["writeable"] * writeable]
                subprocess.run(command, env=own, check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        (_, _, chosen, *options), sys.argv = sys.argv, sys.argv[:1]
        measure(chosen, bool(options))
    else:
        main()
