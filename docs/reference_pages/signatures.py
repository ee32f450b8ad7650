"""Signatures of functions and classes as text."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

WIDTH = 88
LONG = 24
"""The length of a default's text from which the name of a constant replaces it."""


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
    globals_ = getattr(inspect.unwrap(function), "__globals__", {})
    constants = {id(value): key for key, value in globals_.items() if key.isupper()}
    parameters = list(_parameters(shown, constants))
    result = found.return_annotation
    returns = "" if result is inspect.Signature.empty else f" -> {_annotation(result)}"
    line = f"{name}({', '.join(parameters)}){returns}"
    if len(line) <= WIDTH:
        return line
    body = "".join(f"    {parameter},\n" for parameter in parameters)
    return f"{name}(\n{body}){returns}"


def _parameters(parameters: list[inspect.Parameter], constants: Mapping[int, str]) -> Iterator[str]:
    starred = False
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            starred = True
        elif parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        yield _parameter(parameter, constants)


def _parameter(parameter: inspect.Parameter, constants: Mapping[int, str]) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = stars + parameter.name
    typed = parameter.annotation is not parameter.empty
    if typed:
        text += f": {_annotation(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        equals = " = " if typed else "="
        text += f"{equals}{_default(parameter.default, constants)}"
    return text


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _default(value: Any, constants: Mapping[int, str]) -> str:
    """Return a default's name or, if its text is long, that of the constant that holds it."""
    if callable(value) and hasattr(value, "__qualname__"):
        return str(value.__qualname__)
    text = repr(value)
    return constants.get(id(value), text) if len(text) > LONG else text
