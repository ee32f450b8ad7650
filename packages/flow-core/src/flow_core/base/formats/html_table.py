"""Tables of texts as HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from flow_core.base.errors import visible

STYLE = "text-align:left;padding:1px 10px 1px 0;vertical-align:top;white-space:pre-wrap"


def html_table(
    title: str, rows: Iterable[Sequence[object]], columns: Sequence[str] = (), note: str = ""
) -> str:
    """Return a titled table as HTML; all texts are escaped.

    >>> html_table("<job>", [("steps", 3)]).startswith("<div><b>&lt;job&gt;</b><table>")
    True
    """
    head = f"<tr>{''.join(_cell('th', name) for name in columns)}</tr>" if columns else ""
    body = "".join(f"<tr>{''.join(_cell('td', cell) for cell in row)}</tr>" for row in rows)
    below = f"<small>{_text(note)}</small>" if note else ""
    return f"<div><b>{_text(title)}</b><table>{head}{body}</table>{below}</div>"


def _cell(tag: str, value: object) -> str:
    return f'<{tag} style="{STYLE}">{_text(value)}</{tag}>'


def _text(value: object) -> str:
    return escape(visible(str(value)))
