"""The error about a call that failed, if its arguments fit neither signature nor annotations."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flow_core.api.calls.annotated import accepts, as_text, evaluated
from flow_core.api.calls.foreign_names import advice
from flow_core.base.errors import CallError, called_by_flow, raised_by_flow, shown

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def explanation(
    public: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    error: Exception,
) -> CallError | None:
    """Return the error about a call of ``public`` that raised ``error``; None to keep ``error``.

    Calls by flow's own functions are not explained; the program's call is.  Errors that the
    program's own functions raise are kept.
    """
    if called_by_flow(sys._getframe(2)) or not raised_by_flow(error):
        return None
    signature = inspect.signature(function)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return _misfit(public, signature, args, kwargs)
    return _mistyped(public, function, bound)


def _misfit(
    public: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> CallError:
    """Return the error about unknown, repeated, missing or too many arguments."""
    parameters = _shown(signature)
    hidden = len(signature.parameters) - len(parameters)
    unknown = _unknown(signature.parameters, kwargs)
    free = [p for p in parameters if p not in kwargs]
    hints = [advice(name, free) or _nearest(name, parameters) for name in unknown]
    known = any(p.kind not in _VARIADIC for p in parameters.values())
    return CallError.at_caller(
        f"{public}({', '.join(kwargs)})" if unknown else public,
        found="; ".join(_faults(signature, args, kwargs, hidden)),
        allowed=f"{public}({_listed(parameters)})" if known else "no arguments",
        hint="; ".join(filter(None, hints)) or None,
    )


def _unknown(parameters: Mapping[str, inspect.Parameter], kwargs: dict[str, Any]) -> list[str]:
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return []
    named = {name for name, p in parameters.items() if p.kind is not p.POSITIONAL_ONLY}
    return [name for name in kwargs if name not in named]


def _faults(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any], hidden: int
) -> Iterator[str]:
    parameters = list(signature.parameters.values())
    unknown = _unknown(signature.parameters, kwargs)
    if unknown:
        yield f"no parameter named {' or '.join(unknown)}"
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    filled = [p.name for p in places[: len(args)]]
    if twice := [name for name in filled if name in kwargs]:
        yield f"{', '.join(twice)} given by position and by name"
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if len(args) > len(places) and not variadic:
        yield f"{len(args) - hidden} positional arguments, more than {len(places) - hidden}"
    required = [p for p in parameters if p.default is p.empty and p.kind not in _VARIADIC]
    if missing := [p.name for p in required if p.name not in filled and p.name not in kwargs]:
        yield f"no argument for {', '.join(missing)}"


def _shown(signature: inspect.Signature) -> dict[str, inspect.Parameter]:
    """Return the parameters without ``self`` or ``cls``."""
    parameters = dict(signature.parameters)
    first = next(iter(parameters), None)
    if first in ("self", "cls"):
        del parameters[first]
    return parameters


def _listed(parameters: Mapping[str, inspect.Parameter]) -> str:
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in parameters.values()]
    return ", ".join(str(p) if p.default is p.empty else _with_default(p) for p in plain)


def _with_default(parameter: inspect.Parameter) -> str:
    name = getattr(parameter.default, "__qualname__", None)
    default = name or shown(parameter.default, 30).replace("oneflow.", "flow.")
    return f"{parameter.name}={default}"


def _nearest(name: str, parameters: Mapping[str, inspect.Parameter]) -> str | None:
    found = difflib.get_close_matches(name, parameters, 1)
    return f"did you mean {found[0]}?" if found else None


def _mistyped(
    public: str, function: Callable[..., Any], bound: inspect.BoundArguments
) -> CallError | None:
    """Return the error about the first argument that does not fit its annotation."""
    for name, value in bound.arguments.items():
        parameter = bound.signature.parameters[name]
        if parameter.kind in _VARIADIC or value is parameter.default:
            continue
        kind = evaluated(parameter.annotation, function)
        if not accepts(kind, value):
            described = _described(function, name)
            return CallError.at_caller(
                public,
                found=f"{name}={shown(value)} ({type(value).__name__})",
                allowed=f"{as_text(kind)}{': ' if described else ''}{described}",
            )
    return None


def _described(function: Callable[..., Any], name: str) -> str:
    """Return what the section Args of a docstring says about a parameter."""
    doc = inspect.cleandoc(function.__doc__ or "")
    entry = rf"^    (?:\w+, )*{name}(?:, \w+)*: (.*(?:\n {{8}}.*)*)"
    found = re.search(entry, doc.partition("Args:\n")[2], re.M)
    return " ".join(found[1].split()).replace("``", "").rstrip(".") if found else ""
