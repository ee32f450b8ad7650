"""Functions that select regions of blobs or concatenate blobs.

`slice` shadows the builtin in this module.

Args:
    x, input: a blob.
    axis: the axis, negative to count from the last one.
    slice_tup_list: (start, stop, step) for each axis, where None means numpy's default; trailing
        axes without an entry are kept whole.  Steps may be negative.
    paddings: (before, after) per axis, in elements.
"""

from __future__ import annotations

from collections.abc import Sequence

from flow_core.api.array.shape import axis_of, check, expand_dims, inner
from flow_core.base.shapes import same_padding as padding_of_axis
from flow_core.frontend.trace.blob import Blob, BlobDef, checked_blob
from flow_core.frontend.trace.emit import emit, emit_one
from flow_core.ir.graph import AttrValue
from flow_core.ops.array.select import LAST

__all__ = [
    "concat", "pad", "pad_grad", "reflection_pad2d", "reverse", "same_padding", "slice",
    "slice_update", "slice_v2", "stack",
]  # fmt: skip

SliceRow = Sequence[int | None]


def concat(
    inputs: Sequence[Blob] | None = None,
    axis: int = 0,
    max_dim_size: int | None = None,
    name: str | None = None,
    values: Sequence[Blob] | None = None,
) -> BlobDef:
    """Concatenate blobs along an axis; a single blob is returned unchanged.

    Args:
        inputs: blobs of one element type and of equal sizes except on ``axis``.
        max_dim_size: an upper bound on the size of the result's axis, checked only for blobs of
            fixed shape.
        values: an older name of ``inputs``.

    Returns: A blob whose axis ``axis`` has the sum of the sizes.

    >>> run(lambda x, y: flow.concat([x, y], axis=1), [[1], [2]], [[3], [4]])
    array([[1., 3.],
           [2., 4.]], dtype=float32)
    """
    blobs = inputs if values is None else values
    given = isinstance(blobs, list | tuple) and len(blobs) > 0
    check(given, "concat", f"{blobs!r}", "a list or tuple of at least one blob")
    check(inputs is None or values is None, "concat", "inputs and values", "one of them")
    parts = list(blobs or ())
    if len(parts) == 1:
        return checked_blob(parts[0])
    others = [x for x in parts if not isinstance(x, BlobDef)]
    check(not others, "concat", f"{others[:1]!r:.60}", "blobs alone")
    axis = axis_of("concat", axis, len(parts[0].shape))
    # maximum sizes of lists need not fit together: only the arrays that are fed must
    bound = None if any(checked_blob(x).is_dynamic for x in parts) else max_dim_size
    return emit_one("concat", *parts, axis=axis, max_dim_size=bound, name=name)


def stack(inputs: Sequence[Blob], axis: int = 0, name: str | None = None) -> BlobDef:
    """Stack blobs of one shape along a new axis.

    Args:
        inputs: blobs of one shape and element type.
        axis: position of the new axis in the result; -1 is the last position.

    Returns: A blob with one more axis, of size ``len(inputs)``.

    Raises: InferenceError: there are no blobs, their shapes differ, or the axis is out of range.

    >>> run(lambda x, y: flow.stack([x, y]), [1, 2], [3, 4])
    array([[1., 2.],
           [3., 4.]], dtype=float32)
    """
    shapes = [x.shape for x in inputs]
    same = len(shapes) > 0 and all(shape == shapes[0] for shape in shapes)
    check(same, "stack", f"shapes {shapes}", "at least one blob, all of one shape")
    axis = axis_of("stack", axis, len(shapes[0]) + 1)
    expanded = [expand_dims(x, axis, inner(name, f"expand_dims_{i}")) for i, x in enumerate(inputs)]
    return concat(expanded, axis, name=inner(name, "concat"))


