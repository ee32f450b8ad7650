"""Measure this machine, keep the table, and say what fell back.

    python report.py                 # compare with the last table of this machine
    python report.py --record        # make a new table: results.json and RESULTS.md
    python report.py --page          # write RESULTS.md from results.json
    python report.py --record --only "prediction, int8: *" --only "*: resnet50"  # these rows anew

A row has a time of flow, the time of a peer in the same run, and their ratio; below 1, flow is
faster.  The peers are ONNX Runtime for prediction and serving, and for training steps the floor,
the time of the step's arithmetic at the rate of a large matrix product of this machine (see
`breakdown.py`); with ``--peer NAME=PYTHON,SCRIPT[,ARGUMENT...]`` also programs of other frameworks,
which take ``--workload`` and print a line ``BENCHJSON {"median_ms": ...}`` as `flow_bench.py` does.
``--half-peer`` names those that train in bfloat16.  ``--only`` measures the rows of some groups and
networks; ``--record`` then keeps the other rows of this machine, if the versions are the same.
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
from fnmatch import fnmatch
from pathlib import Path

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results.json", HERE / "RESULTS.md"
FELL_BACK = 1.1
TRAINING = (
    "mlp", "lenet", "resnet50", "bert_mini", "bert_base", "wide_deep_sgd", "wide_deep_adam",
)  # fmt: skip
OVERHEAD = {"overhead": "overhead, 1000 ops"}
"""Rows of the group "other", by network."""
HALF_TRAINING = ("lenet", "resnet50", "bert_mini", "bert_base")
PREDICTED = {
    "float32": ("mlp", "lenet", "mobilenet", "resnet50", "bert_base"),
    "bfloat16": ("mobilenet", "resnet50", "bert_base"), "int8": ("mobilenet", "resnet50"),
}  # fmt: skip
"""The networks of predict jobs by precision; OpenVINO is the only peer in bfloat16."""
ZEN = {23: "Zen 2", 25: "Zen 3", 26: "Zen 5"}
"""AMD's cores by family of the processor; those of family 25 with AVX-512 are Zen 4."""
ISA = {"amx_bf16": "AVX-512, AMX", "avx512f": "AVX-512", "avx2": "AVX2"}
FRAMEWORKS = ("torch", "tensorflow", "tensorflow-cpu", "jax")
PACKAGES = ("numpy", "onnxruntime", "openvino", "onednn-cpu-gomp", *FRAMEWORKS)
SERVED = ("mlp", "resnet50")
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


class Choice:
    """The rows to measure: patterns of texts such as "prediction, int8: resnet50"."""

    def __init__(self, patterns):
        self.patterns = patterns or ["*"]

    def of(self, group, names):
        """Return the chosen names among the networks of a group of rows."""
        chosen = self.patterns
        return [n for n in names if any(fnmatch(f"{group}: {n}", pattern) for pattern in chosen)]


def floors(choice):
    """Yield rows of training steps beside their floors."""
    group = "training step, float32, floor"
    for name in choice.of(group, TRAINING):
        own = [sys.executable, str(HERE / "breakdown.py"), "--workload", name]
        (found,) = lines_of(own)
        yield row(group, name, found["step_ms"], "floor", found["floor_ms"])


def programs(group, names, peers, precision):
    """Yield rows of programs that take turns on each of some networks."""
    flow = [sys.executable, str(HERE / "flow_bench.py")]
    for name in names if peers else ():
        times = {
            program: lines_of([*command, "--workload", name], precision)[0].get("median_ms")
            for program, command in {"flow": flow, **peers}.items()
        }
        known = [peer for peer in peers if times[peer]]  # others do not have the network
        best = min(known, key=times.__getitem__)
        yield row(group, OVERHEAD.get(name, name), times["flow"], best, times[best])


def training(choice, peers, names, precision):
    """Yield rows of training steps."""
    group = f"training step, {precision}"
    yield from programs(group, choice.of(group, names), peers, precision)


def prediction(choice, precision):
    """Yield rows of predict jobs."""
    group = f"prediction, {precision}"
    names = choice.of(group, PREDICTED[precision])
    if not names:
        return
    arguments = ("--precision", precision, "--workload", ",".join(names), "--batch", "1,8")
    cells = defaultdict(dict)
    for found in records_of("predict_bench.py", *arguments):
        cells[found["workload"], found["batch"]][found["program"]] = found["p50_ms"]
    for (workload, batch), times in cells.items():
        flow = times.pop("flow")
        best = min(times, key=times.__getitem__)
        yield row(group, f"{workload} b{batch}", flow, best, times[best])


