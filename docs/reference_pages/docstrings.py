"""Google-style docstrings as Markdown."""

from __future__ import annotations

import inspect
import re
import textwrap
from dataclasses import dataclass

ITEM = re.compile(r"^(?P<name>[*`]*\w[^:]*): ?(?P<text>.*)$")
DOCTEST = re.compile(r"^( *)>>> .*\n(?:.+\n?)*", re.MULTILINE)
TITLES = {
    "Args": "Arguments",
    "Attributes": "Attributes",
    "Returns": "Returns",
    "Yields": "Yields",
    "Raises": "Errors",
    "Note": "Note",
    "Example": "Example",
    "Examples": "Example",
}
"""The titles of the sections, in the order of a page."""
LISTS = ("Args", "Attributes", "Raises")
HEADING = re.compile(rf"^({'|'.join(TITLES)}):(?: (.*))?$")


@dataclass(frozen=True, slots=True)
class Docstring:
    """The text of a docstring up to its first section, and the sections."""

    text: str
    sections: dict[str, str]

    def items(self, section: str) -> list[tuple[str, str]]:
        """Return the names that a section describes, with their descriptions."""
        found: list[tuple[str, str]] = []
        for line in self.sections.get(section, "").splitlines():
            start = ITEM.match(line)
            if start:
                found.append((start["name"], start["text"]))
            elif found:
                name, text = found[-1]
                found[-1] = (name, f"{text}\n{line.strip()}")
        return found


def parse(text: str | None) -> Docstring:
    """Return the parts of a docstring; empty if there is none."""
    parts: dict[str, list[str]] = {"": []}
    current = ""
    for line in inspect.cleandoc(text or "").splitlines():
        heading = HEADING.match(line)
        if heading:
            current = heading[1]
            parts.setdefault(current, []).append(f"    {heading[2] or ''}".rstrip())
        elif current and line and not line.startswith(" "):
            current = ""  # the section has ended
        if not heading:
            parts.setdefault(current, []).append(line)
    texts = {name: textwrap.dedent("\n".join(lines)).strip() for name, lines in parts.items()}
    return Docstring(texts.pop(""), texts)


def fenced(text: str) -> str:
    """Return a text with fences around its doctests."""
    return DOCTEST.sub(
        lambda match: f"```pycon\n{textwrap.dedent(match[0]).rstrip()}\n```\n", text + "\n"
    ).rstrip()


def sections(doc: Docstring, level: int) -> list[str]:
    """Return the sections of a docstring as Markdown, under headings of a level."""
    lines: list[str] = []
    for name in filter(doc.sections.__contains__, TITLES):
        items = doc.items(name) if name in LISTS else []
        body = table(items) if items else [fenced(doc.sections[name])]
        lines += [f"{'#' * level} {TITLES[name]}", "", *body, ""]
    return lines


def table(rows: list[tuple[str, str]]) -> list[str]:
    """Return a table with a row for each name and its description."""
    shown = [(name.strip("`"), " ".join(text.split())) for name, text in rows]
    body = [f"| `{name}` | {cell(text)} |" for name, text in shown]
    return ["| name | description |", "|---|---|", *body]


def cell(text: str) -> str:
    """Return a text in the form that a cell of a Markdown table requires."""
    return text.replace("|", "\\|")


def summary(text: str | None) -> str:
    """Return the first paragraph of a docstring as one line."""
    return " ".join(parse(text).text.partition("\n\n")[0].split())
