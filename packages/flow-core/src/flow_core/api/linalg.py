"""``flow.linalg`` and ``flow.matmul``."""

from __future__ import annotations

from flow_core.errors import InferenceError, user_line
from flow_core.frontend.blob import BlobDef
from flow_core.frontend.emit import emit

__all__ = ["matmul"]


def matmul(
    a: BlobDef,
    b: BlobDef,
    transpose_a: bool = False,
    transpose_b: bool = False,
    name: str | None = None,
) -> BlobDef:
    """Matrix product of two matrices, or of each pair in two stacks of matrices.

    Args:
        a: shape (..., m, k), or (..., k, m) with ``transpose_a``.
        b: shape (..., k, n), or (..., n, k) with ``transpose_b``; same element type, same rank
            and same leading axes as ``a``.
        transpose_a: whether the last two axes of ``a`` are swapped first.
        transpose_b: whether the last two axes of ``b`` are swapped first.
        name: name of the op.

    Returns:
        A blob of shape (..., m, n).

    Raises:
        InferenceError: ranks, leading axes, inner sizes or element types do not agree.
    """
    if len(a.shape) != len(b.shape) or len(a.shape) < 2:
        raise InferenceError(
            "flow.matmul",
            at=user_line(),
            found=f"shapes {a.shape} and {b.shape}",
            allowed="two matrices, or two stacks of matrices of the same rank",
        )
    op_type = "matmul" if len(a.shape) == 2 else "batch_matmul"
    blob: BlobDef = emit(
        op_type, a, b, transpose_a=bool(transpose_a), transpose_b=bool(transpose_b), name=name
    )
    return blob
