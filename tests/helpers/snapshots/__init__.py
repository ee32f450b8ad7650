"""Generated texts in committed files: tests compare them, ``nox -s snapshots`` writes them.

A table that needs a decision, such as the numpy function that an op must equal, is not generated:
its test names the file and shows a row.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from snapshots import counterparts, decisions, pages, surface

ROOT = Path(__file__).parents[3]
COMMAND = "nox -s snapshots"
LINES = 40
"""The number of lines of a difference that a failure shows."""


@dataclass(frozen=True)
class Snapshot:
    """A generated text.

    Attributes:
        path: the file, relative to the root of the repository.
        text: a function from the text of the file to the text that it should have.
        note: what to consider before a difference is accepted.
    """

    path: str
    text: Callable[[str], str]
    note: str = "review the difference"


ALL = (
    Snapshot(
        "packages/flow-core/tests/plugins/public_surface.txt",
        surface.text,
        "docs/plugins/versions.md states whether the version of the plugin API changes",
    ),
    Snapshot("docs/adr/index.md", decisions.index),
    Snapshot("mkdocs.yml", decisions.navigation),
    Snapshot("docs/howto/functions.md", lambda _: counterparts.page()),
    *(Snapshot(path, partial(pages.text, path)) for path in pages.PATHS),
)


def difference(snapshot: Snapshot, before: str, after: str) -> str:
    """Return what a failure shows, or an empty string if the texts are equal."""
    lines = list(
        difflib.unified_diff(
            before.splitlines(), after.splitlines(), "committed", "generated", n=2, lineterm=""
        )
    )
    if not lines:
        return ""
    more = [f"... {len(lines) - LINES} more lines"] if len(lines) > LINES else []
    title = f"{snapshot.path} differs from the sources: {snapshot.note}"
    return "\n".join((title, *lines[:LINES], *more, f"run: {COMMAND} -- {snapshot.path}"))


def check(path: str) -> None:
    """Fail if a file differs from its generated text."""
    (snapshot,) = (s for s in ALL if s.path == path)
    before = (ROOT / path).read_text()
    found = difference(snapshot, before, snapshot.text(before))
    assert not found, found
