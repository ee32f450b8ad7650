"""The operands of the functions of two blobs, or of a blob and a number."""

from __future__ import annotations

from flow_core.base.errors import InferenceError
from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.emit import emit_one
from flow_core.frontend.trace.operators import as_blob

Operand = Blob | float


def both(x: Operand, y: Operand, function: str) -> tuple[BlobDef, BlobDef]:
    """Return two blobs; a number becomes a constant of the element type of the other operand."""
    if isinstance(x, BlobDef):
        return x, as_blob(y, like=x)
    if isinstance(y, BlobDef):
        return as_blob(x, like=y), y
    raise InferenceError.at_caller(
        f"flow.math.{function}", found=f"{x!r:.60} and {y!r:.60}", allowed="at least one blob"
    )


def pair(kind: str, x: Operand, y: Operand, name: str | None) -> BlobDef:
    """Add the op ``broadcast_<kind>`` of two operands."""
    first, second = both(x, y, kind)
    return emit_one(f"broadcast_{kind}", first, second, name=name)
