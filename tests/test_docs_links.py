"""Files and modules named by the documentation exist."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
import snapshots

ROOT = Path(__file__).parent.parent
PAGES = [
    path
    for pattern in ("*.md", "docs/**/*.md", "packages/*/*.md", "examples/*.md")
    for path in sorted(ROOT.glob(pattern))
]
GENERATED = ("reference/", "../reference/")  # the strict build of the site checks these


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_linked_files_are_there(page: Path) -> None:
    """Pages of the site link only to other files of the site, which its strict build requires."""
    site = ROOT / "docs"
    within = site if page.is_relative_to(site) else ROOT
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)\s#]+)", text)
    local = [link for link in links if not link.startswith(("http", *GENERATED))]
    files = {link: (page.parent / link).resolve() for link in local}
    missing = [link for link, file in files.items() if not file.exists()]
    outside = [link for link, file in files.items() if not file.is_relative_to(within)]
    assert (missing, outside) == ([], [])


def test_the_layers_are_those_of_the_contract() -> None:
    """The table of architecture.md names all modules of the core, layer by layer."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = (c["layers"] for c in contracts["contracts"] if c["id"] == "layers")
    rank = {
        name: floor
        for floor, layer in enumerate(reversed(layers))
        for name in re.findall(r"\w+", layer)
    }
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page[page.index("| layer |") :].partition("\n\n")[0]
    rows = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in table.splitlines() if "`" in row]
    assert sorted(name for row in rows for name in row) == sorted(rank)
    floors = [{rank[name] for name in row} for row in rows]
    assert all(max(low) <= min(high) for low, high in pairwise(floors))


def test_the_files_of_the_task_table_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page[page.index("| task |") :].partition("\n\n")[0]
    bases = (ROOT, *(ROOT / "packages" / f"flow-{n}/src/flow_{n}" for n in ("core", "onednn")))
    named = re.findall(r"`([\w./-]+/\w+(?:\.(?:py|h|c)|(?=`))|passes)`", table)
    assert len(named) > 25
    assert [path for path in named if not any((base / path).exists() for base in bases)] == []


@pytest.mark.parametrize("path", ["docs/adr/index.md", "mkdocs.yml"])
def test_every_decision_is_listed(path: str) -> None:
    snapshots.check(path)


@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/adr/[0-9]*.md")), ids=lambda p: p.stem)
def test_decisions_have_all_sections(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 40
    sections = re.findall(r"^## (.*)$", text, re.MULTILINE)
    template = (path.parent / "0000-template.md").read_text()
    assert sections == re.findall(r"^## (.*)$", template, re.MULTILINE)


def test_the_readme_shows_what_the_example_prints() -> None:
    example = (ROOT / "examples" / "digits.py").read_text()
    readme = (ROOT / "README.md").read_text()
    epochs = re.search(r"^EPOCHS = (\d+)", example, re.MULTILINE)
    printed = re.search(r"^\d+ digits, (\d+) epochs, \d+ steps$", readme, re.MULTILINE)
    accuracy = re.search(r"^accuracy on 360 other digits: ([\d.]+) %$", readme, re.MULTILINE)
    assert epochs is not None
    assert printed is not None
    assert accuracy is not None
    assert epochs[1] == printed[1]
    assert float(accuracy[1]) > 97
    assert (ROOT / "docs" / "images" / "digits_loss.png").stat().st_size < 60_000


GALLERY = sorted(path.stem for path in ROOT.glob("examples/*.py"))


def test_the_gallery_has_a_picture_of_every_example() -> None:
    page, readme = ((ROOT / p).read_text() for p in ("docs/gallery.md", "examples/README.md"))
    pictures = re.findall(r"^!\[.*\]\((images/.*\.png)\)\n\n`examples/(\w+)\.py`", page, re.M)
    assert sorted(name for _, name in pictures) == GALLERY
    assert len(GALLERY) == 11
    for picture, name in pictures:
        assert (ROOT / "docs" / picture).stat().st_size < 60_000
        drawn = re.search(r'"(\w+\.png)"', (ROOT / "examples" / f"{name}.py").read_text())
        assert drawn is not None
        assert drawn[1] == Path(picture).name
        assert f"[{name}.py]" in readme
