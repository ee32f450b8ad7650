"""Functions that select regions of blobs or concatenate blobs.

`slice` shadows the builtin in this module.
"""

from __future__ import annotations

from collections.abc import Sequence

from flow_core.api.array.shape import axis_of, check, expand_dims, inner
from flow_core.base.shapes import same_padding as padding_of_axis
from flow_core.frontend.trace.blob import BlobDef
from flow_core.frontend.trace.emit import emit, emit_one
from flow_core.ir.graph import AttrValue
from flow_core.ops.array.select import LAST

__all__ = [
    "concat",
    "pad",
    "pad_grad",
    "reflection_pad2d",
    "reverse",
    "same_padding",
    "slice",
    "slice_update",
    "slice_v2",
    "stack",
]

SliceRow = Sequence[int | None]


def concat(
    inputs: Sequence[BlobDef] | None = None,
    axis: int = 0,
    max_dim_size: int | None = None,
    name: str | None = None,
    values: Sequence[BlobDef] | None = None,
) -> BlobDef:
    """Concatenate blobs along an axis; a single blob is returned unchanged.

    Args:
        inputs: blobs of one element type and of equal sizes except on ``axis``.
        axis: the axis, negative to count from the last one.
        max_dim_size: an upper bound for the resulting size, checked only for fixed shapes.
        name: name of the op.
        values: an older name of ``inputs``.
    """
    blobs = inputs if values is None else values
    given = isinstance(blobs, list | tuple) and len(blobs) > 0
    check(given, "concat", f"{blobs!r}", "a list or tuple of at least one blob")
    check(inputs is None or values is None, "concat", "inputs and values", "one of them")
    parts = list(blobs or ())
    if len(parts) == 1:
        return parts[0]
    others = [x for x in parts if not isinstance(x, BlobDef)]
    check(not others, "concat", f"{others[:1]!r:.60}", "blobs alone")
    axis = axis_of("concat", axis, len(parts[0].shape))
    # only the fed arrays must fit together, not the maximum sizes of lists
    bound = None if any(x.is_dynamic for x in parts) else max_dim_size
    return emit_one("concat", *parts, axis=axis, max_dim_size=bound, name=name)


def stack(inputs: Sequence[BlobDef], axis: int = 0, name: str | None = None) -> BlobDef:
    """Stack blobs of one shape along a new axis.

    Args:
        inputs: blobs of one shape and element type.
        axis: position of the new axis in the result; -1 for the last.
        name: name of the op.

    Returns:
        A blob with one more axis, of size ``len(inputs)``.

    Raises:
        InferenceError: no blobs, blobs of several shapes, or an axis out of range.
    """
    shapes = [x.shape for x in inputs]
    same = len(shapes) > 0 and all(shape == shapes[0] for shape in shapes)
    check(same, "stack", f"shapes {shapes}", "at least one blob, all of one shape")
    axis = axis_of("stack", axis, len(shapes[0]) + 1)
    expanded = [expand_dims(x, axis, inner(name, f"expand_dims_{i}")) for i, x in enumerate(inputs)]
    return concat(expanded, axis, name=inner(name, "concat"))


