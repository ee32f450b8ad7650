"""The runner of public programs, on programs of a repository that the tests create."""

from __future__ import annotations

import sys
from pathlib import Path

import processes
import pytest
from public_programs import synthetic
from public_programs.run import (
    HERE,
    Outcome,
    Program,
    Sources,
    read_catalog,
    run_program,
    table,
    updated,
)

PROGRAMS = {
    "ends.py": "print('loss: 2.5'); print('loss: 1e-1')",
    "goes_on.py": "import itertools\nfor i in itertools.count(1): print('loss:', 1 / i)",
    "diverges.py": "print('loss: nan')",
    "breaks.py": "raise SystemExit('no such library')",
    "hangs.py": "import time; time.sleep(60)",
    "reads.py": "print('loss:', open('made').read())",
    "writes.py": "open('made', 'w').write('7')",
    "imports.py": "import sys; del sys.path[0]; import ends",
    "old.py": "import numpy as np; print('loss:', np.float(3))",
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Create a mirror of a repository, and return its folder and the commit."""
    mirrors = tmp_path_factory.mktemp("mirrors")
    work = mirrors / "owner+name" / "repo"
    (work / "folder").mkdir(parents=True)
    for name, text in PROGRAMS.items():
        (work / "folder" / name).write_text(text)
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    for arguments in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "programs")):
        processes.run(["git", *arguments], cwd=work, check=True)
    head = processes.run(["git", "rev-parse", "HEAD"], cwd=work, check=True)
    return mirrors, head.stdout.strip()


@pytest.mark.representative(
    r"\[(ends\.py-options0-|old\.py-)",
    "a program of today, and one that uses retired names of numpy",
)
@pytest.mark.parametrize(
    ("name", "options", "state", "losses"),
    [
        ("ends.py", {}, "runs", [2.5, 0.1]),
        ("goes_on.py", {"lines": 2}, "runs", [1, 0.5]),
        ("diverges.py", {"lines": 1}, "fails", None),
        ("breaks.py", {}, "fails", []),
        ("breaks.py", {"fails": "no such library"}, "fails as listed", []),
        ("ends.py", {"fails": "no such library", "lines": 0}, "fails", [2.5, 0.1]),
        ("hangs.py", {"seconds": 1}, "fails", []),
        ("reads.py", {"before": [["writes.py"]]}, "runs", [7]),
        ("imports.py", {"path": ["folder"]}, "runs", [2.5, 0.1]),
        ("imports.py", {}, "fails", []),
        ("old.py", {}, "runs", [3]),
    ],
)
def test_programs(
    repository: tuple[Path, str],
    tmp_path: Path,
    name: str,
    options: dict[str, object],
    state: str,
    losses: list[float] | None,
) -> None:
    mirrors, commit = repository
    given = {"losses": "loss: (NUMBER)", **options}
    program = Program(name, "owner/name", commit, "folder", [name], **given)  # type: ignore[arg-type]
    checkout = Sources(mirrors, tmp_path).checkout(program)
    assert isinstance(checkout, Path)
    outcome = run_program(program, checkout, 1, sys.executable)
    assert outcome.state == state, outcome.detail
    assert losses is None or outcome.losses == losses
    assert f"| name | `{name}` |" in table([(program, {1: outcome})])


def test_a_repository_that_is_not_available(repository: tuple[Path, str], tmp_path: Path) -> None:
    program = Program("ends.py", "owner/name", "0" * 40, "folder", ["ends.py"])
    assert "no commit" in str(Sources(repository[0], tmp_path).checkout(program))


def test_the_catalog_is_valid() -> None:
    programs = read_catalog(HERE / "programs.toml")
    assert len({(p.repository, p.name) for p in programs}) == len(programs)
    for program in programs:
        assert len(program.commit) == 40, program
        assert set(program.data) <= set(synthetic.MAKERS), program
        assert program.lines == 0 or program.losses or program.fails, program


def test_a_page_gets_the_rows_of_the_programs_that_ran() -> None:
    first, second, third = (
        Program(name, "owner/name", "c0", ".", [], field="vision") for name in ("a", "b", "c")
    )
    page = table(
        [(p, {1: Outcome("runs", [1.0]), 2: Outcome("runs", [])}) for p in (first, second)]
    )
    ran = (first, {1: Outcome("runs", [0.25, 0.125]), 2: Outcome("fails as listed", [])})
    others = [(second, {1: Outcome(state, [])}) for state in ("skipped", "fails")]
    lines = updated(f"text\n{page}\nmore", [ran, *others]).split("\n")
    assert lines[3] == "| name | `a` | vision | 0.25, 0.125 | fails |  |"
    assert lines[4] == "| name | `b` | vision | 1 | runs |  |"
    assert [lines[0], lines[-1]] == ["text", "more"]
    added = updated(page, [(third, {1: Outcome("runs", [])})])
    assert added == f"{page}\n| name | `c` | vision | runs | - |  |"
    other = Program("d", "owner/other", "c0", ".", [], field="text")
    added = updated(f"{page}\n\nend", [(other, {1: Outcome("runs", [])})])
    assert added == f"{page}\n| other | `d` | text | runs | - |  |\n\nend"
