"""Measure this machine, keep the table, and say what fell back.

    python report.py                 # compare with the last table of this machine
    python report.py --record        # make a new table: results.json and RESULTS.md
    python report.py --page          # write RESULTS.md from results.json

A row has a time of flow, the time of a peer in the same run, and their ratio; below 1, flow is
faster.  The peers are ONNX Runtime for prediction and serving, and for training steps the floor,
the time of the step's arithmetic at the rate of a large matrix product of this machine (see
`breakdown.py`); with ``--peer NAME=PYTHON,SCRIPT[,ARGUMENT...]`` also programs of other frameworks,
which take ``--workload`` and print a line ``BENCHJSON {"median_ms": ...}`` as `flow_bench.py` does.
``--half-peer`` names those that train in bfloat16.
A row fell back if its ratio is over 1.1 times that of the last table.
"""

import argparse
import datetime
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results.json", HERE / "RESULTS.md"
FELL_BACK = 1.1
TRAINING = ("mlp", "lenet", "resnet50", "bert_mini", "wide_deep_sgd", "wide_deep_adam")
HALF_TRAINING = ("lenet", "resnet50", "bert_mini", "bert_base")
PREDICTED = {
    "float32": "mlp,lenet,mobilenet,resnet50,bert_base", "bfloat16": "mobilenet,resnet50,bert_base",
    "int8": "mobilenet,resnet50",
}  # fmt: skip
"""The networks of predict jobs by precision; OpenVINO is the only peer in bfloat16."""
ISA = {"amx_bf16": "AVX-512, AMX", "avx512f": "AVX-512", "avx2": "AVX2"}
PACKAGES = ("numpy", "onnxruntime", "openvino", "onednn-cpu-gomp")
GROUPS = (
    "training step, float32", "training step, bfloat16", "training step, float32, floor",
    "prediction, float32", "prediction, bfloat16", "prediction, int8", "serving", "other",
)  # fmt: skip
INTRODUCTION = """\
# Results

Times of flow, of the fastest peer in the same run, and their ratio: below 1, flow is faster.
Compare ratios, not times of different tables.  Medians in ms unless a row says otherwise, two
threads; `b8` is a batch of 8.  `floor` is the time of a step's arithmetic at the rate of a large
matrix product.  Serving: ms per request of 8 clients, and of their 99th percentile, beside ONNX
Runtime behind the same server.

`python benchmarks/report.py --record` makes the table of a machine, from
[results.json](results.json); `nox -s bench` measures again, and names the rows whose ratio grew by
more than 10 %.
"""


# -------------------------------------------------------------------------------------- measuring


def row(group, name, flow, peer, peer_ms):
    return {"group": group, "name": name, "ms": flow, "peer": peer, "peer_ms": peer_ms}


def records_of(script, *arguments):
    """Run a benchmark that writes records to the file of its option ``--json``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "records.json")
        command = [sys.executable, str(HERE / script), *arguments, "--json", str(path)]
        subprocess.run(command, check=True)
        return json.loads(path.read_text())


def lines_of(command, precision="float32"):
    """Run a program, and return the records that it prints as ``BENCHJSON`` lines."""
    env = {**os.environ, "BENCH_PRECISION": precision}
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env).stdout
    lines = [line for line in printed.splitlines() if line.startswith("BENCHJSON ")]
    return [json.loads(line.partition(" ")[2]) for line in lines]


def floors():
    """Yield rows of training steps beside their floors."""
    own = [sys.executable, str(HERE / "breakdown.py"), "--workload", ",".join(TRAINING)]
    for found in lines_of(own):
        yield row("training step, float32, floor", found["workload"], found["step_ms"], "floor",
                  found["floor_ms"])  # fmt: skip


def training(peers, workloads, precision):
    """Yield rows of training steps; programs of one workload take turns."""
    flow = [sys.executable, str(HERE / "flow_bench.py")]
    for workload in workloads if peers else ():
        times = {
            name: lines_of([*command, "--workload", workload], precision)[0]["median_ms"]
            for name, command in {"flow": flow, **peers}.items()
        }
        best = min(peers, key=times.__getitem__)
        yield row(f"training step, {precision}", workload, times["flow"], best, times[best])


def prediction(precision):
    """Yield rows of predict jobs."""
    arguments = ("--precision", precision, "--workload", PREDICTED[precision], "--batch", "1,8")
    cells = defaultdict(dict)
    for found in records_of("predict_bench.py", *arguments):
        cells[found["workload"], found["batch"]][found["program"]] = found["p50_ms"]
    for (workload, batch), times in cells.items():
        flow = times.pop("flow")
        best = min(times, key=times.__getitem__)
        yield row(f"prediction, {precision}", f"{workload} b{batch}", flow, best, times[best])


def serving():
    """Yield rows of served models: the time per request of all clients together, and p99."""
    for found in records_of("serve_bench.py", "--clients", "8"):
        flow, peer = found["flow"], found["onnxruntime"]
        name = f"{found['workload']}, batches of up to {found['batch']}"
        times = (1e3 / flow["per_s"], "onnxruntime", 1e3 / peer["per_s"])
        yield row("serving", name, *times)
        yield row("serving", f"{name}, p99", flow["p99_ms"], "onnxruntime", peer["p99_ms"])


def machine():
    """Describe this machine."""
    cpu, flags = platform.processor() or platform.machine(), ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, text = line.partition(":")
        cpu = text.strip() if name.strip() == "model name" else cpu
        flags = text.split() if name.strip() == "flags" else flags
    cpu = " ".join(re.sub(r"\((R|TM)\)|\bProcessor\b", "", cpu).split())
    isa = next((text for name, text in ISA.items() if name in flags), "")
    return {"cpu": cpu, "isa": isa, "cores": len(os.sched_getaffinity(0))}


def measured(peers, half_peers):
    """Return a table of this machine."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    load, about = os.getloadavg()[0], machine()
    rows = [*floors(), *training(peers, TRAINING, "float32"), *prediction("float32"), *serving()]
    rows += training(half_peers, HALF_TRAINING, "bfloat16")
    if "AMX" in about["isa"] and importlib.util.find_spec("openvino"):
        rows += prediction("bfloat16")
    if "AVX-512" in about["isa"]:
        rows += prediction("int8")
    note = f"load average before the run: {load:.1f}"
    return {
        "machine": about, "date": datetime.date.today().isoformat(), "versions": versions,
        "note": note, "rows": rows,
    }  # fmt: skip


