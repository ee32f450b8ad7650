"""Failures of generated texts show the difference and the command that writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import snapshots
from snapshots import Snapshot, __main__, decisions, pages


@pytest.fixture
def numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of a line, of which a hundred are generated."""
    path = tmp_path / "numbers.txt"
    path.write_text("minus one\n")
    snapshot = Snapshot(path.name, lambda _: "".join(f"{i}\n" for i in range(100)), "count twice")
    monkeypatch.setattr(snapshots, "ROOT", tmp_path)
    monkeypatch.setattr(__main__, "ROOT", tmp_path)
    monkeypatch.setattr(snapshots, "ALL", (snapshot,))
    monkeypatch.setattr(__main__, "ALL", (snapshot,))
    return path


@pytest.mark.usefixtures("numbers")
def test_a_failure_shows_the_difference_and_the_command() -> None:
    with pytest.raises(AssertionError) as failed:
        snapshots.check("numbers.txt")
    first, *difference, command = str(failed.value).splitlines()
    assert first == "numbers.txt differs from the sources: count twice"
    assert difference[3:5] == ["-minus one", "+0"]
    assert difference[-1] == "... 64 more lines"
    assert command == "run: nox -s snapshots -- numbers.txt"


def test_the_program_writes_the_text(numbers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    __main__.main(["numb"])
    __main__.main([])
    snapshots.check("numbers.txt")
    assert capsys.readouterr().out == "written   numbers.txt\nunchanged numbers.txt\n"
    with pytest.raises(SystemExit, match=r"no snapshot of letters; there are:\nnumbers\.txt"):
        __main__.main(["letters"])


def test_the_command_is_documented() -> None:
    for page in ("CONTRIBUTING.md", "docs/architecture.md"):
        assert f"{snapshots.COMMAND}`" in (snapshots.ROOT / page).read_text()
    noxfile = (snapshots.ROOT / "noxfile.py").read_text()
    assert f"def {snapshots.COMMAND.split()[-1]}(session" in noxfile


def test_a_new_decision_is_added_to_both_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("0000-template", "0001-a", "0002-b"):
        (tmp_path / f"{name}.md").write_text(f"# {name[:4]}: Use {name[5:]}\n")
    monkeypatch.setattr(decisions, "FOLDER", tmp_path)
    rows = decisions.index("| | decision |\n|---|---|\n| [0001](0001-a.md) | Use c |\n\nEnd\n")
    assert rows.splitlines()[2:4] == [
        "| [0001](0001-a.md) | Use a |",
        "| [0002](0002-b.md) | Use b |",
    ]
    lines = decisions.navigation("      - adr/index.md\n      - adr/0001-a.md\n  - Other: x.md\n")
    assert lines.splitlines()[1:] == [
        "      - adr/0000-template.md", "      - adr/0001-a.md", "      - adr/0002-b.md",
        "  - Other: x.md",
    ]  # fmt: skip


@pytest.mark.slow
def test_quoted_output_is_replaced_or_added_where_it_differs() -> None:
    one, two = (f"```python\nprint({x})\n```\n" for x in (1, 2))
    quoted = "\n```text\n{}\n```\n"
    page = f"{one}\n{two}{quoted.format(3)}"
    expected = f"{one}{quoted.format(1)}\n{two}{quoted.format(2)}"
    assert pages.text("page.md", page) == expected
    assert pages.text("page.md", expected) == expected
