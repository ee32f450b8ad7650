"""`emit` adds an op to the job being traced; packages of ops use it in their functions.

These packages may import core modules up to the plugin system, but jobs are defined in a higher
layer.  Therefore, the frontend registers the implementation with `provide` when it is imported.
"""

from __future__ import annotations

from typing import Any, Protocol

from flow_core.base.errors import JobError
from flow_core.ir.graph import AttrValue


class Emit(Protocol):
    """A function that adds an op."""

    def __call__(
        self, op_type: str, *inputs: Any, name: str | None = None, **attrs: AttrValue
    ) -> Any:
        """Add an op."""


_provided: list[Emit] = []


def provide(emitter: Emit) -> None:
    """Set the implementation of `emit`; called by the frontend."""
    _provided[:] = [emitter]


def emit(op_type: str, *inputs: object, name: str | None = None, **attrs: AttrValue) -> Any:
    """Add an op to the job being traced, in the current scope.

    Args:
        op_type: type of the op.
        inputs: blobs of the same job.
        name: name of the op within the current name scope; by default, a new unique name.
        attrs: the op's attributes; lists become tuples.

    Returns:
        A blob, or a tuple of blobs if the op has several (or any number of) outputs.

    Raises:
        JobError: no job is being traced.
    """
    if not _provided:
        raise JobError.at_caller(
            f"use of {op_type}",
            found="no job function being traced",
            allowed="use inside a function decorated with @flow.global_function",
        )
    return _provided[0](op_type, *inputs, name=name, **attrs)
