"""The kernels of `native/source.c`: updates, masks, sums, losses, layer normalisation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from flow_core.device import Launch
from flow_core.errors import DataError
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec
from flow_onednn import threads
from flow_onednn.native import compiler
from flow_onednn.primitives import address, padded
from flow_onednn.recipes import PRIORITY

Accepts = Callable[[KernelQuery], bool]
FLOAT_BYTES = 4


def _pointer(array: Any, kind: str = "float *") -> Any:
    return compiler.ffi(compiler.CDEF).cast(kind, address(array))


def _null() -> Any:
    return compiler.ffi(compiler.CDEF).NULL


def _all_float32(query: KernelQuery) -> bool:
    return all(t.dtype.name == "float32" for t in (*query.inputs, *query.outputs))


def _kernel(
    op: str, bind: Callable[[BindContext], Launch | list[Launch]], accepts: Accepts = _all_float32,
    workspace: Callable[[KernelQuery], int] | None = None,
) -> KernelSpec:  # fmt: skip
    def takes(query: KernelQuery) -> bool:
        return accepts(query) and query.inputs[0].size > 0 and compiler.available()

    return KernelSpec(op, "cpu", bind, takes, PRIORITY, workspace, f"c.{op}")


# --- updates

COMMON = ("scale", "l1", "l2", "weight_decay")
UPDATES = {
    "sgd_update": ("sgd", 0, ()),
    "momentum_update": ("momentum", 1, ("beta",)),
    "adam_update": ("adam", 2, ("beta1", "beta2", "epsilon")),
}
"""C function, number of states, attributes beyond the common ones."""


def _update(ctx: BindContext) -> Launch:
    name, states, extra = UPDATES[ctx.query.op]
    model, diff, rate, *rest = ctx.inputs
    factor = _pointer(rest[states]) if len(rest) > states else _null()
    arrays = [_pointer(a) for a in (model, diff, *rest[:states], rate)]
    numbers = [float(ctx.attrs[k]) for k in (*COMMON, *extra)]
    return partial(getattr(compiler.native(), name), *arrays, factor, model.size, *numbers)


# --- masks


def _is_mask(query: KernelQuery) -> bool:
    return query.outputs[0].dtype.name == "int8" and query.attrs["place"] is None


def _mask(ctx: BindContext) -> Launch:
    (keep,), seed = ctx.outputs, ctx.attrs["seed"]
    key = (ctx.seed if seed is None else int(seed)) & (1 << 64) - 1
    step = _pointer(ctx.step, "int64_t *")
    rate = ctx.attrs["rate"]
    launch: Any = partial(
        compiler.native().mask, _pointer(keep, "int8_t *"), step, key, keep.size, rate
    )
    return _keeping(launch, ctx.step)


def _keeping(launch: Launch, *arrays: Any) -> Launch:
    """A launch that keeps arrays alive whose addresses it knows."""
    launch.arrays = arrays  # type: ignore[attr-defined]  # partials have attributes
    return launch


# --- sums


def _sum_form(query: KernelQuery) -> tuple[str, int, int] | None:
    """Which loop sums, and its rows and columns; None where neither leading nor last axes go."""
    shape, axes = query.inputs[0].shape, query.attrs["axis"]
    if not isinstance(axes, tuple) or not axes:
        return None
    gone = sorted(a % len(shape) for a in axes)
    if gone == list(range(len(gone))) and len(gone) < len(shape):
        return "column", prod(shape[: len(gone)]), prod(shape[len(gone) :])
    if gone == list(range(len(shape) - len(gone), len(shape))):
        cut = len(shape) - len(gone)
        return "row", prod(shape[:cut]), prod(shape[cut:])
    return None


def _sums(query: KernelQuery) -> bool:
    return _all_float32(query) and _sum_form(query) is not None


def _parts(rows: int) -> int:
    return max(1, min(threads.count(), rows))


def _sum_bytes(query: KernelQuery) -> int:
    form = _sum_form(query)
    if form is None or form[0] == "row":
        return 0
    return padded(_parts(form[1]) * form[2] * FLOAT_BYTES)


def _sum(ctx: BindContext) -> Launch:
    form = _sum_form(ctx.query)
    lib = compiler.native()
    x, y = _pointer(ctx.inputs[0]), _pointer(ctx.outputs[0])
    kind, rows, columns = form or ("row", 1, ctx.inputs[0].size)
    if kind == "row":
        return partial(lib.row_sums, x, y, rows, columns)
    partial_sums = _pointer(ctx.workspace)
    return partial(lib.column_sums, x, y, partial_sums, rows, columns, _parts(rows))


# --- losses

WIDTHS = {"int64": 8, "int32": 4, "int8": 1, "uint8": -1}


def _labelled(query: KernelQuery) -> bool:
    floats = (*query.inputs[:1], *query.inputs[2:], *query.outputs)
    return query.inputs[1].dtype.name in WIDTHS and all(t.dtype.name == "float32" for t in floats)


def _loss_arguments(ctx: BindContext) -> tuple[Any, ...]:
    x, label = ctx.inputs[:2]
    width = WIDTHS[ctx.query.inputs[1].dtype.name]
    return x.size // x.shape[-1], x.shape[-1], width, _pointer(label, "void *")


def _loss(ctx: BindContext) -> Launch:
    rows, columns, width, label = _loss_arguments(ctx)
    prob, loss = map(_pointer, ctx.outputs)
    run = partial(
        compiler.native().cross_entropy,
        _pointer(ctx.inputs[0]), label, prob, loss, rows, columns, width,
    )  # fmt: skip
    labels = ctx.inputs[1]

    def launch() -> None:
        if run():
            _raise_label(ctx.query.op, labels, columns)

    return launch


def _raise_label(op: str, label: Any, depth: int) -> None:
    bad = label[(label < 0) | (label >= depth)]
    raise DataError(
        f"running {op}",
        found=f"{bad.size} of {label.size} labels outside of the classes, such as {bad.flat[0]}",
        allowed=f"0 <= label < {depth}, the number of classes",
    )


def _loss_grad(ctx: BindContext) -> Launch:
    rows, columns, width, label = _loss_arguments(ctx)
    prob, _, dy = ctx.inputs
    return partial(
        compiler.native().cross_entropy_grad,
        _pointer(prob), label, _pointer(dy), _pointer(ctx.outputs[0]), rows, columns, width,
    )  # fmt: skip


# --- layer normalisation


def _rows(query: KernelQuery) -> tuple[int, int]:
    shape = query.inputs[0].shape
    axis: Any = query.attrs["begin_norm_axis"]
    return prod(shape[: axis % len(shape)]), prod(shape[axis % len(shape) :])


def _params_per_row(query: KernelQuery) -> bool:
    """Whether the parameters have the shape of a row."""
    rank = len(query.inputs[0].shape)
    norm, params = (query.attrs[f"begin_{k}_axis"] % rank for k in ("norm", "params"))
    return _all_float32(query) and norm == params


def _layer_norm(ctx: BindContext) -> Launch:
    rows, columns = _rows(ctx.query)
    x, *params = ctx.inputs
    gamma = _pointer(params.pop()) if ctx.attrs["scale"] else _null()
    beta = _pointer(params.pop()) if ctx.attrs["center"] else _null()
    outputs = map(_pointer, ctx.outputs)
    epsilon = ctx.attrs["epsilon"]
    return partial(
        compiler.native().layer_norm, _pointer(x), beta, gamma, *outputs, rows, columns, epsilon
    )


def _layer_norm_grad(ctx: BindContext) -> Launch:
    arrays = map(_pointer, (*ctx.inputs, *ctx.outputs))
    return partial(compiler.native().layer_norm_grad, *arrays, *_rows(ctx.query))


def _gamma_bytes(query: KernelQuery) -> int:
    rows, columns = _rows(query)
    return padded(_parts(rows) * columns * FLOAT_BYTES)


def _layer_norm_gamma_grad(ctx: BindContext) -> Launch:
    rows, columns = _rows(ctx.query)
    arrays = map(_pointer, (*ctx.inputs, *ctx.outputs, ctx.workspace))
    run = compiler.native().layer_norm_gamma_grad
    return partial(run, *arrays, rows, columns, _parts(rows))


# --- rows of tables


def _indexed(query: KernelQuery) -> bool:
    """Rows along the first axis, float32, by indices that we read."""
    floats = (*query.inputs[:1], *query.inputs[2:], *query.outputs)
    return (
        query.attrs["axis"] == 0
        and query.inputs[1].dtype.name in ("int32", "int64")
        and query.inputs[1].size > 0
        and all(t.dtype.name == "float32" and t.size for t in floats)
    )


def _index(ctx: BindContext, k: int = 1) -> tuple[Any, int, int, int]:
    """Pointer to an input of indices, how many, their width, and the first row's number."""
    index: Any = ctx.inputs[k]
    first: Any = ctx.attrs["first"]
    return _pointer(index, "void *"), index.size, index.itemsize, first


