"""Docstrings of public functions and classes, completed by what their modules describe once.

A docstring describes what is particular to a function.  Descriptions of other parameters, and the
sections Returns and Raises if it lacks them, come from the docstring of the module, then from
those of the packages around the module.  In the source, a section of one line may follow its title,
and doctests at the end need no title and no import of `run`.  Wheels contain the completed
docstrings (hatch_build.py).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from inspect import CO_VARARGS, CO_VARKEYWORDS
from typing import Any, NamedTuple

_TITLES = ("Args", "Attributes", "Returns", "Yields", "Raises", "Note", "Example")
_PART = re.compile(rf"\n\n+(?:({'|'.join(_TITLES)}):(?: |\n    )|(?=>>> ))")
_ITEM = re.compile(r"^([\w*`][^:\n]*): ", re.MULTILINE)
_HELPER = re.compile(r"(?<![\w.])(rates|run|weights)\(")
"""A call of a function of `flow_core.api.examples`."""


class Shared(NamedTuple):
    """Descriptions of parameters by name, and texts of sections by title."""

    parameters: dict[str, str]
    sections: dict[str, str]


def shared(docs: Iterable[str | None]) -> Shared:
    r"""Return what the docstrings of packages and of a module in them describe for its functions.

    >>> shared(["Sums.\n\nArgs:\n    x, y: numbers.\n\nReturns: A blob."])
    Shared(parameters={'x': 'numbers.', 'y': 'numbers.'}, sections={'Returns': 'A blob.'})
    """
    found = Shared({}, {})
    for doc in docs:
        sections = _split(doc or "")[1]
        for names, text in _items(sections.pop("Args", "")):
            found.parameters.update(dict.fromkeys(names.split(", "), text))
        found.sections.update((t, sections[t]) for t in ("Returns", "Raises") if t in sections)
    return found


def completed(doc: str, parameters: Iterable[str], common: Shared, *, result: bool) -> str:
    r"""Return a docstring with all of its parts.

    Args:
        doc: the docstring in the source, without indentation.
        parameters: names of the parameters, in order.
        common: what the modules describe.
        result: whether the function returns a value.

    >>> common = shared(["Functions of numbers.\n\nArgs:\n    x: a number."])
    >>> print(completed("Return x + y.\n\nReturns: y.", ["x", "y"], common, result=True))
    Return x + y.
    <BLANKLINE>
    Args:
        x: a number.
    <BLANKLINE>
    Returns:
        y.
    """
    text, parts = _split(doc)
    described = common.parameters
    title = "Attributes" if "Attributes" in parts and "Args" not in parts else "Args"
    if title in parts:
        own = dict(_items(parts[title]))
        places = {name.strip("*`"): names for names in own for name in names.split(", ")}
        items = {}
        for name in parameters:
            if name in places:
                items[places[name]] = own[places[name]]
            elif name in described:
                items[name] = described[name]
        items |= own
    else:
        items = {name: described[name] for name in parameters if name in described}
    parts[title] = "\n".join([f"{names}: {value}" for names, value in items.items()])
    for title, section in common.sections.items():
        if title not in parts and (title != "Returns" or (result and "Yields" not in parts)):
            parts[title] = section
    example = parts.get("Example", "")
    if (helper := _HELPER.search(example)) and "api.examples" not in example:
        parts["Example"] = f">>> from flow_core.api.examples import {helper[1]}\n{example}"
    for title in _TITLES:
        if body := parts.get(title):
            body = body.replace("\n", "\n    ").replace("\n    \n", "\n\n")
            text += f"\n\n{title}:\n    {body}"
    return text


def _split(doc: str) -> tuple[str, dict[str, str]]:
    """Return the text before the first section, and the sections without indentation."""
    text, *found = _PART.split(doc.rstrip())
    parts: dict[str, str] = {}
    for title, body in zip(found[::2], found[1::2], strict=True):
        if title:
            parts[title] = body.replace("\n    ", "\n")
        else:
            parts["Example"] = f"{parts['Example']}\n\n{body}" if "Example" in parts else body
    return text, parts


def _items(section: str) -> Iterator[tuple[str, str]]:
    """Yield the names that a section describes, with their descriptions."""
    found = _ITEM.split(section)
    for names, text in zip(found[1::2], found[2::2], strict=True):
        yield names, text.rstrip()


# ------------------------------------------------------------------------------ loaded modules


def complete(found: Any) -> None:
    """Complete the docstring of a function or class; none is added where Python keeps none."""
    is_class = isinstance(found, type)
    doc = vars(found).get("__doc__") if is_class else found.__doc__
    common = _shared_by(found.__module__)
    if doc is None or not common.parameters:
        return
    if doc.endswith("\n    "):  # before Python 3.13
        doc = doc.replace("\n    ", "\n")
    if not is_class:
        result = found.__annotations__.get("return") not in (None, "None", "NoReturn")
        found.__doc__ = completed(doc, _parameters(found), common, result=result)
    elif getattr(vars(found).get("__init__"), "__doc__", None) is None:
        found.__doc__ = completed(doc, _parameters(found.__init__)[1:], common, result=False)


@cache
def _shared_by(module: str) -> Shared:
    parts = module.split(".")
    names = (".".join(parts[: n + 1]) for n in range(1, len(parts)))
    return shared(sys.modules[name].__doc__ for name in names)


def _parameters(function: Any) -> tuple[str, ...]:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    if code is None:
        return ()
    flags = code.co_flags & (CO_VARARGS | CO_VARKEYWORDS)
    count = code.co_argcount + code.co_kwonlyargcount + flags.bit_count()
    return tuple(code.co_varnames[:count])
