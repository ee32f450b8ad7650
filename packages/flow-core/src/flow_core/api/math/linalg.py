"""``flow.linalg``, whose functions are also names of ``flow``."""

from __future__ import annotations

from math import prod

from flow_core.api.array.shape import reshape
from flow_core.api.math.norms import norm
from flow_core.base.errors import InferenceError
from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.emit import emit

__all__ = ["matmul", "norm"]


def matmul(
    a: Blob,
    b: Blob,
    transpose_a: bool = False,
    transpose_b: bool = False,
    name: str | None = None,
    alpha: float = 1.0,
) -> BlobDef:
    """Multiply two matrices, each pair of matrices in two stacks, or a stack and one matrix.

    Args:
        a: shape (..., m, k), or (..., k, m) with ``transpose_a``.
        b: shape (..., k, n), or (..., n, k) with ``transpose_b``; of the element type, rank and
            leading axes of ``a``.  Without ``transpose_a``, ``b`` may also be a single matrix, by
            which all matrices of the stack ``a`` are multiplied.
        transpose_a: whether the last two axes of ``a`` are swapped first.
        transpose_b: whether the last two axes of ``b`` are swapped first.
        alpha: number by which the product is multiplied.

    Returns: A blob of shape (..., m, n).

    Raises: InferenceError: the ranks, leading axes, inner sizes or element types do not match.

    >>> run(flow.matmul, [[1, 2], [3, 4]], [[1, 0], [0, 10]])
    array([[ 1., 20.],
           [ 3., 40.]], dtype=float32)
    """
    if len(a.shape) > len(b.shape) == 2 and not transpose_a:
        rows = reshape(a, (prod(a.shape[:-1]), a.shape[-1]))
        flat = matmul(rows, b, transpose_b=transpose_b, name=name, alpha=alpha)
        return reshape(flat, (*a.shape[:-1], flat.shape[-1]))
    if len(a.shape) != len(b.shape) or len(a.shape) < 2:
        raise InferenceError.at_caller(
            "flow.matmul",
            found=f"shapes {a.shape} and {b.shape}",
            allowed="two matrices, two stacks of matrices of the same rank, or a stack that is not "
            "transposed and a matrix",
        )
    op_type = "matmul" if len(a.shape) == 2 else "batch_matmul"
    blob: BlobDef = emit(
        op_type, a, b, transpose_a=bool(transpose_a), transpose_b=bool(transpose_b), name=name
    )
    return blob if alpha == 1 else blob * alpha