def _gather(ctx: BindContext) -> Launch:
    table, (out,) = ctx.inputs[0], ctx.outputs
    index, count, width, first = _index(ctx)
    rows, columns = table.shape[0], prod(table.shape[1:])
    run = compiler.native().gather
    return partial(run, _pointer(table), index, _pointer(out), count, rows, columns, width, first)


def _segment_sum(ctx: BindContext) -> Launch:
    data, (out,) = ctx.inputs[0], ctx.outputs
    index, count, width, first = _index(ctx)
    rows, columns = out.shape[0], prod(out.shape[1:])
    return partial(
        compiler.native().segment_sum,
        _pointer(data), index, _pointer(out), count, rows, columns, width, first, _parts(rows),
    )  # fmt: skip


def _add_to_rows(ctx: BindContext) -> list[Launch]:
    base, data, (out,) = ctx.inputs[0], ctx.inputs[2], ctx.outputs
    index, count, width, first = _index(ctx)
    rows, columns = out.shape[0], prod(out.shape[1:])
    add = partial(
        compiler.native().add_to_rows,
        _pointer(out), _pointer(data), index, count, rows, columns, width, first, _parts(rows),
    )  # fmt: skip
    in_place = address(base) == address(out)
    return [add] if in_place else [partial(np.copyto, out, base), add]