def slice(
    x: BlobDef, begin: Sequence[int | None], size: Sequence[int | None], name: str | None = None
) -> BlobDef:
    """The region of ``x`` that starts at ``begin`` and has the size ``size``.

    Args:
        x: a blob.
        begin: a start per axis, negative to count from the end; None is 0.
        size: a size per axis; -1, None and sizes beyond the end extend to the end.
        name: name of the op.
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


def slice_v2(x: BlobDef, slice_tup_list: Sequence[SliceRow], name: str | None = None) -> BlobDef:
    """The slice ``x[start:stop:step, ...]``, as in numpy.

    Args:
        x: a blob.
        slice_tup_list: (start, stop, step) per axis, None for numpy's default; trailing axes
            without an entry are kept whole.  Steps may be negative.
        name: name of the op.

    Raises:
        InferenceError: start or stop out of range, a step of 0, or nothing selected.
    """
    return emit_one("slice", x, **slice_attrs("slice_v2", x, slice_tup_list), name=name)


def slice_update(
    x: BlobDef, update: BlobDef, slice_tup_list: Sequence[SliceRow], name: str | None = None
) -> BlobDef:
    """A copy of ``x`` with a slice replaced.

    Args:
        x: a blob.
        update: the new slice: a blob of the shape of the slice, of x's element type.
        slice_tup_list: (start, stop, step) per axis, see `slice_v2`.
        name: name of the op.

    Raises:
        InferenceError: start or stop out of range, a step of 0, or an update of another type.
    """
    attrs = slice_attrs("slice_update", x, slice_tup_list)
    return emit_one("slice_update", x, update, **attrs, name=name)


def logical_slice(
    x: BlobDef, slice_tup_list: Sequence[SliceRow], name: str | None = None
) -> BlobDef:
    """`slice_v2` with steps greater than 0.

    Args:
        x, slice_tup_list, name: see `slice_v2`.

    Raises:
        InferenceError: as `slice_v2`, and for negative steps.
    """
    attrs = slice_attrs("experimental.logical_slice", x, slice_tup_list, forward=True)
    return emit_one("logical_slice", x, **attrs, name=name)


def logical_slice_assign(
    x: BlobDef, value: BlobDef, slice_tup_list: Sequence[SliceRow], name: str | None = None
) -> None:
    """Overwrite a slice of a variable at every step.

    Args:
        x: what ``flow.get_variable`` returned.
        value: of the shape and element type of the slice.
        slice_tup_list: (start, stop, step) per axis, steps greater than 0, see `slice_v2`.
        name: name of the op.

    Raises:
        InferenceError: as `logical_slice`, and for a value of another type.
    """
    attrs = slice_attrs("experimental.logical_slice_assign", x, slice_tup_list, forward=True)
    emit("logical_slice_assign", x, value, **attrs, name=name)


def slice_attrs(
    function: str, x: BlobDef, rows: Sequence[SliceRow], forward: bool = False
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
    """Return one slice with its defaults."""
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


def reverse(input: BlobDef, axis: int | Sequence[int], name: str | None = None) -> BlobDef:
    """Reverse the order of elements along one or several axes.

    Args:
        input: a blob.
        axis: axes, negative to count from the last one.
        name: name of the op.

    Returns:
        A blob like ``input``.

    Raises:
        InferenceError: an axis out of range.
    """
    rank = len(input.shape)
    axes = [axis] if isinstance(axis, int) else list(axis)
    rows: list[SliceRow] = [(None, None, None)] * rank
    for a in axes:
        rows[axis_of("reverse", a, rank)] = (None, None, -1)
    return slice_v2(input, rows, name)


def _pad_attrs(
    function: str, x: BlobDef, paddings: Sequence[Sequence[int]], value: float
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
    x: BlobDef,
    paddings: Sequence[Sequence[int]],
    constant_value: int | float = 0,
    name: str | None = None,
) -> BlobDef:
    """Pad a blob with a number.

    Args:
        x: a blob.
        paddings: (before, after) per axis, in elements.
        constant_value: the number, in x's element type.
        name: name of the op.

    Returns:
        A blob whose sizes are ``before + x.shape[i] + after``.

    Raises:
        InferenceError: not one pair of numbers of at least 0 per axis.

    Example:
        For ``x`` of shape (2, 3), ``flow.pad(x, [(0, 0), (1, 1)])`` has shape (2, 5).
    """
    attrs = _pad_attrs("pad", x, paddings, constant_value)
    return emit_one("pad", x, **attrs, name=name)


def pad_grad(
    x: BlobDef,
    paddings: Sequence[Sequence[int]],
    constant_value: int | float = 0,
    name: str | None = None,
) -> BlobDef:
    """Remove a border from a blob: the inverse of `pad`, and its gradient.

    Args:
        x: a blob.
        paddings: (before, after) per axis, in elements.
        constant_value: has no effect, as in OneFlow.
        name: name of the op.

    Returns:
        A blob whose sizes are ``x.shape[i] - before - after``.

    Raises:
        InferenceError: not one pair per axis, or a border wider than the blob.
    """
    attrs = _pad_attrs("pad_grad", x, paddings, constant_value)
    return emit_one("pad_grad", x, **attrs, name=name)


def same_padding(
    x: BlobDef,
    padding: str,
    data_format: str,
    kernel_size: Sequence[int],
    strides: Sequence[int],
    dilation_rate: Sequence[int],
    name: str | None = None,
) -> BlobDef:
    """Pad with zeros so that a window op without padding has ceil(size / stride) outputs per axis.

    Args:
        x: images; channels are second for a ``data_format`` "NC...", otherwise last.
        padding: "SAME_UPPER" puts the odd element after the image, "SAME_LOWER" before it.
        data_format: such as "NCHW" or "NHWC".
        kernel_size, strides, dilation_rate: geometry of the window op, per spatial axis.
        name: name of the op.
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


def reflection_pad2d(x: BlobDef, padding: int | Sequence[int], name: str | None = None) -> BlobDef:
    """Pad images (N, C, H, W) by reflection, without repeating the edge.

    Args:
        x: images.
        padding: one number for all sides; or four, of which the third applies to both sides of
            H and the fourth to both sides of W, each less than the size of that axis.
        name: name of the op.
    """
    given = [padding] * 4 if isinstance(padding, int) else list(padding)
    ok = len(given) == len(x.shape) == 4
    check(ok, "reflection_pad2d", f"{padding} for shape {x.shape}", "4 numbers, for 4 axes")
    return emit_one("reflection_pad2d", x, padding=(0, 0, given[2], given[3]), name=name)
