"""Follow the guide of docs/architecture.md in a clone; run by ``nox -s guides``.

Each change may touch only the files that its rows name, and its tests must pass.  Each mistake in a
file must fail the tests that the guide names for it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import processes

from guides.changes import CHANGES, CORE, MISTAKES, Change, Mistake

ROOT = Path(__file__).parents[3]


def named(row: str) -> set[str]:
    """Return the files and folders that the row of the guide with this beginning names."""
    page = (ROOT / "docs/architecture.md").read_text()
    (line,) = (line for line in page.splitlines() if line.startswith(f"| {row}"))
    texts = re.findall(r"`([\w./-]+)`", line.split(" | ", 1)[1])
    paths = (text if (ROOT / text).exists() else f"{CORE}/{text}" for text in texts)
    return {os.path.normpath(path) for path in paths if (ROOT / path).exists()}


def is_named(path: str, rows: Sequence[str]) -> bool:
    """Return whether rows name a file, or the folder of a new one."""
    return any(
        path == name or (not (ROOT / path).exists() and os.path.dirname(path) == name)
        for row in rows
        for name in named(row)
    )


def run(clone: Path, *command: str) -> processes.Completed[str]:
    """Run a program with the sources of the clone."""
    sources = [str(path) for path in clone.glob("packages/*/src")]
    path = os.pathsep.join([*sources, str(clone / "tests/helpers")])
    env = os.environ | {"PYTHONPATH": path, "FLOW_PLAN_CACHE": "0"}
    return processes.run([sys.executable, "-m", *command], cwd=clone, env=env, timeout=600)


def clone_into(folder: str) -> Path:
    """Copy the files that git knows, with changes that are not committed."""
    clone = Path(folder, "flow")
    files = processes.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True)
    for name in files.stdout.splitlines():
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name)
    shared = ROOT.parent / "shared"
    if shared.exists():
        Path(folder, "shared").symlink_to(shared)
    return clone


def made(clone: Path, change: Change) -> list[str]:
    """Make a change; return what is wrong with it."""
    wrong = []
    for key, (line, text) in change.inserted.items():
        name = key.partition(":")[0]
        if not is_named(name, change.rows):
            wrong.append(f"{name} is named by none of the rows {', '.join(change.rows)}")
        path = clone / name
        before = path.read_text() if path.exists() else ""
        if line and before.count(line) != 1:
            wrong.append(f"{name} has {before.count(line)} times {line!r}")
        path.write_text(before.replace(line, text + line, 1) if line else text)
    run(clone, "snapshots", "public_surface")
    done = run(clone, "pytest", "-q", "--cases=representative", *change.tests)
    return [*wrong, done.stdout + done.stderr] if done.returncode or wrong else []


def noticed(clone: Path, mistake: Mistake) -> list[str]:
    """Make a mistake; return what is wrong if the tests do not notice it."""
    path = clone / mistake.file
    before = path.read_text()
    files, tests = mistake.rows
    wrong = [] if is_named(mistake.file, [files]) else [f"{mistake.file} is not in {files!r}"]
    if before.count(mistake.right) != 1:
        wrong.append(f"{mistake.file} has {before.count(mistake.right)} times {mistake.right!r}")
    path.write_text(before.replace(mistake.right, mistake.wrong))
    done = run(clone, "pytest", "-q", "-x", *sorted(named(tests)))
    path.write_text(before)
    return wrong if done.returncode == 1 else [*wrong, f"no test fails:\n{done.stdout[-500:]}"]


def main() -> int:
    """Print a line per change and mistake; the exit status is 1 if one is not as the guide says."""
    failed = 0
    for name, change in CHANGES.items():
        with tempfile.TemporaryDirectory() as folder:
            wrong = made(clone_into(folder), change)
        files = len({key.partition(":")[0] for key in change.inserted})
        print(f"{'FAILED' if wrong else 'ok    '} {name}: {files} files, with tests", flush=True)
        failed += bool(wrong)
        print(*wrong, sep="\n", end="" if not wrong else "\n")
    with tempfile.TemporaryDirectory() as folder:
        clone = clone_into(folder)
        for mistake in MISTAKES:
            wrong = noticed(clone, mistake)
            print(f"{'FAILED' if wrong else 'ok    '} mistake in {mistake.file}", flush=True)
            failed += bool(wrong)
            print(*wrong, sep="\n", end="" if not wrong else "\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
