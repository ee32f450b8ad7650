"""Signatures of functions and classes as text."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

WIDTH = 88


def signature(name: str, function: Any, *, bound: bool = False) -> str:
    """Return a call's form, with one parameter per line if it is long.

    Args:
        name: the public name.
        function: the function or class.
        bound: whether the first parameter, ``self`` or ``cls``, is left out.
    """
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):
        return f"{name}(...)"
    shown = list(found.parameters.values())[bound:]
    parameters = list(_parameters(shown))
    result = found.return_annotation
    returns = "" if result is inspect.Signature.empty else f" -> {_annotation(result)}"
    line = f"{name}({', '.join(parameters)}){returns}"
    if len(line) <= WIDTH:
        return line
    body = "".join(f"    {parameter},\n" for parameter in parameters)
    return f"{name}(\n{body}){returns}"


def _parameters(parameters: list[inspect.Parameter]) -> Iterator[str]:
    starred = False
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            starred = True
        elif parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        yield _parameter(parameter)


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = stars + parameter.name
    typed = parameter.annotation is not parameter.empty
    if typed:
        text += f": {_annotation(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        equals = " = " if typed else "="
        text += f"{equals}{_default(parameter.default)}"
    return text


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _default(value: Any) -> str:
    return value.__qualname__ if callable(value) and hasattr(value, "__qualname__") else repr(value)
