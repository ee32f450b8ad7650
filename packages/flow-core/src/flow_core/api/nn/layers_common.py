"""Helpers that the layers share: argument checks, and creation of variables."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from flow_core.api.arguments import checked_axis, checker
from flow_core.api.session.distribute import broadcast
from flow_core.base.dtypes import DType
from flow_core.frontend.config.scope import current_scope
from flow_core.frontend.session.variables import get_variable
from flow_core.frontend.trace.blob import Blob, BlobDef, checked_blob
from flow_core.frontend.trace.job_build import current_job
from flow_core.ir.initializers import Initializer

BROADCAST = broadcast()
"""Default distribution of a layer's variables: no request, left to SBP selection."""


check = checker("flow.layers.")


class DefaultName(str):
    """The name of layers to which the program gives none; the second in a job is "Dense_1"."""

    __slots__ = ()


def layer_name(name: str) -> str:
    """Return the name of a layer: as given, or the default with the number of earlier ones."""
    if not isinstance(name, DefaultName):
        return name
    unnamed, scope = current_job("use of a layer").unnamed_layers, current_scope()
    allowed = 'name="...", by which layers share variables'
    check(not scope.reuse, "*", "a layer without a name", allowed)
    full = scope.prefix + name
    unnamed[full] += 1
    earlier = unnamed[full] - 1
    return f"{name}_{earlier}" if earlier else str(name)


def check_input(function: str, x: object) -> None:
    """Raise `InferenceError` unless a layer's input is a blob."""
    found = f"{type(x).__name__} {x!r:.60}"
    check(isinstance(x, BlobDef), function, found, "a blob: a parameter of the job, or a result")


def layer_axis(function: str, x: Blob, axis: int) -> int:
    """Return an axis of a layer's input as a non-negative number."""
    check_input(function, x)
    return checked_axis(check, function, x, axis)


def new_variable(
    name: str,
    shape: Sequence[int],
    dtype: DType,
    initializer: Initializer,
    distribute: Any = BROADCAST,
    **more: Any,
) -> BlobDef:
    """Create a variable below the current name scope; its name must be unused in the job."""
    asked = None if distribute is BROADCAST else distribute
    return get_variable(
        name, tuple(shape), dtype, initializer,
        model_name=name, reuse=False, distribute=asked, **more,
    )  # fmt: skip


def activated(function: str, y: Blob, activation: Callable[..., BlobDef] | None) -> BlobDef:
    """Apply a layer's activation, and pass ``name`` to it if it has such a parameter."""
    y = checked_blob(y)
    if activation is None:
        return y
    allowed = "a function of a blob, such as flow.nn.relu"
    check(callable(activation), function, f"activation={activation!r:.60}", allowed)
    return activation(y, name="activation") if _takes_name(activation) else activation(y)


def _takes_name(function: Callable[..., object]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.name == "name" or p.kind is p.VAR_KEYWORD for p in parameters)