def slice(
    x: Blob, begin: Sequence[int | None], size: Sequence[int | None], name: str | None = None
) -> BlobDef:
    """Return the region of ``x`` that starts at ``begin`` and has the size ``size``.

    Args:
        begin: the start on each axis, negative to count from the end; None means 0.
        size: the size on each axis; with -1, None or a size beyond the end, the region extends to
            the end.

    Returns: A blob of the size ``size``.

    >>> run(lambda x: flow.slice(x, [0, 1], [2, 2]), [[3, 1, 2], [6, 5, 4]])
    array([[1., 2.],
           [5., 4.]], dtype=float32)
    """
    rank = len(x.shape)
    both = f"begin {begin} and size {size} for shape {x.shape}"
    check(len(begin) == len(size) == rank, "slice", both, f"{rank} numbers each")
    rows = [_begin_and_size(*row) for row in zip(x.shape, begin, size, strict=True)]
    return slice_v2(x, rows, name)


def _begin_and_size(total: int, begin: int | None, size: int | None) -> SliceRow:
    start = 0 if begin is None else begin
    check(-total <= start < max(total, 1), "slice", f"begin {begin} for size {total}", "within it")
    start += total if start < 0 else 0
    ok = size is None or size == -1 or 0 < size <= total
    check(ok, "slice", f"size {size} of {total}", "-1 or between 1 and the axis' size")
    stop = None if size is None or size == -1 or start + size >= total else start + size
    return (start, stop, 1)


def slice_v2(x: Blob, slice_tup_list: Sequence[SliceRow], name: str | None = None) -> BlobDef:
    """Return the slice ``x[start:stop:step, ...]``, as in numpy.

    Returns: A blob with as many axes as ``x``.

    Raises: InferenceError: a start or stop is out of range, a step is 0, or the slice is empty.

    >>> run(lambda x: flow.slice_v2(x, [(None, None, None), (2, 0, -1)]), [[3, 1, 2], [6, 5, 4]])
    array([[2., 1.],
           [4., 5.]], dtype=float32)
    """
    return emit_one("slice", x, **slice_attrs("slice_v2", x, slice_tup_list), name=name)


def slice_update(
    x: Blob, update: Blob, slice_tup_list: Sequence[SliceRow], name: str | None = None
) -> BlobDef:
    """Return a copy of ``x`` with a slice replaced.

    Args:
        update: the new slice: a blob of the shape of the slice and of the element type of ``x``.

    Returns: A blob of the shape and type of ``x``.

    Raises:
        InferenceError: a start or stop is out of range, a step is 0, or ``update`` has another
            type.

    >>> run(lambda x, y: flow.slice_update(x, y, [(1, 3, 1)]), [1, 2, 3, 4], [20, 30])
    array([ 1., 20., 30.,  4.], dtype=float32)
    """
    attrs = slice_attrs("slice_update", x, slice_tup_list)
    return emit_one("slice_update", x, update, **attrs, name=name)


def logical_slice(x: Blob, slice_tup_list: Sequence[SliceRow], name: str | None = None) -> BlobDef:
    """Return a slice as `slice_v2` does, with steps greater than 0 only.

    Returns: A blob with as many axes as ``x``.

    Raises: InferenceError: as for `slice_v2`, or a step is negative.

    >>> run(
    ...     lambda x: flow.experimental.logical_slice(x, [(0, 2, 1), (0, 3, 2)]),
    ...     [[3, 1, 2], [6, 5, 4]],
    ... )
    array([[3., 2.],
           [6., 4.]], dtype=float32)
    """
    attrs = slice_attrs("experimental.logical_slice", x, slice_tup_list, forward=True)
    return emit_one("logical_slice", x, **attrs, name=name)


def logical_slice_assign(
    x: Blob, value: Blob, slice_tup_list: Sequence[SliceRow], name: str | None = None
) -> None:
    """Overwrite a slice of a variable at every step.

    Args:
        x: a variable, as returned by ``flow.get_variable``.
        value: a blob of the shape and element type of the slice.
        slice_tup_list: (start, stop, step) for each axis, with steps greater than 0; see
            `slice_v2`.

    Raises: InferenceError: as for `logical_slice`, or ``value`` has another type.

    >>> @flow.global_function()
    ... def job(x: tp.Numpy.Placeholder((2,))) -> None:
    ...     w = flow.get_variable("w", (4,), initializer=flow.zeros_initializer())
    ...     flow.experimental.logical_slice_assign(w, x, [(1, 3, 1)])
    >>> job([1, 2])
    >>> flow.get_all_variables()["w"].numpy()
    array([0., 1., 2., 0.], dtype=float32)
    """
    attrs = slice_attrs("experimental.logical_slice_assign", x, slice_tup_list, forward=True)
    emit("logical_slice_assign", x, value, **attrs, name=name)


