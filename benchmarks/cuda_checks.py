"""Measure flow-cuda on a GPU in nine minutes, and print one table; run `gpu_first.py` before.

    python benchmarks/cuda_checks.py [--out FOLDER] [--seconds 540] [--only PART ...] [--compiled]
        [--shared FOLDER] [--tree FOLDER] [--wheels FOLDER] [--simulate]

Each part (`cuda_parts.py`) is a separate process with a share of the time (`cuda_order.py`), so
that a part that hangs or crashes does not affect the others.  The most informative parts come
first.  A part whose share exceeds the remaining time is listed as "not run", and the last line
of the output states the options that run it: ``--only`` takes names or name prefixes of parts and
lets these parts use all of the time.  ``--compiled`` measures torch.compile, which takes minutes to
tune, in a second call.  Calls with either option add rows to the table in the same folder.

Rows are written to ``FOLDER/rows.jsonl`` as they arrive.  ``FOLDER/table.txt``, which shows step
times side by side, is written after each part, so an interrupted run leaves the table of its
finished parts.

The script needs neither an installation nor a network: packages that are not installed are imported
from the checkout, and ``--wheels`` names a folder of additional wheels, such as those of
nccl4py and nvidia-cudnn-frontend.  Peers, which are other libraries, are measured if
they are installed.  ``--shared`` names a folder with ``data/mnist.npz``, ``programs`` and
``conformance``, and ``--tree`` names a checkout of OneFlow's tests.

Without a GPU, the script prints what is missing and exits with status 1.  ``--simulate`` runs all
parts on the host with small shapes, as a test of the script only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from itertools import groupby
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from cuda_order import ROOT, WORKERS, Part, Row, chosen  # noqa: E402 - found by the line above
from cuda_table import line, summary, table  # noqa: E402


@dataclass(slots=True)
class Report:
    """The rows of the table and their files.

    Attributes:
        folder: folder of the files.
        rows: all rows so far, keyed by name.
    """

    folder: Path
    rows: dict[str, Row] = field(default_factory=dict)

    def resume(self) -> None:
        """Load the rows of an earlier call from the folder."""
        kept = read(self.folder / "rows.jsonl")
        self.rows = {row.name: row for row in kept if row.result != "not run"}

    def add(self, rows: Iterable[Row]) -> None:
        """Print and store rows, and write the whole table."""
        with (self.folder / "rows.jsonl").open("a") as file:
            for row in rows:
                self.rows[row.name] = row
                print(line(row), flush=True)
                file.write(json.dumps(asdict(row)) + "\n")
        (self.folder / "table.txt").write_text(table(self.rows) + "\n")

    def finish(self, again: str) -> int:
        """Print comparisons and the parts that did not run; return status 0 if nothing failed."""
        print("\n".join(map(line, summary(self.rows))))
        waiting = [row.name for row in self.rows.values() if row.result == "not run"]
        if waiting:
            print(f"not run, for lack of time: {again} --only {shlex.join(waiting)}")
        rows = (*self.rows.values(), *summary(self.rows))
        failed = [row.name for row in rows if row.result == "FAILED"]
        print(f"{len(failed)} failed: {', '.join(failed)}" if failed else "nothing failed")
        return int(bool(failed))


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("cuda-checks"))
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--only", nargs="*", default=[], help="names or name prefixes of parts")
    parser.add_argument(
        "--compiled", action="store_true", help="measure torch.compile (second call)"
    )
    parser.add_argument("--shared", type=Path, default=next(filter(Path.is_dir, SHARED), ROOT))
    parser.add_argument("--tree", type=Path, help="a checkout of OneFlow's tests")
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--simulate", action="store_true")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run parts until the time is over; return status 0 if nothing failed."""
    given = arguments(words)
    given.out.mkdir(parents=True, exist_ok=True)
    report, stop = Report(given.out), time.monotonic() + given.seconds
    if given.only or given.compiled:
        report.resume()
    else:
        (given.out / "rows.jsonl").unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as site:
        env = environment(Path(site), given)
        call = Call(given.out, env, stop, bool(given.only), given.simulate)
        parts = chosen(tuple(given.only), given.compiled)
        for together, group in groupby(parts, key=lambda p: p.together):
            workers = max(1, min(WORKERS, (os.cpu_count() or 2) // 2)) if together else 1
            with ThreadPoolExecutor(workers) as pool:
                jobs = [pool.submit(run, part, call) for part in group]
                for job in jobs:
                    report.add(job.result())
            if report.rows.get("device", Row("", "")).result == "missing":
                break
    status = report.finish(f"python {sys.argv[0]} --out {given.out}")
    return status or int(any(row.result == "missing" for row in report.rows.values()))


@dataclass(frozen=True, slots=True)
class Call:
    """Settings shared by all parts of a call.

    Attributes:
        out: the folder of the files.
        env: the environment variables for the parts.
        stop: end of the available time, as a value of `time.monotonic`.
        unbound: whether a part may use all of the available time.
        simulated: whether the host simulates the device, which takes longer.
        prefix: words before each command, such as those of a sanitizer.
    """

    out: Path
    env: Mapping[str, str]
    stop: float
    unbound: bool
    simulated: bool
    prefix: tuple[str, ...] = ()

    def limit(self, part: Part) -> float:
        """Return the time limit of a part in seconds; 0 if too little time is left."""
        left = self.stop - time.monotonic()
        if left < (5.0 if self.unbound else part.seconds):
            return 0.0
        return left if self.unbound else min(left, part.seconds * (10 if self.simulated else 1))


SHARED = (ROOT / "shared", ROOT.parent / "shared", ROOT.parents[1] / "shared")


def run(part: Part, call: Call) -> list[Row]:
    """Return the rows of a part, and a row that reports if the part was not run or was cut off."""
    limit = call.limit(part)
    if not limit:
        return [Row(part.name, "not run", f"too little time: limit {part.seconds:.0f} s")]
    stem = re.sub(r"\W+", "-", part.name)
    rows, log = call.out / f"{stem}.rows", call.out / f"{stem}.log"
    rows.unlink(missing_ok=True)
    command = [*call.prefix, sys.executable, str(HERE / "cuda_parts.py"), part.name]
    command += ["--rows", str(rows)]
    command += ["--seconds", f"{limit:.0f}", *(["--simulate"] if call.simulated else [])]
    with log.open("w") as file:
        child = subprocess.Popen(
            command, stdout=file, stderr=file, env=dict(call.env), start_new_session=True
        )
        try:
            code = child.wait(limit)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return [*read(rows), Row(part.name, "FAILED", f"cut off after {limit:.0f} s")]
    found = read(rows)
    if code:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        found.append(Row(part.name, "FAILED", f"status {code}; {' '.join(last)[:200]}"))
    return found


def read(file: Path) -> list[Row]:
    """Read the complete lines that a part has written."""
    if not file.exists():
        return []
    return [Row(**json.loads(text)) for text in file.read_text().split("\n")[:-1]]


# --- packages, installed or not


def environment(site: Path, given: argparse.Namespace) -> dict[str, str]:
    """Return the environment variables for the parts, with the packages of the checkout."""
    if given.wheels is not None:
        files = [str(path) for path in sorted(given.wheels.glob("*.whl"))]
        options = ["--no-index", "--no-deps", "--no-compile", "-q", "--target", str(site)]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, *files], check=True)
    sources = [str(path) for path in place_packages(site)]
    before = os.environ.get("PYTHONPATH", "")
    paths = [*sources, str(site), str(ROOT / "tests" / "helpers"), *filter(None, [before])]
    return {
        "OPENBLAS_NUM_THREADS": "4",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "FLOW_CHECKS_SHARED": str(given.shared),
        "FLOW_CHECKS_TREE": str(given.tree or ""),
    }


def place_packages(site: Path) -> Iterator[Path]:
    """Register uninstalled packages of the checkout as plugins; return their sources."""
    for file in sorted(ROOT.glob("packages/*/pyproject.toml")):
        project = tomllib.loads(file.read_text())["project"]
        name, source = project["name"], file.parent / "src"
        with suppress(metadata.PackageNotFoundError):
            metadata.version(name)
            continue
        stem = name.replace("-", "_")
        version = re.search(r'__version__ = "(.*)"', (source / stem / "__init__.py").read_text())
        number = version[1] if version else "0"
        folder = site / f"{stem}-{number}.dist-info"
        folder.mkdir()
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n"
        (folder / "METADATA").write_text(head)
        groups = project.get("entry-points", {})
        text = "".join(
            f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in rows.items())
            for group, rows in groups.items()
        )
        (folder / "entry_points.txt").write_text(text)
        yield source


if __name__ == "__main__":
    raise SystemExit(main())
