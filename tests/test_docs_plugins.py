"""Packages that the documentation builds are the maintained ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flow_core.cli.new import create_package
from flow_core.plugins.host import load_plugins

ROOT = Path(__file__).parent.parent
FILE = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def test_the_guide_shows_what_flow_new_creates(tmp_path: Path) -> None:
    files = create_package("backend", "flow-toy", tmp_path, load_plugins())
    created = [path.read_text() for path in files]
    page = (ROOT / "docs" / "plugins" / "backend.md").read_text()
    excerpts = re.findall(r"^```(?:py|toml)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    *shown, comm_kit = excerpts
    assert "CommKit" in comm_kit
    assert len(shown) > 10
    for excerpt in shown:
        assert any(excerpt in text for text in created), excerpt


@pytest.mark.parametrize(("page", "package"), [("architecture.md", "flow-softcap")])
def test_the_page_has_the_files_of_the_example(page: str, package: str) -> None:
    shown = dict(FILE.findall((ROOT / "docs" / page).read_text()))
    folder = ROOT / "examples" / "plugins" / package
    files = {
        str(p.relative_to(folder)) for p in folder.rglob("*.[pt][yo]*") if "cache" not in str(p)
    }
    assert files == set(shown)
    for name, text in shown.items():
        assert (folder / name).read_text() == text, name
