"""Which CUDA toolkits and Pythons compile flow-cuda's kernels, and which wheels install together.

    python benchmarks/cuda_matrix.py compile [--all]   # with the NVRTC of this environment
    python benchmarks/cuda_matrix.py install NAME UV WHEELS  # into an empty environment
    python benchmarks/cuda_matrix.py page

``nox -s "cuda(12.4, 3.11)"`` and ``nox -s cuda-install`` call the first two, which update rows of
``cuda_matrix.json``; the third writes ``docs/cuda-matrix.md`` from it.  No GPU is needed.

``compile`` takes one kernel per function and op, in float32 where possible and for the sizes of a
sample, and compiles each for one of the architectures that NVRTC lists from sm_70, in turn, or with
``--all`` for each of them.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import pkgutil
import platform
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORD, PAGE = ROOT / "benchmarks" / "cuda_matrix.json", ROOT / "docs" / "cuda-matrix.md"
LEAST = 70
GROUP = 24
Row = dict[str, Any]

INTRODUCTION = """\
# GPUs: versions of CUDA

`nox -s "cuda(TOOLKIT, PYTHON)"` installs NVIDIA's runtime compiler (NVRTC) of a toolkit and
compiles flow-cuda's kernels; `nox -s cuda-install` installs the extras from built wheels into
empty environments. Neither needs a GPU, and neither runs a kernel. `python
benchmarks/cuda_matrix.py page` writes this page from `benchmarks/cuda_matrix.json`, to which the
sessions write, and has the rows of those that have run; CI runs the oldest and the newest
toolkit. For what has been run, see
[GPUs](cuda.md#test-status). Terms are defined in the [glossary](glossary.md).

## Compiled

There is one kernel per function and op, for constant sizes. "All" means each kernel for each
architecture; "in turn" means each kernel for one of the architectures. Seconds are processor time
of all threads, on {processors}; other programs ran on the same cores.

"""
INSTALLED = """\

## Installed

Each combination was installed into an empty environment of Python {python}, without NVIDIA's
driver; all modules of the packages were imported, and `flow doctor` ran.

"""


def python_version() -> str:
    """Return the minor version of Python."""
    return "{}.{}".format(*sys.version_info)


def processor() -> str:
    """Return the model of the processor and the number of its cores."""
    text = Path("/proc/cpuinfo").read_text()
    found = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    model = found[1] if found else platform.machine()
    return f"{model} ({os.cpu_count()} cores)"


def version_of(name: str) -> str:
    """Return the version of an installed distribution, or an empty text."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def compiled(everything: bool) -> Row:
    """Compile kernels with the NVRTC of this environment; return the row of the table.

    Raises:
        NvrtcError: a kernel does not compile; the error has NVRTC's log.
    """
    sys.path[:0] = [str(ROOT / "tests" / "helpers")]
    from cuda_cases import DeviceKernels, simulated_registry

    from flow_cuda.codegen import nvrtc
    from flow_cuda.codegen.program import translation_unit

    class Kit(DeviceKernels):
        plugin, dtypes = "cuda_simulator.plugin", ("float32",)

        def registry(self) -> Any:
            return simulated_registry()

    chosen = {k.name.rpartition("_")[0]: k for k in Kit().all_kernels((1,))}
    kernels = [chosen[name] for name in sorted(chosen)]
    architectures = [a for a in nvrtc.architectures() if a >= LEAST]

    def compile_part(work: tuple[int, int]) -> None:
        number, start = work
        every = 1 if everything else len(architectures)
        part = [k for i, k in enumerate(kernels) if (i + number) % every == 0][start:][:GROUP]
        if part:
            code = nvrtc.compile_text(translation_unit(part), f"sm_{architectures[number]}")
            assert code[:4] == b"\x7fELF", f"no cubin for sm_{architectures[number]}"

    used = time.process_time()
    work = [(n, s) for n in range(len(architectures)) for s in range(0, len(kernels), GROUP)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_part, work))
    names = ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc")
    return {
        "toolkit": ".".join(map(str, nvrtc.version())),
        "python": python_version(),
        "nvrtc": " ".join(filter(None, map(version_of, names))),
        "bindings": version_of("cuda-bindings"),
        "architectures": architectures,
        "kernels": len(kernels),
        "share": "all" if everything else "in turn",
        "seconds": round(time.process_time() - used),
        "processor": processor(),
    }


PACKAGES = (
    "flow-cuda", "flow-dist", "cuda-bindings", "cupy-cuda12x", "cupy-cuda13x",
    "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cudnn-frontend", "nvidia-nccl-cu12",
    "nvidia-nccl-cu13", "nccl4py", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc",
)  # fmt: skip


LINES = ("gpu ", "CUDA packages", "NVRTC", "cuBLASLt", "cuDNN:", "NCCL")
"""How the lines of ``flow doctor`` begin that the page shows."""


def sets() -> Row:
    """Return what tests/sets.toml lists: toolkits, those of CI, and combinations of packages."""
    return tomllib.loads((ROOT / "tests" / "sets.toml").read_text())["cuda"]  # type: ignore[no-any-return]