def serving(choice):
    """Yield rows of served models: the time per request of all clients together, and p99."""
    names = choice.of("serving", SERVED)
    arguments = ("--workload", ",".join(names), "--clients", "8")
    for found in records_of("serve_bench.py", *arguments) if names else ():
        flow, peer = found["flow"], found["onnxruntime"]
        name = f"{found['workload']}, batches of up to {found['batch']}"
        times = (1e3 / flow["per_s"], "onnxruntime", 1e3 / peer["per_s"])
        yield row("serving", name, *times)
        yield row("serving", f"{name}, p99", flow["p99_ms"], "onnxruntime", peer["p99_ms"])


def machine():
    """Describe this machine."""
    facts = {"model name": platform.processor() or platform.machine(), "flags": ""}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, text = line.partition(":")
        facts[name.strip()] = text.strip()
    flags = facts["flags"].split()
    cpu = " ".join(re.sub(r"\((R|TM)\)|\bProcessor\b", "", facts["model name"]).split())
    if facts.get("vendor_id") == "AuthenticAMD":
        family = int(facts["cpu family"])
        zen = "Zen 4" if family == 25 and "avx512f" in flags else ZEN.get(family, "")
        cpu = f"{cpu} ({zen})" if zen else cpu
    isa = next((text for name, text in ISA.items() if name in flags), "")
    return {"cpu": cpu, "isa": isa, "cores": len(os.sched_getaffinity(0))}


def version_of(name, python):
    """Return the version of a package in the environment of an interpreter; None without it."""
    code = f"from importlib import metadata; print(metadata.version({name!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def versions_of(peers):
    """Return the versions of the packages here, and of frameworks in the environments of peers."""
    pythons = dict.fromkeys([sys.executable, *(command[0] for command in peers.values())])
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        here = pythons if name in FRAMEWORKS else (sys.executable,)
        known = next(filter(None, (version_of(name, python) for python in here)), None)
        if known:
            found[name] = known
    return found


def measured(peers, half_peers, choice):
    """Return a table of this machine."""
    load, about = os.getloadavg()[0], machine()
    rows = [
        *floors(choice), *training(choice, peers, TRAINING, "float32"),
        *prediction(choice, "float32"), *serving(choice),
        *training(choice, half_peers, HALF_TRAINING, "bfloat16"),
        *programs("other", choice.of("other", OVERHEAD), peers, "float32"),
    ]  # fmt: skip
    if "AVX-512" in about["isa"]:
        rows += prediction(choice, "int8")
        rows += prediction(choice, "bfloat16") if importlib.util.find_spec("openvino") else ()
    return {
        "machine": about, "date": datetime.date.today().isoformat(),
        "versions": versions_of(peers | half_peers),
        "note": f"load average before the run: {load:.1f}", "rows": rows,
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


def merged(new, old):
    """Return a new table with the rows of the old one that were not measured again."""
    here, before = new["versions"], old["versions"]
    if any(here[name] != before[name] for name in here.keys() & before.keys()):
        raise SystemExit(
            f"recording some rows\n  found:   {here}\n  allowed: the versions of the other rows,"
            f" {before}; measure all rows without --only"
        )
    again = {(r["group"], r["name"]) for r in new["rows"]}
    kept = [r for r in old["rows"] if (r["group"], r["name"]) not in again]
    return {**new, "versions": before | here, "rows": [*kept, *new["rows"]]}


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
    parser.add_argument("--only", action="append", metavar="GROUP: NETWORK", help="a pattern")
    args = parser.parse_args()
    found = tables()
    if not args.page:
        peers = [dict(map(command_of, given)) for given in (args.peer, args.half_peer)]
        new = measured(*peers, Choice(args.only))
        old = same_machine(new, found)
        lines = fallen_back(new, old) if old else []
        print(page([new]).removeprefix(INTRODUCTION))
        print("\n".join(lines) or ("nothing fell back" if old else "no table of this machine yet"))
        if not args.record:
            return 1 if lines or not old else 0
        new = merged(new, old) if args.only and old else new
        found = [new, *(t for t in found if t is not old)]
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(page(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
