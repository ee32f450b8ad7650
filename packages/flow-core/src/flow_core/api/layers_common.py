"""What the layers share: checks, and variables that a layer makes anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flow_core.api.distribute import broadcast
from flow_core.dtypes import DType
from flow_core.errors import InferenceError, user_line
from flow_core.frontend.blob import BlobDef
from flow_core.frontend.variables import get_variable
from flow_core.initializers import Initializer
from flow_core.shapes import normal_axis

BROADCAST = broadcast()
"""The default distribution of a layer's variables: no request, the selector may choose."""


def check(ok: object, function: str, found: object, allowed: object) -> None:
    """Raises `InferenceError` about a layer at the user's line unless ``ok``."""
    if not ok:
        raise InferenceError(
            f"flow.layers.{function}", at=user_line(), found=found, allowed=allowed
        )


def checked_axis(function: str, x: BlobDef, axis: int) -> int:
    """A non-negative axis of x, or an error at the user's line."""
    rank = len(x.shape)
    allowed = f"-{rank} to {rank - 1}"
    check(-rank <= axis < rank, function, f"axis {axis} for shape {x.shape}", allowed)
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
