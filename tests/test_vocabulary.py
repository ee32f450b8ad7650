"""Names that were replaced by the field's standard terms do not come back."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GLOSSARY = ROOT / "docs" / "glossary.md"
RETIRED = dict(re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \|$", GLOSSARY.read_text(), re.MULTILINE))
PAGES = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("docs/plugins/*.md")])


def tracked() -> list[Path]:
    """Source files and pages of the repository, without the glossary and the changelogs."""
    patterns = ("*.py", "*.md", "*.toml", "*.yml")
    command = ["git", "-C", str(ROOT), "ls-files", "-z", *patterns]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in done.stdout.split("\0") if name]
    return [path for path in paths if path != GLOSSARY and path.name != "CHANGELOG.md"]


def test_there_are_retired_names() -> None:
    assert len(RETIRED) > 100


@pytest.mark.parametrize("retired", RETIRED)
def test_the_current_name_exists(retired: str) -> None:
    path = Path(*RETIRED[retired].split("."))
    found = [*ROOT.glob(f"packages/*/src/{path}.py"), *ROOT.glob(f"packages/*/src/{path}/")]
    assert found, f"{RETIRED[retired]} is not a module"


def test_retired_modules_are_not_named() -> None:
    current = "|".join(map(re.escape, sorted(RETIRED.values(), key=len, reverse=True)))
    names = "|".join(map(re.escape, sorted(RETIRED, key=len, reverse=True)))
    pattern = re.compile(
        rf"(?<![\w.])(?!(?:{current})(?!\w))({names})(?=\.[a-z_]+ import\b| import\b|:|`|$)"
    )
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[1]}"
        for path in tracked()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for match in pattern.finditer(line)
        if not _is_package(match[1])
    ]
    assert found == []


def _is_package(name: str) -> bool:
    """Whether a retired module's name is that of a folder now."""
    return any(ROOT.glob(f"packages/*/src/{Path(*name.split('.'))}/__init__.py"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_links_the_glossary(page: Path) -> None:
    assert page == GLOSSARY or "glossary.md" in page.read_text()
