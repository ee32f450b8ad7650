"""Compare simulated steps with measured ones, and rank plans by both.

    python simulation_bench.py --steps 40 --rounds 3

The networks run in one process of one core, and the plans of `simulation_jobs.PLANS` in two and
four processes of one thread each.  Links are probed with the same number of processes first.  Each
case is measured in several rounds, which alternate with the other cases.  The least time of a step
counts, as the least time of a kernel does in the simulation, because other programs on the machine
only delay; in one process, this is CPU time, which they change less.  The script prints a table,
Kendall's tau of the plans of each number of processes, and ``BENCHJSON {...}``.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import combinations
from pathlib import Path

from simulation_jobs import COUNTS, PLANS

HERE = Path(__file__).parent
NETWORKS = ("mlp", "lenet", "gpt", "resnet50")
ENV = {**os.environ, "ONEFLOW_CPU_THREADS": "1", "OMP_NUM_THREADS": "1", "FLOW_PLAN_CACHE": "0"}


def output(command, **env):
    done = subprocess.run(
        command, cwd=HERE, env={**ENV, **env}, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def tool(name):
    return str(Path(sys.executable).parent / name)


def ranks(processes, *command):
    if processes == 1:
        return [sys.executable, *command]
    return [tool("flow-dist"), "run", "-n", str(processes), *command]


def probed(folder, processes):
    """Return a topology file with links between processes, and measured kernels."""
    path = Path(folder, f"links{processes}.toml")
    command = (tool("flow"), "topology", "--probe", "--measured", "--output", str(path))
    output(ranks(processes, *command) if processes > 1 else command)
    return path


def simulated(name, processes, topology):
    command = [tool("flow"), "plan", "--simulate", "--json", "--topology", str(topology)]
    command += ["--processes", str(processes), "simulation_jobs.py:job", "--", name]
    return json.loads(output(command))


def measured(name, processes, steps, topology):
    """Run the plan that is simulated, which depends on the costs in the topology file."""
    command = ranks(processes, "simulation_jobs.py", name, str(steps))
    text = output(command, FLOW_TOPOLOGY=str(topology))
    found = [json.loads(row.partition("JSON")[2]) for row in text.splitlines() if "JSON" in row]
    clock = 1 if processes == 1 else 0  # the CPU time of a process without partners
    return min(min(t[clock] for t in f["times"]) for f in found), found[0]


def kendall(pairs):
    """Return Kendall's tau of (predicted, measured) pairs without ties."""
    signs = [1 if (a[0] - b[0]) * (a[1] - b[1]) > 0 else -1 for a, b in combinations(pairs, 2)]
    return sum(signs) / len(signs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cases", default=",".join((*NETWORKS, *PLANS)))
    options = parser.parse_args()
    names = options.cases.split(",")
    processes = {name: PLANS[name][2] if name in PLANS else 1 for name in names}
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        files = {count: probed(folder, count) for count in sorted(set(processes.values()))}
        for name in names:  # plans depend on the kernels that this measures
            simulated(name, processes[name], files[processes[name]])
        best = {}
        for _ in range(options.rounds):
            for name in names:
                count = processes[name]
                seconds, found = measured(name, count, options.steps, files[count])
                best[name] = min(best.get(name, seconds), seconds)
                rows[name] = {"arenas": found["arenas"], "rss": found["rss"]}
        for name in names:
            count = processes[name]
            found = simulated(name, count, files[count])
            arenas = {m["arena"] for m in found["memory"]}
            rows[name] |= {
                "measured": best[name], "predicted": found["seconds"],
                "arenas_equal": arenas == set(rows[name]["arenas"]),
                "planned": sum(m["arena"] + m["variables"] for m in found["memory"]),
            }  # fmt: skip
            row = rows[name]
            print(f"{name:14} measured {row['measured'] * 1e3:9.3f} ms  predicted "
                  f"{row['predicted'] * 1e3:9.3f} ms  ratio "
                  f"{row['measured'] / row['predicted']:5.2f}", flush=True)  # fmt: skip
    for count in COUNTS:
        plans = [
            (rows[n]["predicted"], rows[n]["measured"]) for n in names if processes[n] == count
        ]
        if len(plans) > 1:
            print(f"Kendall's tau of {len(plans)} plans of {count}: {kendall(plans):.2f}")
    print("BENCHJSON " + json.dumps(rows))


if __name__ == "__main__":
    main()
