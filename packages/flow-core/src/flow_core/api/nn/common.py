"""What the functions of ``flow.nn`` share."""

from __future__ import annotations

from flow_core.api.math.unary import inner
from flow_core.base.errors import InferenceError, user_line

__all__ = ["check", "inner"]


def check(
    ok: object, function: str, found: object, allowed: object, hint: str | None = None
) -> None:
    """Raises `InferenceError` about ``flow.nn.<function>`` at the user's line unless ``ok``."""
    if not ok:
        raise InferenceError(
            f"flow.nn.{function}", at=user_line(), found=found, allowed=allowed, hint=hint
        )
