"""Griffe extension that turns doctests in docstrings into code blocks."""

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^>>> .*\n(?:.+\n?)*", re.MULTILINE)


def fenced(text: str) -> str:
    """Return a docstring's text with fences around its doctests."""
    return DOCTEST.sub(lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", text).rstrip()


class DoctestBlocks(griffe.Extension):
    """Rewrites the docstring of every object before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Fence the doctests of one object; keep one colon before an indented block."""
        if obj.docstring:
            text = re.sub(r"::$", ":", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = fenced(text)
