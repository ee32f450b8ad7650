"""Tables on terminals and in pipes."""

from __future__ import annotations

import sys

import pytest

from flow_core.cli.render import show
from flow_core.observe.tables import Table

TABLE = Table("Devices", ("type", "state"), (("gpu", "unavailable"), ("cpu", "available\nfine")))


def test_plain_in_pipes(capsys: pytest.CaptureFixture[str]) -> None:
    show([TABLE])
    assert capsys.readouterr().out == (
        "Devices\n  type  state\n  gpu   unavailable\n  cpu   available fine\n\n"
    )


def test_drawn_on_terminals(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show([TABLE])
    out = capsys.readouterr().out
    assert "unavailable" in out
    assert any(line.startswith("┃") for line in out.splitlines())
