"""What computes the ops of a file of rules."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from flow_rules.errors import RulesError
from flow_rules.layouts import Array, Place

Attributes = Mapping[str, Any]


class Evaluator(Protocol):
    """Computes ops on the whole of their inputs and on parts; a module may be one.

    A ``localize`` that returns the attributes unchanged is right for all ops whose attributes say
    nothing about sizes or places.
    """

    def evaluate(
        self, op: str, attributes: Attributes, inputs: Sequence[Array]
    ) -> Sequence[Array] | None:
        """Return the outputs of an op, then the new values of the inputs that it overwrites.

        Return None if nothing computes the op.  Raise any `ArithmeticError`, `AttributeError`,
        `LookupError`, `RuntimeError`, `TypeError` or `ValueError` for inputs that the op refuses.
        """

    def localize(self, op: str, attributes: Attributes, place: Place) -> Attributes:
        """Return the attributes with which a device computes its parts of an op."""


def load_evaluator(name: str) -> Evaluator:
    """Import an evaluator by the name of its module.

    Raises `RulesError` if there is no such module, or it lacks a function.
    """
    try:
        module: Any = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        hint = ": pip install 'flow-rules[flow]'" if name.startswith("flow_core") else ""
        found = error if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise RulesError(f"importing the evaluator {name!r}: {found}{hint}") from error
    missing = [key for key in ("evaluate", "localize") if not callable(getattr(module, key, None))]
    if missing:
        raise RulesError(
            f"importing the evaluator {name!r}: the module has no function {missing[0]!r}; see "
            "flow_rules.Evaluator"
        )
    evaluator: Evaluator = module
    return evaluator
