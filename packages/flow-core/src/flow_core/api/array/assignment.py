"""Assignment to variables, and counts of non-finite elements.

Returns: An int64 blob of shape (1,).
"""

from __future__ import annotations

from collections.abc import Sequence

from flow_core.base.dtypes import DType
from flow_core.base.errors import InferenceError
from flow_core.frontend.trace.blob import Blob, BlobDef, checked_blob
from flow_core.frontend.trace.emit import emit, emit_one

__all__ = ["assign", "count_not_finite", "multi_count_not_finite", "system_assign"]


def assign(ref: Blob, value: Blob, dtype: DType | None = None, name: str | None = None) -> None:
    """Overwrite a variable at every step.

    Args:
        ref: a variable, as returned by `flow.get_variable`.
        value: a blob of the variable's shape and element type.
        dtype: has no effect, as in OneFlow.

    Raises: InferenceError: ``ref`` is not a variable, or the shapes or element types differ.

    >>> @flow.global_function()
    ... def job(x: tp.Numpy.Placeholder((2,))) -> None:
    ...     w = flow.get_variable("w", (2,), initializer=flow.zeros_initializer())
    ...     flow.assign(w, x)
    >>> job([1, 2])
    >>> flow.get_all_variables()["w"].numpy()
    array([1., 2.], dtype=float32)
    """
    _assign(ref, value, name)


def system_assign(
    ref: Blob,
    value: Blob,
    validate_shape: object = None,
    use_locking: object = None,
    name: str | None = None,
) -> BlobDef:
    """Assign like `assign`, and return ``ref``; the other two arguments have no effect, as in
    OneFlow.

    Args:
        ref: a variable.
        value: a blob of its shape and type.
        validate_shape, use_locking: without effect.

    Returns: The variable.

    >>> @flow.global_function()
    ... def job(x: tp.Numpy.Placeholder((2,))) -> None:
    ...     w = flow.get_variable("w", (2,), initializer=flow.zeros_initializer())
    ...     flow.system.assign(w, x)
    >>> job([1, 2])
    >>> flow.get_all_variables()["w"].numpy()
    array([1., 2.], dtype=float32)
    """
    ref = checked_blob(ref)
    _assign(ref, value, name)
    return ref


def _assign(ref: Blob, value: Blob, name: str | None) -> None:
    if isinstance(ref, BlobDef):
        made = {ref.job.builder.ops[part.op].type for part in ref.parts}
        if made != {"variable"}:
            raise InferenceError.at_caller(
                "assign",
                found=f"the result of {' and '.join(sorted(made))} as the variable to overwrite",
                allowed="a result of flow.get_variable",
            )
    emit("assign", ref, value, name=name)


def _as_vector(count: Blob) -> BlobDef:
    return emit_one("reshape", count, shape=(1,))


def count_not_finite(x: Blob, name: str | None = None) -> BlobDef:
    """Return the number of infinite or NaN elements of a floating-point blob: int64, shape (1,).

    Args:
        x: a floating-point blob.

    >>> run(flow.count_not_finite, [1, np.nan, np.inf])
    array([2])
    """
    return _as_vector(emit("count_not_finite", x, name=name))


def multi_count_not_finite(x: Sequence[Blob] | None = None, name: str | None = None) -> BlobDef:
    """Return the number of infinite or NaN elements in a list of blobs: int64 of shape (1,).

    Args:
        x: a list of floating-point blobs.

    >>> run(lambda x: flow.multi_count_not_finite([x, 1 / x]), [1, np.nan])
    array([2])
    """
    if not x:
        raise InferenceError.at_caller(
            "multi_count_not_finite", found=f"{x!r}", allowed="one or more blobs"
        )
    counts = [emit("count_not_finite", blob) for blob in x]
    return _as_vector(emit("add_n", *counts, name=name))
