"""Everything about flow-cuda that only a GPU can show, in one table, in under eight minutes.

    python benchmarks/cuda_checks.py [--out FOLDER] [--seconds 480] [--only PART ...]
        [--shared FOLDER] [--wheels FOLDER] [--rehearse]

Each part (`cuda_parts.py`) is a process of its own with a time limit, so that one that hangs or
crashes ends alone; parts come in the order of what they tell.  Rows are written to
``FOLDER/rows.jsonl`` as they come, with what each part prints beside them: a run that is cut off
leaves what it has done.  ``FOLDER/table.txt`` is the table.

It needs no installation and no network: packages that are not installed are taken from the
checkout, and ``--wheels`` names a folder of wheels that were brought along, such as those of
nvmath-python, nccl4py and nvidia-cudnn-frontend.  Peers are measured where they are installed.
``--shared`` is a folder with ``data/mnist.npz`` and ``programs``.

Without a GPU it says what is missing and ends with status 1.  ``--rehearse`` runs all parts on the
host with small shapes: that shows that the script works, and nothing about a device.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path += map(str, ROOT.glob("packages/*/src"))  # behind what is installed

from flow_cuda.families import FAMILIES  # noqa: E402 - found by the line above

NETWORKS = ("mlp", "lenet", "bert_base", "resnet50", "wide_deep_sgd")
PEERS = {"torch eager": "torch", "torch.compile": "torch", "jax jit": "jax"}
"""What else steps are measured in, and the package that it needs."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        name: what was looked at.
        result: "passed", "FAILED", "skipped", or a number with its unit.
        note: what else there is to say.
        data: numbers by name.
    """

    name: str
    result: str
    note: str = ""
    data: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Part:
    """What one process checks.

    Attributes:
        name: a function of `cuda_parts.py`, and its arguments behind colons.
        seconds: when it is cut off.
        together: parts that follow each other with the same text here run at once: they time
            nothing.
    """

    name: str
    seconds: float = 60.0
    together: str = ""


PARTS: tuple[Part, ...] = (
    Part("environment", 40),
    Part("products", together="first"),
    Part("training", together="first"),
    Part("dropout", together="first"),
    Part("steady"),
    Part("rates", 40),
    *(Part(f"step:{name}") for name in ("mlp", "lenet")),
    *(Part(f"peer:{name}:{peer}", 40) for name in ("mlp", "lenet") for peer in PEERS
      if peer != "torch.compile"),
    *(Part(f"kernels:{family}", 120, "kernels") for family in FAMILIES if family != "fallback"),
    *(Part(f"step:{name}") for name in NETWORKS[2:]),
    *(Part(f"programs:{device}", 90, "programs") for device in ("gpu", "cpu")),
    *(Part(f"peer:{name}:torch eager", 45) for name in NETWORKS[2:]),
    Part("nccl", 40),
    *(Part(f"peer:{name}:torch.compile", 90) for name in NETWORKS),
    *(Part(f"peer:{name}:jax jit", 60) for name in NETWORKS[2:]),
)  # fmt: skip
"""All parts, by what they tell."""


@dataclass(slots=True)
class Report:
    """Rows on their way to the files.

    Attributes:
        folder: where the files are.
        rows: all rows so far.
    """

    folder: Path
    rows: list[Row] = field(default_factory=list)

    def add(self, rows: Iterable[Row]) -> None:
        """Prints and keeps rows."""
        for row in rows:
            self.rows.append(row)
            print(line(row), flush=True)
            with (self.folder / "rows.jsonl").open("a") as file:
                file.write(json.dumps(asdict(row)) + "\n")

    def finish(self) -> int:
        """Writes the table, the steps in it side by side; status 0 if nothing failed."""
        self.add(comparison(self.rows))
        width = max(len(row.name) for row in self.rows)
        table = "\n".join(line(row, width) for row in self.rows)
        (self.folder / "table.txt").write_text(table + "\n")
        failed = [row.name for row in self.rows if row.result == "FAILED"]
        print(f"{len(failed)} failed: {', '.join(failed)}" if failed else "nothing failed")
        return int(bool(failed))


def line(row: Row, width: int = 44) -> str:
    """A row as text."""
    return f"{row.name:<{width}}  {row.result:<12}  {row.note}".rstrip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs parts until the time is over; status 0 if nothing failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("cuda-checks"))
    parser.add_argument("--seconds", type=float, default=470.0)
    parser.add_argument("--only", nargs="*", default=[], help="parts, or how their names begin")
    parser.add_argument("--shared", type=Path, default=next(filter(Path.is_dir, SHARED), ROOT))
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--rehearse", action="store_true")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    parts = [p for p in PARTS if not given.only or p.name.startswith(tuple(given.only))]
    if given.rehearse:
        parts = [replace(part, seconds=10 * part.seconds) for part in parts]
    report, stop = Report(given.out), time.monotonic() + given.seconds
    with tempfile.TemporaryDirectory() as site:
        env = environment(Path(site), given.wheels, given.shared)
        mode = ["--rehearse"] if given.rehearse else []
        for together, group in groupby(parts, key=lambda p: p.together):
            workers = max(1, min(8, (os.cpu_count() or 2) // 2)) if together else 1
            with ThreadPoolExecutor(workers) as pool:
                jobs = [pool.submit(run, part, mode, given.out, env, stop) for part in group]
                for job in jobs:
                    report.add(job.result())
            if any(row.name == "device" and row.result == "missing" for row in report.rows):
                break
    missing = any(row.result == "missing" for row in report.rows)
    return report.finish() or int(missing)


SHARED = (ROOT / "shared", ROOT.parent / "shared", ROOT.parents[1] / "shared")


def run(
    part: Part, mode: Sequence[str], out: Path, env: Mapping[str, str], stop: float
) -> list[Row]:
    """The rows of a part, and one that says so if it did not come to its end."""
    left = min(part.seconds, stop - time.monotonic())
    if left < 5:
        return [Row(part.name, "skipped", "the time is over")]
    stem = re.sub(r"\W+", "-", part.name)
    rows, log = out / f"{stem}.rows", out / f"{stem}.log"
    rows.unlink(missing_ok=True)
    command = [sys.executable, str(HERE / "cuda_parts.py"), part.name, "--rows", str(rows), *mode]
    with log.open("w") as file:
        child = subprocess.Popen(
            [*command, "--seconds", f"{left:.0f}"], stdout=file, stderr=file, env=dict(env),
            start_new_session=True,
        )  # fmt: skip
        try:
            code = child.wait(left)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return [*read(rows), Row(part.name, "FAILED", f"cut off after {left:.0f} s")]
    found = read(rows)
    if code:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        found.append(Row(part.name, "FAILED", f"status {code}; {' '.join(last)[:200]}"))
    return found


def read(file: Path) -> list[Row]:
    """The rows that a part has written: whole lines only."""
    if not file.exists():
        return []
    return [Row(**json.loads(text)) for text in file.read_text().split("\n")[:-1]]


# --- packages, installed or not


def environment(site: Path, wheels: Path | None, shared: Path) -> dict[str, str]:
    """The environment of the parts, in which the packages of the checkout are there."""
    if wheels is not None:
        files = [str(path) for path in sorted(wheels.glob("*.whl"))]
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
        "FLOW_CHECKS_SHARED": str(shared),
    }


def place_packages(site: Path) -> Iterator[Path]:
    """Makes packages of the checkout that are not installed known to plugins; their sources."""
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


# --- the summary


def comparison(rows: Sequence[Row]) -> Iterator[Row]:
    """Each network's step beside its floor and the best peer."""
    found: dict[str, Any] = {row.name: row for row in rows}
    rate = {k: v for row in rows if row.name.startswith("rate") for k, v in row.data.items()}
    for name in NETWORKS:
        own = found.get(f"{name}: step")
        if own is None or "seconds" not in own.data:
            continue
        times = {
            peer: found[f"{name}: {peer}"].data["seconds"]
            for peer in PEERS
            if "seconds" in getattr(found.get(f"{name}: {peer}"), "data", {})
        }
        words = [f"{peer} {seconds * 1e6:.0f}" for peer, seconds in times.items()]
        result = "no peer"
        if times:
            result = f"{min(times.values()) / own.data['seconds']:.2f} x"
        if rate:
            by_bytes = own.data["bytes"] / rate["bytes"]
            by_work = own.data["operations"] / rate[f"operations {own.data['bits']:.0f}"]
            words.append(f"floor {by_bytes * 1e6:.0f} of bytes, {by_work * 1e6:.0f} of work")
        yield Row(
            f"{name}: beside the best peer", result,
            f"us: own {own.data['seconds'] * 1e6:.0f}, {', '.join(words)}",
        )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