def slice_attrs(
    function: str, x: Blob, rows: Sequence[SliceRow], forward: bool = False
) -> dict[str, tuple[int, ...]]:
    """Return the start, stop and step attributes of a list of slices."""
    rank = len(x.shape)
    ok = isinstance(rows, list | tuple) and len(rows) <= rank
    check(ok, function, f"{rows!r}", f"a list or tuple of at most {rank} (start, stop, step)")
    full = [*rows, *[(None, None, None)] * (rank - len(rows))]
    done = [_checked(function, n, row, forward) for n, row in zip(x.shape, full, strict=True)]
    start, stop, step = zip(*done, strict=True) if done else ((), (), ())
    return {"start": start, "stop": stop, "step": step}


def _checked(function: str, size: int, row: SliceRow, forward: bool) -> tuple[int, int, int]:
    """Return the start, stop and step of one slice, with numpy's defaults in place of None."""
    ok = len(row) == 3 and all(n is None or isinstance(n, int) for n in row)
    check(ok, function, f"{row!r}", "(start, stop, step), each an int or None")
    start, stop, step = row
    step = 1 if step is None else step
    check(step > 0 if forward else step, function, f"step {step}", _STEPS[forward])
    ok = start is None or -size <= start < size
    check(ok, function, f"start {start} for size {size}", "-size <= start < size")
    ok = stop is None or -size - 1 <= stop <= size
    check(ok, function, f"stop {stop} for size {size}", "-size - 1 <= stop <= size")
    first, last = (0, LAST) if step > 0 else (LAST, -LAST)
    return first if start is None else start, last if stop is None else stop, step


_STEPS = {False: "a step other than 0", True: "a step greater than 0"}


def reverse(input: Blob, axis: int | Sequence[int], name: str | None = None) -> BlobDef:
    """Reverse the order of elements along one or several axes.

    Args:
        axis: axes, negative to count from the last one.

    Returns: A blob of the shape and element type of ``input``.

    Raises: InferenceError: an axis is out of range.

    >>> run(flow.reverse, [1, 2, 3], 0)
    array([3., 2., 1.], dtype=float32)
    """
    rank = len(input.shape)
    axes = [axis] if isinstance(axis, int) else list(axis)
    rows: list[SliceRow] = [(None, None, None)] * rank
    for a in axes:
        rows[axis_of("reverse", a, rank)] = (None, None, -1)
    return slice_v2(input, rows, name)


def _pad_attrs(
    function: str, x: Blob, paddings: Sequence[Sequence[int]], value: float
) -> dict[str, AttrValue]:
    rank = len(x.shape)
    ok = isinstance(paddings, list | tuple) and len(paddings) == rank
    ok = ok and all(isinstance(p, list | tuple) and len(p) == 2 for p in paddings)
    check(ok, function, f"paddings {paddings!r}", f"{rank} pairs (before, after)")
    floating = x.dtype.is_floating
    return {
        "padding_before": tuple(before for before, _ in paddings),
        "padding_after": tuple(after for _, after in paddings),
        "floating_constant_value": float(value) if floating else 0.0,
        "integral_constant_value": 0 if floating else int(value),
    }


def pad(
    x: Blob,
    paddings: Sequence[Sequence[int]],
    constant_value: int | float = 0,
    name: str | None = None,
) -> BlobDef:
    """Pad a blob with a number.

    Args:
        constant_value: the number, which is converted to the element type of ``x``.

    Returns: A blob whose size on axis i is ``before + x.shape[i] + after``.

    Raises: InferenceError: ``paddings`` is not one pair of non-negative numbers for each axis.

    >>> run(lambda x: flow.pad(x, [(1, 2)]), [1, 2])
    array([0., 1., 2., 0., 0.], dtype=float32)
    """
    attrs = _pad_attrs("pad", x, paddings, constant_value)
    return emit_one("pad", x, **attrs, name=name)


