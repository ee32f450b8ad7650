"""Measure what recording steps for a replay, and timing them for `flow stragglers`, cost.

python benchmarks/observation_cost.py [JOB...]

Blocks of steps with and without the observation alternate in one process on one thread, and CPU
times are compared, which other programs hardly prolong.  Each step is fed other arrays, as those of
a data set; read-only ones are recorded without a copy.  The jobs are those of simulation_jobs.py.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

BLOCK = 96
"""The steps of a block: two windows of `flow stragglers`, 3 copies of variables at least."""

BATCHES = 48
"""The number of batches that are fed in turn: of the mlp, more than the caches hold."""

SECONDS = 15.0
"""The time after which no further pair of blocks starts."""

JOBS = "mlp", "lenet", "gpt"
OBSERVED = {
    "replay": ("FLOW_REPLAY", True),
    "replay, read-only": ("FLOW_REPLAY", False),
    "stragglers": ("FLOW_STRAGGLERS", True),
}
"""The setting that turns on what is measured, and whether fed arrays can be written to."""


def block(run, executable, batches):
    """Return the CPU seconds of a step, in a block of steps."""
    started = time.process_time()
    for i in range(BLOCK):
        run(executable, batches[i % BATCHES])
    return (time.process_time() - started) / BLOCK


def measure(name, writeable):
    """Print the time of a step, what the observation adds, and the memory of a recorder."""
    import simulation_jobs

    import oneflow
    from flow_core.runtime.executable import Executable

    job = simulation_jobs.make(name)
    arrays = simulation_jobs.feeds(job)
    batches = [[x.copy() for x in arrays] for _ in range(BATCHES)]
    for x in [x for batch in batches for x in batch]:
        x.flags.writeable = writeable
    job(*arrays)
    executable = job.executable()
    recorder = job.active_session().recorder
    pairs, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(pairs) < 2:
        if recorder is None:
            executable._launch = executable._plain
        plain = block(Executable.run, executable, batches)
        executable.run(arrays)  # variables have changed meanwhile, so that they are copied
        pairs.append((plain, block(type(executable).run, executable, batches)))
    step, cost = median(a for a, _ in pairs), median(b / a for a, b in pairs) - 1
    text = f"{step * 1e3:8.2f} ms{cost:9.2%}{len(pairs):7}"
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
    print(f"{'job':7}{'observed':19}{'step':>11}{'cost':>9}{'pairs':>7}{'memory':>12}", flush=True)
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
