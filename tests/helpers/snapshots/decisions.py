"""The lists of decisions: the rows of their index, and their pages in the site's navigation."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parents[3] / "docs" / "adr"
ROWS = re.compile(r"^(?:\| \[\d+\].*\n)+", re.M)
PAGES = re.compile(r"^(?:      - adr/\d.*\n)+", re.M)


def index(text: str) -> str:
    """Return the index with a row per decision, whose title is the heading of its page."""
    rows = []
    for path in sorted(FOLDER.glob("[0-9]*.md"))[1:]:  # the first is the template
        number, title = path.name[:4], path.read_text().partition("\n")[0]
        heading = f"# {number}: "
        assert title.startswith(heading), f"{path.name} must start with {heading!r}"
        rows.append(f"| [{number}]({path.name}) | {title.removeprefix(heading)} |\n")
    return ROWS.sub(lambda _: "".join(rows), text)


def navigation(text: str) -> str:
    """Return mkdocs.yml with a line per decision."""
    lines = [f"      - adr/{path.name}\n" for path in sorted(FOLDER.glob("[0-9]*.md"))]
    return PAGES.sub(lambda _: "".join(lines), text)
