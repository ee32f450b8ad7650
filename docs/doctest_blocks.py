"""Griffe extension: doctests in docstrings become code blocks, wherever they stand."""

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^>>> .*\n(?:.+\n?)*", re.MULTILINE)


def fenced(text: str) -> str:
    """A docstring's text with fences around its doctests."""
    return DOCTEST.sub(lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", text).rstrip()


class DoctestBlocks(griffe.Extension):
    """Changes the docstring of every object before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Fences the doctests of one object; a colon before an indented block stays one."""
        if obj.docstring:
            text = re.sub(r"::$", ":", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = fenced(text)
