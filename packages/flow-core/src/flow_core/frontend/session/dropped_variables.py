"""Dropping single variables of a session, such as those of a layer whose width changes."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from flow_core.base.errors import VariableError, nearest
from flow_core.frontend.session.session import Session


def drop(session: Session, patterns: Iterable[str]) -> list[str]:
    """Drop the variables that match patterns, and the optimizer states of these variables.

    Jobs that use one of them are traced again at their next call.  Raises `VariableError` if no
    variable matches a pattern.
    """
    with session.quiesced():
        names: set[str] = set()
        for pattern in patterns:
            names.update(_matching(session, pattern))
        names |= {state for state in session.declared if _belongs(session, state, names)}
        for job in session.jobs:
            if any(job.device_of(name) is not None for name in names):
                job.forget()
        session.forget(names)
    return sorted(names)


def _matching(session: Session, pattern: str) -> list[str]:
    found = [name for name in session.declared if fnmatchcase(name, pattern)]
    if not found:
        raise VariableError.at_caller(
            f"dropping variable {pattern!r}",
            found="no such variable",
            allowed="names of flow.get_all_variables(), or patterns such as 'hidden-*'",
            hint=nearest(pattern, session.declared) or None,
        )
    return found


def _belongs(session: Session, state: str, names: Iterable[str]) -> bool:
    """Return whether a variable is the state that an optimizer keeps for one of some variables."""
    trained = session.declared[state].attrs["trainable"]
    return not trained and any(state.startswith(f"{name}-") for name in names)
