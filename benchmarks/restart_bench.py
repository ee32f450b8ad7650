"""Measure the restart after a killed rank beside a plain start of the same script.

    python restart_bench.py --ranks 2,4 --rounds 5

The script is the program of docs/cluster.md, run by ``flow-dist run``.  A plain start lasts from
the start of the command to the end of rank 0's first step, and loads the plan that an earlier run
has kept.  A restart lasts from SIGKILL of the last rank to the end of rank 0's first step after it.
Rounds alternate between both, and the table has medians of seconds.  Its phases, of rank 0, last
until the interpreter runs, until the script begins, until it has imported and defined everything,
until `Checkpoints.restore` returns, and until the first step has ended.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "cluster.md"
COMMAND = [sys.executable, "-c", "from flow_dist.cli import main; main()", "run"]
PHASES = ("interpreter", "script", "import", "restore", "step")
EDITS = (
    (
        "# train.py\n",
        "# train.py\nimport json, time\nimport psutil\n"
        "times = [psutil.Process().create_time(), time.time()]\n",
    ),
    (
        "for step in range(checkpoints.restore(), STEPS):\n",
        "times.append(time.time())\nfirst = checkpoints.restore()\ntimes.append(time.time())\n"
        "for step in range(first, STEPS):\n",
    ),
    (
        "    loss = train(*batch(step))\n",
        "    loss = train(*batch(step))\n"
        "    if step == first:\n        times.append(time.time())\n",
    ),
    (", 1, 0):\n", ", here.size - 1, 0):\n"),
    (
        "        os.kill(",
        "        open('killed', 'w').write(str(time.time()))\n        os.kill(",
    ),
    (
        "checkpoints.close()\n",
        "checkpoints.close()\nif Membership.from_env().rank == 0:\n"
        "    open('times', 'w').write(json.dumps(times))\n",
    ),
)
"""Replacements in the text of the program, which make it write times."""


def program():
    """Return the program of the page, which writes times."""
    (text,) = re.findall(r"```python\n(# train\.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    for old, new in EDITS:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def measure(folder, ranks, fail_at=None):
    """Run the program; return the seconds until the end of each phase."""
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    fail = {} if fail_at is None else {"FAIL_AT": str(fail_at)}
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **fail}
    command = [*COMMAND, "-n", str(ranks), "--max-restarts", "1", "train.py"]
    began = time.time()
    subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True)
    if fail:
        began = float((folder / "killed").read_text())
    return [end - began for end in json.loads((folder / "times").read_text())]


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"| ranks | | {' | '.join(PHASES)} | all | ratio |")
    print("|" + "---|" * (len(PHASES) + 4))
    for ranks in map(int, options.ranks.split(",")):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "train.py").write_text(program())
            measure(folder, ranks)  # keeps the plan
            rounds = [
                (measure(folder, ranks), measure(folder, ranks, 45)) for _ in range(options.rounds)
            ]
        plain, restart = (
            [statistics.median(ends) for ends in zip(*runs, strict=True)]
            for runs in zip(*rounds, strict=True)
        )
        for kind, ends in (("plain start", plain), ("restart", restart)):
            phases = (end - start for start, end in zip([0, *ends], ends, strict=False))
            cells = " | ".join(f"{seconds:.2f}" for seconds in (*phases, ends[-1]))
            print(f"| {ranks} | {kind} | {cells} | {ends[-1] / plain[-1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