def _sparse_sgd(ctx: BindContext) -> Launch:
    model, _, data, rate, *factor = ctx.inputs
    where, count, width, first = _index(ctx)
    rows, columns = model.shape[0], prod(model.shape[1:])
    return partial(
        compiler.native().sparse_sgd,
        _pointer(model), _pointer(data), where, _pointer(rate),
        _pointer(factor[0]) if factor else _null(),
        count, rows, columns, width, first, _parts(rows), ctx.attrs["scale"],
    )  # fmt: skip


ADAM_PARTS = 4
"""Parts per thread: rows that are looked up often lie together."""


def _sparse_adam_bytes(query: KernelQuery) -> int:
    """A number per row of the table, and the rows looked up."""
    slots = padded(query.inputs[0].shape[0] * FLOAT_BYTES)
    return slots + padded(query.inputs[2].nbytes)


def _sparse_adam(ctx: BindContext) -> Launch:
    model, _, data, rate, m, v, *factor = ctx.inputs
    where, count, width, first = _index(ctx)
    rows, columns = model.shape[0], prod(model.shape[1:])
    sums = ctx.workspace[padded(rows * FLOAT_BYTES) :]
    numbers = [ctx.attrs[k] for k in ("scale", "beta1", "beta2", "epsilon")]
    return partial(
        compiler.native().sparse_adam,
        _pointer(model), _pointer(data), where, _pointer(m), _pointer(v), _pointer(rate),
        _pointer(factor[0]) if factor else _null(),
        _pointer(ctx.workspace, "int32_t *"), _pointer(sums),
        count, rows, columns, width, first, min(rows, ADAM_PARTS * threads.count()), *numbers,
    )  # fmt: skip


KERNELS: tuple[KernelSpec, ...] = (
    *(_kernel(op, _update) for op in UPDATES),
    _kernel("random_mask_like", _mask, _is_mask),
    _kernel("reduce_sum", _sum, _sums, _sum_bytes),
    _kernel("sparse_softmax_cross_entropy", _loss, _labelled),
    _kernel("sparse_softmax_cross_entropy_grad", _loss_grad, _labelled),
    _kernel("gather", _gather, _indexed),
    _kernel("unsorted_segment_sum", _segment_sum, _indexed),
    _kernel("onednn_add_to_rows", _add_to_rows, _indexed),
    _kernel("onednn_sparse_sgd", _sparse_sgd, _indexed),
    _kernel("onednn_sparse_adam", _sparse_adam, _indexed, _sparse_adam_bytes),
    _kernel("layer_norm", _layer_norm, _params_per_row),
    _kernel("layer_norm_grad", _layer_norm_grad),
    _kernel("layer_norm_gamma_grad", _layer_norm_gamma_grad, _params_per_row, _gamma_bytes),
)
