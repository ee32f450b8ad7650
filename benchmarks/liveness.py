"""Prove for all jobs of some scripts that their steps end, and measure what that costs.

python benchmarks/liveness.py examples/*.py
"""

import sys

from flow_core.base import planning
from flow_core.base.errors import PlanError
from flow_core.cli.scripts import jobs_of
from flow_core.observe.summary.waits import prove_waits
from flow_core.observe.tables import duration
from oneflow import clear_default_session


def main() -> None:
    """Print a line per job, and the sums."""
    print(f"{'job':36}{'tasks':>7}{'processes':>11}{'proof':>10}{'compilation':>13}{'share':>8}")
    planning.begin()  # compile each job, also if its plan is kept on disk
    jobs, alarms, proving, compiling = 0, 0, 0.0, 0.0
    for script in sys.argv[1:]:
        clear_default_session()
        for name, job in jobs_of(script).items():
            jobs += 1
            try:
                found = prove_waits(job)
            except PlanError as error:
                alarms += 1
                print(f"{script}:{name}: {error}")
                continue
            most = max(proof.seconds for proof in found.proofs)
            proving, compiling = proving + most, compiling + found.compile_seconds
            row = f"{script.rpartition('/')[2]}:{name}"
            counts = f"{found.tasks:7,}{len(found.proofs):>9} {duration(most):>12}"
            times = f"{duration(found.compile_seconds):>13}{most / found.compile_seconds:8.2%}"
            print(f"{row:36}{counts}{times}", flush=True)
    print(f"{jobs} jobs, {alarms} alarms, {proving / compiling:.2%} of the time of compilation")


if __name__ == "__main__":
    main()
