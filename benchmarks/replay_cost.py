"""Measure what recording the last 8 steps costs: python benchmarks/replay_cost.py [JOB...].

Blocks of steps with and without recording alternate in one process on one thread, and CPU times are
compared, which other programs hardly prolong.  The jobs are those of simulation_jobs.py.
"""

import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

STEPS, BLOCK = 8, 66
SECONDS = 12.0
"""The time after which no further pair of blocks starts."""

if __name__ == "__main__":
    os.environ |= {"ONEFLOW_CPU_THREADS": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    os.environ |= {"FLOW_REPLAY_STEPS": str(STEPS)}


def block(run, executable, arrays):
    """Return the CPU seconds of a step, in a block of steps."""
    started = time.process_time()
    for _ in range(BLOCK):
        run(executable, arrays)
    return (time.process_time() - started) / BLOCK


def measure(name, folder):
    """Print the time of a step of a job, and what recording adds."""
    os.environ["FLOW_REPLAY"] = str(Path(folder) / "steps.npz")
    import simulation_jobs

    from flow_core.runtime.executable import Executable

    job = simulation_jobs.make(name)
    arrays = simulation_jobs.feeds(job)
    job(*arrays)
    executable = job.executable()
    recorder = job.active_session().recorder
    for _ in range(BLOCK):
        executable.run(arrays)
    pairs, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(pairs) < 2:
        plain = block(Executable.run, executable, arrays)
        executable.run(arrays)  # the variables changed meanwhile, so that they are copied
        recorded = block(type(executable).run, executable, arrays)
        pairs.append((plain, recorded))
    plain = median(a for a, _ in pairs)
    cost = median(b / a for a, b in pairs) - 1
    kept = sum(x.nbytes for step in recorder._kept for x in step.feeds)
    parts = [part for snapshot in recorder._snapshots for part in snapshot.parts.values()]
    copies = sum(array.nbytes for part in parts for array in part.values())
    print(
        f"{name:10}{plain * 1e3:10.2f} ms{cost:10.2%}{len(pairs):8}{kept / 2**20:12.1f} MiB"
        f"{copies / 2**20:12.1f} MiB",
        flush=True,
    )


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1] != "all":
        with tempfile.TemporaryDirectory() as scratch:
            name, sys.argv = sys.argv[1], sys.argv[:1]
            measure(name, scratch)
            import oneflow

            oneflow.clear_default_session()  # writes the recording, before the folder is removed
    else:
        names = sys.argv[1:] or ["mlp", "lenet", "gpt", "resnet50"]
        print(f"{'job':10}{'step':>13}{'cost':>10}{'pairs':>8}{'fed arrays':>16}{'variables':>16}")
        for name in ["mlp", "lenet", "gpt", "resnet50"] if names == ["all"] else names:
            os.spawnv(os.P_WAIT, sys.executable, [sys.executable, __file__, name])
