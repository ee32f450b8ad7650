"""Run public programs of OneFlow's users, unmodified, with synthetic data on emulated GPUs.

The programs are not part of this repository: each entry of ``programs.toml`` names a public
repository, a commit, a folder and a command.  ``--mirrors DIR`` names a folder with git directories
``<owner>+<name>/repo``; without it, repositories are cloned.  Programs whose repository is not
available are skipped with a reason.

A program is fine if it ends with status 0, or if it printed finite numbers in enough lines that
match its ``losses`` pattern; it is then stopped.  A program with ``fails`` must fail with that
text.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import re
import shutil
import sys
import tempfile
import threading
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import processes

from public_programs.synthetic import MAKERS

HERE = Path(__file__).parent
NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)"


@dataclass(frozen=True)
class Program:
    """One entry of the catalog.

    Attributes:
        name: name of the entry.
        repository: "owner/name" on GitHub.
        commit: the commit.
        folder: the folder in which the command runs.
        command: arguments of Python; ``{gpus}`` is the number of GPUs.
        losses: a regular expression whose first group is a loss.
        before: arguments of programs to run to their ends first, in the same folder.
        lines: number of losses after which the program is stopped; 0 to run to the end.
        data: names of functions of `synthetic`, which write data into the folder.
        path: folders of the repository from which the program imports modules.
        gpus: numbers of emulated GPUs.
        field: field of application.
        note: what differs from the program's own setting.
        fails: text of the expected error, if the program is known to fail.
        seconds: time limit.
    """

    name: str
    repository: str
    commit: str
    folder: str
    command: list[str]
    losses: str = ""
    before: list[list[str]] = field(default_factory=list)
    lines: int = 3
    data: list[str] = field(default_factory=list)
    path: list[str] = field(default_factory=list)
    gpus: list[int] = field(default_factory=lambda: [1, 2])
    field: str = ""
    note: str = ""
    fails: str = ""
    seconds: int = 180


def read_catalog(path: Path) -> list[Program]:
    """Return the programs; tables of repositories hold the defaults of their programs."""
    catalog = tomllib.loads(path.read_text(encoding="utf-8"))
    return [
        Program(**{k: v for k, v in group.items() if k != "programs"}, **entry)
        for group in catalog["repositories"]
        for entry in group["programs"]
    ]


class Sources:
    """Checkouts of the repositories, below a temporary folder."""

    def __init__(self, mirrors: Path | None, folder: Path) -> None:
        self._mirrors, self._folder = mirrors, folder
        self._problems: dict[str, str] = {}

    def checkout(self, program: Program) -> Path | str:
        """Return a folder with the files of a commit, or why there is none."""
        key = f"{program.repository}@{program.commit}"
        target = self._folder / key.replace("/", "+")
        if key not in self._problems and not target.exists():
            self._problems[key] = self._fetch(program, target)
        return self._problems.get(key) or target

    def _fetch(self, program: Program, target: Path) -> str:
        source = self._folder / f"{program.repository.replace('/', '+')}.git"
        if self._mirrors is not None:
            source = self._mirrors / program.repository.replace("/", "+") / "repo"
        elif not source.exists():
            url = f"https://github.com/{program.repository}"
            clone = ["git", "clone", "--quiet", "--bare", url, str(source)]
            done = processes.run(clone, timeout=600)
            if done.returncode:
                return f"cannot clone {url}: {done.stderr.strip()[-200:]}"
        archive = ["git", "-C", str(source), "archive", program.commit]
        packed = processes.run(archive, text=False)
        if packed.returncode:
            return f"no commit {program.commit} in {source}"
        target.mkdir(parents=True)
        processes.run(["tar", "x", "-C", str(target)], input=packed.stdout, text=False, check=True)
        return ""


@dataclass
class Outcome:
    """What a run of a program showed.

    Attributes:
        state: "runs", "fails", "fails as listed" or "skipped".
        losses: the first losses.
        detail: the cause of a failure, or of a skip.
    """

    state: str
    losses: list[float]
    detail: str = ""


def run_program(program: Program, checkout: Path, gpus: int, python: str) -> Outcome:
    """Run a program in a copy of its repository."""
    with tempfile.TemporaryDirectory(prefix="program-") as work:
        copy = Path(work, "repository")
        shutil.copytree(checkout, copy, symlinks=True)
        folder = copy / program.folder
        for maker in program.data:
            MAKERS[maker](folder)
        folders = (HERE / "shims", *(copy / part for part in program.path))
        command = [python, "-u", *(part.format(gpus=gpus) for part in program.command)]
        env = {
            **os.environ,
            "ONEFLOW_EMULATE_GPUS": str(gpus),
            "MPLBACKEND": "Agg",
            "PYTHONWARNINGS": "ignore",
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
        }
        for first in program.before:
            with contextlib.suppress(processes.TimeoutExpired):
                processes.run([python, *first], cwd=folder, env=env, timeout=program.seconds)
        return _watched(program, command, folder, env)


def _watched(program: Program, command: list[str], folder: Path, env: Mapping[str, str]) -> Outcome:
    """Run a command until it ends, has printed enough losses, or its time is over."""
    text, losses, enough, late = [], [], False, threading.Event()
    with processes.Program(
        command, cwd=folder, env=env, stdin=processes.DEVNULL, stderr=processes.STDOUT,
        errors="replace",
    ) as process:  # fmt: skip

        def end() -> None:
            late.set()
            process.end()

        timer = threading.Timer(processes.scaled(program.seconds), end)
        timer.start()
        try:
            for line in process.stdout:
                text.append(line)
                losses += _losses(program, line)
                if program.lines and len(losses) >= program.lines:
                    enough = True
                    break
            else:
                process.wait()
        finally:
            timer.cancel()
    status = process.returncode
    return _judged(program, status, enough, late.is_set(), losses, "".join(text))


def _losses(program: Program, line: str) -> Iterator[float]:
    pattern = program.losses.replace("NUMBER", NUMBER)
    found = re.search(pattern, line) if pattern else None
    if found:
        yield float(found[1])


def _judged(
    program: Program, status: int, enough: bool, late: bool, losses: list[float], text: str
) -> Outcome:
    if program.fails:
        listed = status and program.fails in text
        return Outcome("fails as listed" if listed else "fails", losses, program.fails)
    finite = all(map(math.isfinite, losses))
    if finite and (enough or (status == 0 and not late)):
        return Outcome("runs", losses)
    last = [line for line in text.strip().splitlines() if line.strip()][-8:]
    cause = "not finite" if not finite else "time is over" if late else f"status {status}"
    return Outcome("fails", losses, f"{cause}: {' | '.join(last)[-600:]}")


def table(rows: list[tuple[Program, dict[int, Outcome]]]) -> str:
    """Return the results as a table in Markdown."""
    return "\n".join((*HEAD, *(row(program, found) for program, found in rows)))


HEAD = ("| repository | program | field | 1 GPU | 2 GPUs | note |", "|---|---|---|---|---|---|")


def row(program: Program, found: dict[int, Outcome]) -> str:
    """Return the results of a program as a row of the table."""
    cells = [_cell(found[n]) if n in found else "-" for n in (1, 2)]
    note = program.note or program.fails
    return f"{_key(program)}{program.field} | {cells[0]} | {cells[1]} | {note} |"


def _key(program: Program) -> str:
    """Return the first two cells of a program's row."""
    return f"{_repository(program)}`{program.name}` | "


