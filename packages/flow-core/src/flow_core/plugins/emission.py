"""How packages of ops offer functions: `emit` adds an op to the job under definition.

The pieces know the core up to the plugin system; jobs are defined above it.  So this module is
told by the frontend, when that is imported, who adds ops.
"""

from __future__ import annotations

from typing import Any, Protocol

from flow_core.base.errors import JobError, user_line
from flow_core.ir.graph import AttrValue


class Emit(Protocol):
    """What adds ops."""

    def __call__(
        self, op_type: str, *inputs: Any, name: str | None = None, **attrs: AttrValue
    ) -> Any:
        """Adds an op."""


_provided: list[Emit] = []


def provide(emitter: Emit) -> None:
    """Says who adds ops; the frontend does."""
    _provided[:] = [emitter]


def emit(op_type: str, *inputs: object, name: str | None = None, **attrs: AttrValue) -> Any:
    """Adds an op to the job under definition, at the current scope.

    Args:
        op_type: type of the op.
        inputs: blobs of the same job.
        name: name of the op below the current name scope; a unique one by default.
        attrs: the op's attributes; lists become tuples.

    Returns:
        A blob, or a tuple of them when the op has several (or any number of) outputs.

    Raises:
        JobError: there is no job under definition.
    """
    if not _provided:
        raise JobError(
            f"use of {op_type}",
            at=user_line(2),
            found="no job function under definition",
            allowed="inside a function decorated with @flow.global_function",
        )
    return _provided[0](op_type, *inputs, name=name, **attrs)