# --------------------------------------------------------------------------------- tables on disk


def ratio(found):
    """Return a row's ratio: the worst of its runs if the row states it, else that of its times."""
    return found.get("ratio") or found["ms"] / found["peer_ms"]


def tables():
    return json.loads(RESULTS.read_text())


def page(found):
    """Return the text of RESULTS.md."""
    parts = [INTRODUCTION]
    for table in found:
        about = table["machine"]
        versions = ", ".join(f"{k} {v}" for k, v in table["versions"].items())
        parts.append(f"## {about['cpu']}, {about['isa']}, {about['cores']} cores\n")
        facts = (table["date"], versions, table["note"])
        parts.append(f"{'; '.join(filter(None, facts))}.\n")
        parts.append("| measurement | network | flow | best peer | flow / peer |")
        parts.append("|---|---|---|---|---|")
        rows = sorted(table["rows"], key=lambda r: GROUPS.index(r["group"]))
        for each in rows:
            cells = (each["group"], f"`{each['name']}`", f"{each['ms']:.4g}",
                     f"{each['peer']} {each['peer_ms']:.4g}", f"{ratio(each):.2f}")  # fmt: skip
            parts.append(f"| {' | '.join(cells)} |")
        parts.append("")
    return "\n".join(parts)


def worst(group, name, found):
    """Return the largest ratio of the last tables of all machines; None if none has the row."""
    rows = [r for table in found for r in table["rows"] if (r["group"], r["name"]) == (group, name)]
    return max(map(ratio, rows), default=None)


def fallen_back(new, old):
    """Return lines that name the rows whose ratio grew by more than 10 %."""
    before = {(r["group"], r["name"]): ratio(r) for r in old["rows"]}
    return [
        f"{each['group']}: {each['name']}: {ratio(each):.2f} of {each['peer']}, was {last:.2f}"
        for each in new["rows"]
        for last in [before.get((each["group"], each["name"]))]
        if last is not None and ratio(each) > FELL_BACK * last
    ]


def same_machine(new, found):
    """Return the last table of the machine of a table; None if there is none."""
    return next((t for t in found if t["machine"] == new["machine"]), None)


def command_of(text):
    name, _, command = text.partition("=")
    return name, command.split(",")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="keep the table, and write the page")
    parser.add_argument("--page", action="store_true", help="write the page only")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON,SCRIPT")
    parser.add_argument("--half-peer", action="append", default=[], metavar="NAME=PYTHON,SCRIPT")
    args = parser.parse_args()
    found = tables()
    if not args.page:
        new = measured(*(dict(map(command_of, given)) for given in (args.peer, args.half_peer)))
        old = same_machine(new, found)
        lines = fallen_back(new, old) if old else []
        print(page([new]).removeprefix(INTRODUCTION))
        print("\n".join(lines) or ("nothing fell back" if old else "no table of this machine yet"))
        if not args.record:
            return 1 if lines or not old else 0
        found = [new, *(t for t in found if t is not old)]
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(page(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