def pad_grad(
    x: Blob,
    paddings: Sequence[Sequence[int]],
    constant_value: int | float = 0,
    name: str | None = None,
) -> BlobDef:
    """Remove a border from a blob; the inverse of `pad`, and also its gradient.

    Args:
        constant_value: has no effect, as in OneFlow.

    Returns: A blob whose size on axis i is ``x.shape[i] - before - after``.

    Raises:
        InferenceError: ``paddings`` is not one pair for each axis, or a border is wider than the
            blob.

    >>> run(lambda x: flow.pad_grad(x, [(1, 2)]), [1, 2, 3, 4, 5])
    array([2., 3.], dtype=float32)
    """
    attrs = _pad_attrs("pad_grad", x, paddings, constant_value)
    return emit_one("pad_grad", x, **attrs, name=name)


def same_padding(
    x: Blob,
    padding: str,
    data_format: str,
    kernel_size: Sequence[int],
    strides: Sequence[int],
    dilation_rate: Sequence[int],
    name: str | None = None,
) -> BlobDef:
    """Pad with zeros so that a window op without padding has ceil(size / stride) outputs per axis.

    Args:
        x: images; the channel axis is axis 1 for a ``data_format`` "NC...", otherwise the last
            axis.
        padding: the side that receives one element more if the total is odd: "SAME_UPPER" pads more
            after the image, "SAME_LOWER" before it.
        data_format: such as "NCHW" or "NHWC".
        kernel_size, strides, dilation_rate: geometry of the window op, per spatial axis.

    Returns: A padded blob.

    >>> run(
    ...     flow.same_padding,
    ...     np.ones((1, 1, 5, 5), np.float32),
    ...     "same_upper",
    ...     "NCHW",
    ...     (3, 3),
    ...     (2, 2),
    ...     (1, 1),
    ... ).shape
    (1, 1, 7, 7)
    """
    kind = str(padding).upper()
    allowed = "SAME_UPPER or SAME_LOWER"
    check(kind in ("SAME_UPPER", "SAME_LOWER"), "same_padding", f"{padding!r}", allowed)
    first = 2 if data_format.startswith("NC") else 1
    spatial = x.shape[first : first + len(x.shape) - 2]
    windows = (kernel_size, strides, dilation_rate)
    ok = all(len(row) == len(spatial) for row in windows)
    check(ok, "same_padding", f"{windows} for {x.shape}", f"{len(spatial)} numbers each")
    rows = [
        padding_of_axis(*row, lower=kind == "SAME_LOWER")
        for row in zip(spatial, *windows, strict=True)
    ]
    after = len(x.shape) - first - len(spatial)
    return pad(x, [(0, 0)] * first + rows + [(0, 0)] * after, name=name)


def reflection_pad2d(x: Blob, padding: int | Sequence[int], name: str | None = None) -> BlobDef:
    """Pad images (N, C, H, W) by reflection, without repeating the edge.

    Args:
        x: images.
        padding: one number for all sides; or four numbers, of which the third applies to both sides
            of H and the fourth to both sides of W.  Each must be less than the size of that axis.

    Returns: A blob with larger last two axes.

    >>> run(lambda x: flow.reshape(flow.reflection_pad2d(x, 1), (4, 4)), [[[[1, 2], [3, 4]]]])
    array([[4., 3., 4., 3.],
           [2., 1., 2., 1.],
           [4., 3., 4., 3.],
           [2., 1., 2., 1.]], dtype=float32)
    """
    given = [padding] * 4 if isinstance(padding, int) else list(padding)
    ok = len(given) == len(x.shape) == 4
    check(ok, "reflection_pad2d", f"{padding} for shape {x.shape}", "4 numbers, for 4 axes")
    return emit_one("reflection_pad2d", x, padding=(0, 0, given[2], given[3]), name=name)