def _repository(program: Program) -> str:
    return f"| {program.repository.partition('/')[2]} | "


def updated(page: str, rows: list[tuple[Program, dict[int, Outcome]]]) -> str:
    """Return a page with new rows for the programs that ran, or failed as listed.

    The other rows stay: a program may be skipped, or fail for lack of one of its packages.
    A program without a row gets one below the last row of its repository, or of the table.
    """
    lines = page.split("\n")
    for program, found in rows:
        if found and all(o.state in ("runs", "fails as listed") for o in found.values()):
            own = [i for i, line in enumerate(lines) if line.startswith(_key(program))]
            group = [i for i, line in enumerate(lines) if line.startswith(_repository(program))]
            at = own[0] if own else (group or _rows(lines))[-1] + 1
            lines[at : at + len(own[:1])] = [row(program, found)]
    return "\n".join(lines)


def _rows(lines: list[str]) -> list[int]:
    """Return the numbers of the lines of the table, with its head."""
    start = lines.index(HEAD[0])
    inside = itertools.takewhile(lambda i: lines[i].startswith("|"), range(start, len(lines)))
    return list(inside)


def _cell(outcome: Outcome) -> str:
    if outcome.state != "runs":
        return outcome.state.partition(" ")[0]
    return ", ".join(f"{loss:.4g}" for loss in outcome.losses[:3]) or "runs"


def main() -> int:
    """Run the catalog; return 1 if a program fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mirrors", type=Path, help="folder of git directories")
    parser.add_argument("--match", default="", help="regular expression on repository and name")
    parser.add_argument("--gpus", type=int, action="append", help="numbers of emulated GPUs")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the programs")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--update", type=Path, help="page whose table gets the results")
    options: Any = parser.parse_args()
    rows: list[tuple[Program, dict[int, Outcome]]] = []
    with tempfile.TemporaryDirectory(prefix="programs-") as work:
        sources = Sources(options.mirrors, Path(work))
        for program in read_catalog(HERE / "programs.toml"):
            if not re.search(options.match, f"{program.repository}/{program.name}"):
                continue
            checkout, found = sources.checkout(program), {}
            for gpus in options.gpus or program.gpus:
                if isinstance(checkout, str):
                    found[gpus] = Outcome("skipped", [], checkout)
                elif gpus in program.gpus:
                    found[gpus] = run_program(program, checkout, gpus, options.python)
            rows.append((program, found))
            for gpus, outcome in found.items():
                print(f"{program.name} [{gpus}]: {_cell(outcome)} {outcome.detail}", flush=True)
    print(table(rows))
    if options.update:
        page = options.update.read_text(encoding="utf-8")
        options.update.write_text(updated(page, rows), encoding="utf-8")
    if options.json:
        results = [
            {"name": program.name, "gpus": gpus, **vars(outcome)}
            for program, found in rows
            for gpus, outcome in found.items()
        ]
        options.json.write_text(json.dumps(results, indent=1))
    return int(any(o.state == "fails" for _, found in rows for o in found.values()))


if __name__ == "__main__":
    sys.exit(main())
