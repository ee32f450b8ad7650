"""Packages that the documentation builds are the maintained ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILE = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


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
