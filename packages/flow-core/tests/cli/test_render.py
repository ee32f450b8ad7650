"""Tables on terminals and in pipes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from flow_core.base.errors import FlowError
from flow_core.cli.render import show
from flow_core.observe.tables import Table

TABLE = Table("Devices", ("type", "state"), (("gpu", "unavailable"), ("cpu", "available\nfine")))


def test_pipes_get_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    show([TABLE])
    assert capsys.readouterr().out == (
        "Devices\n  type  state\n  gpu   unavailable\n  cpu   available fine\n\n"
    )


def drawn(patch: pytest.MonkeyPatch, *tables: Table) -> None:
    """Show tables as on a terminal of 60 columns."""
    patch.setattr(sys.stdout, "isatty", lambda: True)
    patch.setenv("COLUMNS", "60")
    show(tables)


HOSTILE = "\x1b[31mred\x07 \u202erev \ud800 \x9b2J"
SHOWN = "\\x1b[31mred\\x07 \\u202erev \\ud800 \\x9b2J"


def test_control_characters_of_names_are_escaped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(HOSTILE, ("name",), ((HOSTILE,),))
    show([table])
    assert capsys.readouterr().out.count(SHOWN) == 2
    monkeypatch.setenv("NO_COLOR", "1")
    drawn(monkeypatch, table)
    out = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert out.count(SHOWN) == 2
    assert not {*HOSTILE} & {*out} & {"\x1b", "\x07", "\u202e", "\ud800", "\x9b"}


def test_control_characters_in_errors_are_escaped() -> None:
    text = str(FlowError(f"using {HOSTILE}", found=f"a\n    {HOSTILE}", hint=HOSTILE))
    assert text.count(SHOWN) == 3
    assert text.encode()


def test_terminals_get_drawn_tables(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn(monkeypatch, TABLE)
    out = capsys.readouterr().out
    assert "unavailable" in out
    assert any(set(line.strip()) == {"─"} for line in out.splitlines())


def test_narrow_terminals_do_not_truncate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line, long = f"{Path.cwd()}/spread.py:20", "wide-matmul/grad/matmul/of/a/long/name"
    heading = Table(f"train job at {line}", (), ())
    drawn(monkeypatch, heading, Table("ops", ("name", "type", "line"), ((long, long[::-1], line),)))
    out = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
    assert out[0] == "train job at spread.py:20"
    assert max(map(len, out)) <= 60
    rows = [text.split() for text in out[out.index("ops") + 3 :] if text.strip()]
    assert rows[0][2] == "spread.py:20"
    assert "".join(row[0] for row in rows) == long
    assert "".join(row[1] for row in rows) == long[::-1]
