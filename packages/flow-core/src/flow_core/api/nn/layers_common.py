"""What the layers share: checks, and variables that a layer makes anew."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from flow_core.api.session.distribute import broadcast
from flow_core.base.dtypes import DType
from flow_core.base.errors import InferenceError, user_line
from flow_core.base.shapes import normal_axis
from flow_core.frontend.session.variables import get_variable
from flow_core.frontend.trace.blob import BlobDef
from flow_core.ir.initializers import Initializer

BROADCAST = broadcast()
"""The default distribution of a layer's variables: no request, the selector may choose."""


def check(ok: object, function: str, found: object, allowed: object) -> None:
    """Raises `InferenceError` about a layer at the user's line unless ``ok``."""
    if not ok:
        raise InferenceError(
            f"flow.layers.{function}", at=user_line(), found=found, allowed=allowed
        )


def check_input(function: str, x: object) -> None:
    """Raises `InferenceError` about what a layer is called with, unless it is a blob."""
    found = f"{type(x).__name__} {x!r:.60}"
    check(isinstance(x, BlobDef), function, found, "a blob: a parameter of the job, or a result")


def checked_axis(function: str, x: BlobDef, axis: int) -> int:
    """A non-negative axis of x, or an error at the user's line."""
    check_input(function, x)
    rank = len(x.shape)
    allowed = f"-{rank} to {rank - 1}"
    fits = hasattr(axis, "__index__") and -rank <= axis < rank
    check(fits, function, f"axis {axis!r} for shape {x.shape}", allowed)
    return normal_axis(axis, rank)


def new_variable(
    name: str,
    shape: Sequence[int],
    dtype: DType,
    initializer: Initializer,
    distribute: Any = BROADCAST,
    **more: Any,
) -> BlobDef:
    """A variable below the name scope in force, which no other layer of the job may have."""
    asked = None if distribute is BROADCAST else distribute
    return get_variable(
        name, tuple(shape), dtype, initializer,
        model_name=name, reuse=False, distribute=asked, **more,
    )  # fmt: skip


def activated(function: str, y: BlobDef, activation: Callable[..., BlobDef] | None) -> BlobDef:
    """A layer's result after its activation, which may take a ``name``."""
    if activation is None:
        return y
    allowed = "a function of a blob, such as flow.nn.relu"
    check(callable(activation), function, f"activation={activation!r:.60}", allowed)
    return activation(y, name="activation") if _takes_name(activation) else activation(y)


def _takes_name(function: Callable[..., object]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.name == "name" or p.kind is p.VAR_KEYWORD for p in parameters)