def install(name: str, uv: str, wheels: str) -> Row:
    """Install a combination of tests/sets.toml into this environment; return the row.

    ``uv`` may refuse it.  Otherwise all modules must import, and ``flow doctor`` runs.
    """
    given = sets()["installs"][name]
    words = [uv, "pip", "install", "--python", sys.executable, "--find-links", wheels]
    own = {wheel.name.partition("-")[0].replace("_", "-") for wheel in Path(wheels).glob("*.whl")}
    words += [f"--refresh-package={package}" for package in sorted(own)]  # built anew each time
    done = subprocess.run([*words, "flow-core[cli]", *given[0]], stderr=subprocess.PIPE, text=True)
    row: Row = {"name": name, "python": python_version(), "modules": 0, "megabytes": 0}
    if done.returncode:
        said = " ".join(done.stderr.split())
        if "No solution found" not in said:
            raise RuntimeError(said)
        return {**row, "packages": {}, "doctor": [f"uv refuses: {said.partition('error: ')[2]}"]}
    if given[1]:
        subprocess.run([*words, "--no-deps", *given[1]], check=True)
    script = f"import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}]; import cuda_matrix; "
    call = "import json; print(json.dumps(cuda_matrix.described()))"
    command = [sys.executable, "-I", "-c", script + call]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return {**row, **json.loads(found.splitlines()[-1])}


def described() -> Row:
    """Import everything, and run ``flow doctor``, in this environment.

    Raises:
        ImportError: a module does not import without a driver.
    """
    modules = 0
    for package in ("flow_cuda", "flow_dist"):
        if importlib.util.find_spec(package) is None:
            continue
        path = importlib.import_module(package).__path__
        for found in pkgutil.walk_packages(path, f"{package}."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)
                modules += 1
    flow = Path(sys.executable).with_name("flow")
    done = subprocess.run([flow, "doctor"], capture_output=True, text=True)  # 1: no GPU
    lines = (" ".join(row.split()) for row in done.stdout.splitlines())
    said = [row.removeprefix("flow-cuda ").removeprefix("flow-dist ") for row in lines]
    return {
        "packages": {p: version_of(p) for p in PACKAGES if version_of(p)},
        "modules": modules,
        "megabytes": round(sum(p.stat().st_size for p in _files()) / 1e6),
        "doctor": [re.sub(r" \(at [^)]*\)", "", row) for row in said if row.startswith(LINES)],
    }


def _files() -> Iterator[Path]:
    folder = Path(sys.prefix, "lib")
    return (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def record(kind: str, keys: Sequence[str], row: Row) -> None:
    """Replace the row with the same keys."""
    rows = load()
    kept = [r for r in rows[kind] if any(r[k] != row[k] for k in keys)]
    rows[kind] = sorted([*kept, row], key=lambda r: [_order(r[k]) for k in keys])
    RECORD.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


def load() -> dict[str, list[Row]]:
    """Return the recorded rows."""
    found: dict[str, list[Row]] = {"compiled": [], "installed": []}
    return json.loads(RECORD.read_text()) if RECORD.exists() else found


def _order(text: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (0, part) for part in text.split(".")]


def page() -> str:
    """Return the text of the page."""
    rows = load()
    head = "| toolkit | Python | NVRTC | cuda-bindings | architectures | kernels | each for | s |"
    lines = [head, "|" + "---|" * 8]
    for r in rows["compiled"]:
        ends = ", ".join(f"sm_{a}" for a in r["architectures"])
        lines.append(
            f"| {r['toolkit']} | {r['python']} | {r['nvrtc']} | {r['bindings']} | {ends} | "
            f"{r['kernels']} | {r['share']} | {r['seconds']} |"
        )
    processors = " and ".join(sorted({r["processor"] for r in rows["compiled"]}))
    text = INTRODUCTION.format(processors=processors) + "\n".join(lines) + "\n"
    if not rows["installed"]:
        return text
    pythons = ", ".join(sorted({r["python"] for r in rows["installed"]}))
    text += (
        INSTALLED.format(python=pythons)
        + "| installed | packages | MB | modules | `flow doctor` |\n"
    )
    text += "|" + "---|" * 5 + "\n"
    for r in rows["installed"]:
        packages = ", ".join(f"{n} {v}" for n, v in r["packages"].items() if "flow" not in n)
        doctor = "<br>".join(r["doctor"])
        text += f"| {r['name']} | {packages} | {r['megabytes']} | {r['modules']} | {doctor} |\n"
    return text


def main(words: Sequence[str] | None = None) -> int:
    """Run a command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("compile").add_argument("--all", action="store_true")
    parts = commands.add_parser("install")
    for word in ("name", "uv", "wheels"):
        parts.add_argument(word)
    commands.add_parser("page")
    given = parser.parse_args(words)
    if given.command == "compile":
        row = compiled(given.all)
        record("compiled", ("toolkit", "python"), row)
        print(json.dumps(row))
    elif given.command == "install":
        row = install(given.name, given.uv, given.wheels)
        record("installed", ("name",), row)
        print(json.dumps(row, indent=1, ensure_ascii=False))
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
