"""Retired module names and words stay out of code and documentation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import processes
import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
RETIRED = dict(re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \|$", GLOSSARY.read_text(), re.MULTILINE))
WORDS = {
    r"who|whom|nobody|somebody": "name the process, rank, device, op or caller",
    r"mends?|mended": "fix, repair",
    r"house": "host, process, package",
    r"room": "memory, capacity, layer",
    r"uv add '?flow": "the folder in the checkout: install_command of flow_core.base.errors",
    r"evenly spaced cases|kind of code path": "what each chosen case has that the others lack",
}
"""Retired words, as patterns, and what to write instead."""
ABOUT_PEOPLE = (ROOT / "CODE_OF_CONDUCT.md",)
"""Pages in which the words name people."""
IDENTIFIERS = {
    "there": (r".*", "receiver, target, out, installed"),
    "of_all": (r".*", "rowwise"),
    "of_first": (r".*", "rowwise_in_first"),
    "of_elements": (r".*", "elementwise_batchable"),
    "settled_ops": (r".*", "constants_of_variables"),
    "workbench": (r".*", "DeviceCopier, copier"),
}
"""Retired names of variables and arguments: a pattern of paths, and what to write instead."""
PAGES = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("docs/plugins/*.md")])


@cache
def tracked() -> list[Path]:
    """Source files and pages of the repository."""
    patterns = (".ci/run", "*.c", "*.h", "*.md", "*.py", "*.toml", "*.yml")
    done = processes.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, check=True)
    return [ROOT / name for name in done.stdout.split("\0") if name]


def test_there_are_retired_names() -> None:
    assert len(RETIRED) > 100


def test_modules_of_terms_exist() -> None:
    rows = re.findall(
        r"^\|.*\| (`[a-z_.]+`(?:, `[a-z_.]+`)*) \|$", GLOSSARY.read_text(), re.MULTILINE
    )
    named = {name for row in rows for name in re.findall(r"[a-z_.]+", row)} - set(RETIRED.values())
    assert len(named) > 50
    assert [name for name in sorted(named) if not _is_module(name)] == []


def test_the_current_names_exist() -> None:
    assert [name for name in RETIRED.values() if not _is_module(name)] == []


def test_retired_modules_are_not_named() -> None:
    current = "|".join(map(re.escape, sorted(RETIRED.values(), key=len, reverse=True)))
    names = "|".join(map(re.escape, sorted(RETIRED, key=len, reverse=True)))
    pattern = re.compile(
        rf"(?<![\w.])(?!(?:{current})(?!\w))({names})(?=\.[a-z_]+ import\b| import\b|:|`|$)"
    )
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[1]}"
        for path in tracked()
        if path != GLOSSARY
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for match in pattern.finditer(line)
        if not _is_package(match[1])
    ]
    assert found == []


def _is_module(name: str) -> bool:
    """Whether a dotted name is a module or package, of flow_core if no package is given."""
    path = Path(*name.split("."))
    places = (path, "flow_core" / path)
    return any(
        [*ROOT.glob(f"packages/*/src/{place}.py"), *ROOT.glob(f"packages/*/src/{place}/")]
        for place in places
    )


def _is_package(name: str) -> bool:
    """Whether a retired module's name is that of a folder now."""
    return any(ROOT.glob(f"packages/*/src/{Path(*name.split('.'))}/__init__.py"))


def test_retired_words_are_not_used() -> None:
    pattern = re.compile(rf"\b({'|'.join(WORDS)})\b", re.IGNORECASE)
    advice = {re.compile(words, re.IGNORECASE): text for words, text in WORDS.items()}
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[1]} "
        f"({next(text for words, text in advice.items() if words.fullmatch(match[1]))})"
        for path in tracked()
        if path not in (Path(__file__), *ABOUT_PEOPLE)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for match in pattern.finditer(line)
    ]
    assert found == []


def identifiers(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines and names of variables, attributes, arguments, functions and classes."""
    for node in ast.walk(ast.parse(source)):
        names = (getattr(node, field, None) for field in ("id", "attr", "arg", "name", "asname"))
        line = getattr(node, "lineno", 0)
        yield from ((line, name) for name in names if isinstance(name, str))


@pytest.mark.parametrize("retired", IDENTIFIERS)
def test_retired_identifiers_are_not_used(retired: str) -> None:
    pattern, instead = IDENTIFIERS[retired]
    python = (path for path in tracked() if path.suffix == ".py")
    files = [path for path in python if re.fullmatch(pattern, str(path.relative_to(ROOT)))]
    assert len(files) > 600
    texts = {path.relative_to(ROOT): path.read_text() for path in files}
    found = [
        f"{path}:{number}: {name} ({instead})"
        for path, text in texts.items()
        if re.search(rf"(?<![a-z]){retired}(?![a-z])", text, re.IGNORECASE)  # parsing takes longer
        for number, name in identifiers(text)
        if name.strip("_").lower() == retired
    ]
    assert found == []


@pytest.mark.parametrize(
    "code", ["x = there", "self.there", "def f(there): pass", "f(there=1)", "class There: pass"]
)
def test_identifiers_are_found(code: str) -> None:
    assert "there" in {name.lower() for _, name in identifiers(code)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_links_the_glossary(page: Path) -> None:
    assert page == GLOSSARY or "glossary.md" in page.read_text()
