"""Calls of the top-level functions on shapes, regions and indices; see `public_math`."""

from __future__ import annotations

from typing import Any

import numpy as np
from public_math import Call, as8, f32, i32

import oneflow as flow

RNG = np.random.default_rng(4)
X, T = f32(4, 3), f32(2, 3, 4)
IDS = np.array([1, 0, 2, 1], np.int32)


def segments(data: Any, ids: Any, number: int) -> Any:
    total = np.zeros((number, *data.shape[ids.ndim :]), data.dtype)
    np.add.at(total, ids, data)
    return total


def put(base: Any, indices: Any, updates: Any) -> Any:
    base = base.copy()
    base[tuple(np.moveaxis(indices, -1, 0))] = updates
    return base


def added(base: Any, indices: Any, updates: Any) -> Any:
    base = base.copy()
    np.add.at(base, tuple(np.moveaxis(indices, -1, 0)), updates)
    return base


def expect(value: Any) -> Any:
    return lambda *arrays: value


SHAPE: dict[str, Call] = {
    "reshape": (lambda x: flow.reshape(x, (2, -1)), (X,), lambda x: x.reshape(2, -1)),
    "reshape: list": (lambda x: flow.reshape(x, [12]), (X,), lambda x: x.reshape(12)),
    "reshape_like": (flow.reshape_like, (X, f32(2, 6)), lambda x, like: x.reshape(2, 6)),
    "dynamic_reshape": (
        lambda x: flow.dynamic_reshape(x, (3, -1)),
        (X,),
        lambda x: x.reshape(3, 4),
    ),
    "flatten": (flow.flatten, (T,), np.ravel),
    "flatten: from 1": (lambda x: flow.flatten(x, start_dim=1), (T,), lambda x: x.reshape(2, 12)),
    "flatten: to -2": (lambda x: flow.flatten(x, 0, -2), (T,), lambda x: x.reshape(6, 4)),
    "squeeze": (flow.squeeze, (f32(1, 3, 1, 2),), np.squeeze),
    "squeeze: axes": (
        lambda x: flow.squeeze(x, [-2]),
        (f32(1, 3, 1, 2),),
        lambda x: x.squeeze(2),
    ),
    "expand_dims": (lambda x: flow.expand_dims(x, 1), (X,), lambda x: x[:, None]),
    "expand_dims: last": (lambda x: flow.expand_dims(x, -1), (X,), lambda x: x[..., None]),
    "expand_dims: first": (lambda x: flow.expand_dims(x, -3), (X,), lambda x: x[None]),
    "identity": (flow.identity, (X,), lambda x: x),
    "identity_n": (lambda *xs: flow.identity_n(xs), (X, T), lambda *xs: xs),
    "amp_white_identity": (flow.amp_white_identity, (X,), lambda x: x),
    "cast_to_current_logical_view": (flow.cast_to_current_logical_view, (X,), lambda x: x),
    "transpose": (lambda x: flow.transpose(x, (2, 0, 1)), (T,), lambda x: x.transpose(2, 0, 1)),
    "transpose: negative": (
        lambda x: flow.transpose(x, [0, -1, -2]),
        (T,),
        lambda x: x.transpose(0, 2, 1),
    ),
    "broadcast_like": (
        flow.broadcast_like,
        (f32(3), T.swapaxes(1, 2)),
        lambda x, like: np.broadcast_to(x, like.shape),
    ),
    "broadcast_like: axes": (
        lambda x, like: flow.broadcast_like(x, like, broadcast_axes=(1,)),
        (f32(2, 4), T),
        lambda x, like: np.broadcast_to(x[:, None], like.shape),
    ),
    "broadcast_to_compatible_with": (
        lambda x, *more: flow.broadcast_to_compatible_with(x, more),
        (f32(4, 1, 1), f32(1, 2, 1), f32(1, 1, 3)),
        lambda x, *more: np.broadcast_to(x, (4, 2, 3)),
    ),
    "math.broadcast_to_compatible_with": (
        lambda x, y: flow.math.broadcast_to_compatible_with(x, [y]),
        (f32(1, 3), X),
        lambda x, y: np.broadcast_to(x, (4, 3)),
    ),
    "cast_to_static_shape": (flow.cast_to_static_shape, (X,), lambda x: x),
    "elem_cnt": (flow.elem_cnt, (T,), expect(np.array([24], "i4"))),
    "elem_cnt: int64": (lambda x: flow.elem_cnt(x, flow.int64), (T,), expect(np.array([24]))),
}

SOURCE: dict[str, Call] = {
    "constant": (
        lambda: flow.constant(3, flow.float, (2, 3)),
        (),
        expect(np.full((2, 3), 3, "f4")),
    ),
    "constant: no shape": (lambda: flow.constant(1.5, flow.double), (), expect(np.full(1, 1.5))),
    "constant_scalar": (
        lambda: flow.constant_scalar(7, flow.int8),
        (),
        expect(np.full(1, 7, "i1")),
    ),
    "constant_like": (
        lambda x: flow.constant_like(x, 5.5),
        (X,),
        lambda x: np.full_like(x, 5.5),
    ),
    "constant_like: int8": (
        lambda x: flow.constant_like(x, 2, flow.int8),
        (X,),
        lambda x: np.full(x.shape, 2, "i1"),
    ),
    "zeros": (lambda: flow.zeros((2, 2)), (), expect(np.zeros((2, 2), "f4"))),
    "ones": (lambda: flow.ones([3], flow.int64), (), expect(np.ones(3, "i8"))),
    "zeros_like": (flow.zeros_like, (X,), np.zeros_like),
    "ones_like": (
        lambda x: flow.ones_like(x, dtype=flow.double),
        (X,),
        lambda x: np.ones(x.shape),
    ),
    "range": (lambda: flow.range(5, dtype=flow.int64), (), expect(np.arange(5))),
    "range: three numbers": (
        lambda: flow.range(2, 11, 3, dtype=flow.float),
        (),
        expect(np.arange(2, 11, 3).astype("f4")),
    ),
    "range: ragged": (
        lambda: flow.range(0, 7, 3, flow.int32),
        (),
        expect(np.array([0, 3, 6], "i4")),
    ),
}

SELECT: dict[str, Call] = {
    "concat": (lambda *xs: flow.concat(xs, 1), (X, f32(4, 2)), lambda *xs: np.concatenate(xs, 1)),
    "concat: values, negative axis": (
        lambda *xs: flow.concat(values=list(xs), axis=-2),
        (X, f32(2, 3), X),
        lambda *xs: np.concatenate(xs),
    ),
    "concat: integers": (
        lambda *xs: flow.concat(xs),
        (i32(2, 2), i32(3, 2)),
        lambda *xs: np.concatenate(xs),
    ),
    "concat: one": (lambda x: flow.concat([x]), (X,), lambda x: x),
    "stack": (lambda *xs: flow.stack(xs), (X, X + 1), lambda *xs: np.stack(xs)),
    "stack: last": (lambda *xs: flow.stack(list(xs), -1), (X, X + 1), lambda *xs: np.stack(xs, -1)),
    "slice": (
        lambda x: flow.slice(x, begin=[None, 1, 1], size=[None, -1, 2]),
        (T,),
        lambda x: x[:, 1:, 1:3],
    ),
    "slice: negative": (lambda x: flow.slice(x, [-3, -2], [2, 2]), (X,), lambda x: x[1:3, 1:]),
    "slice_v2": (
        lambda x: flow.slice_v2(x, [[0, 2, 1], (2, None, -2), (None, None, 3)]),
        (T,),
        lambda x: x[:, 2::-2, ::3],
    ),
    "slice_v2: fewer rows": (lambda x: flow.slice_v2(x, [(-2, -1, 1)]), (X,), lambda x: x[-2:-1]),
    "slice_update": (
        lambda x, u: flow.slice_update(x, u, [(1, 3, 1), (None, None, 2)]),
        (X, f32(2, 2)),
        lambda x, u: np.concatenate([x[:1], np.stack([u[:, 0], x[1:3, 1], u[:, 1]], 1), x[3:]]),
    ),
    "experimental.logical_slice": (
        lambda x: flow.experimental.logical_slice(x, [(1, 4, 2), (-2, None, 1)]),
        (X,),
        lambda x: x[1:4:2, -2:],
    ),
    "reverse": (lambda x: flow.reverse(x, [0, -1]), (T,), lambda x: x[::-1, :, ::-1]),
    "reverse: one axis": (lambda x: flow.reverse(x, -2), (T,), lambda x: x[:, ::-1]),
    "pad": (
        lambda x: flow.pad(x, [(1, 0), (2, 3)], 1.5),
        (X,),
        lambda x: np.pad(x, [(1, 0), (2, 3)], constant_values=1.5),
    ),
    "pad: integers": (
        lambda x: flow.pad(x, ((0, 1), (0, 0)), -1),
        (i32(2, 2),),
        lambda x: np.pad(x, [(0, 1), (0, 0)], constant_values=-1),
    ),
    "pad_grad": (lambda x: flow.pad_grad(x, [(1, 0), (0, 2)]), (X,), lambda x: x[1:, :1]),
    "same_padding": (
        lambda x: flow.same_padding(x, "same_upper", "NCHW", (2, 3), (1, 2), (1, 2)),
        (f32(1, 2, 3, 4),),
        lambda x: np.pad(x, [(0, 0), (0, 0), (0, 1), (1, 2)]),
    ),
    "same_padding: lower, last": (
        lambda x: flow.same_padding(x, "SAME_LOWER", "NHWC", (2, 3), (1, 2), (1, 2)),
        (f32(1, 3, 4, 2),),
        lambda x: np.pad(x, [(0, 0), (1, 0), (2, 1), (0, 0)]),
    ),
    "reflection_pad2d": (
        lambda x: flow.reflection_pad2d(x, [0, 0, 1, 2]),
        (f32(1, 2, 3, 3),),
        lambda x: np.pad(x, [(0, 0), (0, 0), (1, 1), (2, 2)], mode="reflect"),
    ),
    "reflection_pad2d: one number": (
        lambda x: flow.reflection_pad2d(x, 2),
        (f32(2, 1, 3, 4),),
        lambda x: np.pad(x, [(0, 0), (0, 0), (2, 2), (2, 2)], mode="reflect"),
    ),
}

WORDS = np.array([[2, 0], [3, 1]], np.int32)
BATCH_IDS = np.array([[1, 0, 1], [2, 2, 0]], np.int32)

INDEX: dict[str, Call] = {
    "gather": (flow.gather, (X, IDS), lambda x, i: x[i]),
    "gather: axis": (lambda x, i: flow.gather(x, i, axis=-1), (T, WORDS), lambda x, i: x[:, :, i]),
    "gather: out of range": (
        flow.gather,
        (X, np.array([1, 9, -3], "i4")),
        lambda x, i: np.stack([x[1], 0 * x[0], 0 * x[0]]),
    ),
    "gather: batch_dims": (
        lambda x, i: flow.gather(x, i, batch_dims=1),
        (T, BATCH_IDS),
        lambda x, i: np.take_along_axis(x, i[:, :, None], 1),
    ),
    "gather: batch_dims that are all axes of the indices": (
        lambda x, i: flow.gather(x, i, axis=2, batch_dims=2),
        (T, BATCH_IDS),
        lambda x, i: np.take_along_axis(x, i[:, :, None], 1),
    ),
    "gather: of int8 by int64": (
        flow.gather,
        (as8(i32(5, 2)), IDS.astype("i8")),
        lambda x, i: x[i],
    ),
    "gather_nd": (flow.gather_nd, (X, WORDS), lambda x, i: x[i[:, 0], i[:, 1]]),
    "gather_nd: slices": (flow.gather_nd, (X, WORDS[:, :1]), lambda x, i: x[i[:, 0]]),
    "scatter_nd": (
        lambda i, u: flow.scatter_nd(i, u, (4, 3)),
        (WORDS, f32(2)),
        lambda i, u: added(np.zeros((4, 3), "f4"), i, u),
    ),
    "scatter_nd: rows that meet": (
        lambda i, u: flow.scatter_nd(i, u, [4, 3]),
        (np.array([[1], [1]], "i4"), f32(2, 3)),
        lambda i, u: added(np.zeros((4, 3), "f4"), i, u),
    ),
    "tensor_scatter_nd_update": (flow.tensor_scatter_nd_update, (X, WORDS, f32(2)), put),
    "tensor_scatter_nd_add": (flow.tensor_scatter_nd_add, (X, WORDS[:, :1], f32(2, 3)), added),
    "dim_gather": (
        lambda x, i: flow.dim_gather(x, 1, i),
        (X, i32(4, 5, low=0, high=3)),
        lambda x, i: np.take_along_axis(x, i, 1),
    ),
    "math.unsorted_segment_sum": (
        lambda d, i: flow.math.unsorted_segment_sum(d, i, 3),
        (X, IDS),
        lambda d, i: segments(d, i, 3),
    ),
    "unsorted_segment_sum": (
        lambda d, i: flow.unsorted_segment_sum(d, i, num_segments=5, axis=0),
        (X, IDS),
        lambda d, i: segments(d, i, 5),
    ),
    "unsorted_segment_sum: axis 1": (
        lambda d, i: flow.unsorted_segment_sum(d, i, 4, axis=1),
        (T, np.array([3, 0, 3], "i4")),
        lambda d, i: np.moveaxis(segments(np.moveaxis(d, 1, 0), i, 4), 0, 1),
    ),
    "math.unsorted_segment_sum_like": (
        flow.math.unsorted_segment_sum_like,
        (X, IDS, f32(3, 3)),
        lambda d, i, like: segments(d, i, 3),
    ),
    "unsorted_segment_sum_like": (
        flow.unsorted_segment_sum_like,
        (X, IDS, f32(6, 3)),
        lambda d, i, like: segments(d, i, 6),
    ),
    "math.unsorted_batch_segment_sum": (
        lambda d, i: flow.math.unsorted_batch_segment_sum(d, i, 3),
        (f32(2, 3), BATCH_IDS),
        lambda d, i: np.stack([segments(a, b, 3) for a, b in zip(d, i, strict=True)]),
    ),
    "unsorted_batch_segment_sum": (
        lambda d, i: flow.unsorted_batch_segment_sum(d, i, 4),
        (f32(2, 3, 2), BATCH_IDS),
        lambda d, i: np.stack([segments(a, b, 4) for a, b in zip(d, i, strict=True)]),
    ),
    "sort": (flow.sort, (X,), np.sort),
    "sort: descending, axis 0": (
        lambda x: flow.sort(x, 0, "DESCENDING"),
        (X,),
        lambda x: np.sort(x, 0)[::-1],
    ),
    "sort: integers": (lambda x: flow.sort(x, axis=-1), (i32(3, 5),), np.sort),
    "argsort": (flow.argsort, (X,), lambda x: np.argsort(x, kind="stable").astype("i4")),
    "argsort: descending, axis 1": (
        lambda x: flow.argsort(x, 1, direction="DESCENDING"),
        (T,),
        lambda x: np.argsort(-x, 1, kind="stable").astype("i4"),
    ),
    "one_hot": (
        lambda i: flow.one_hot(i, depth=3, dtype=flow.float),
        (IDS,),
        lambda i: np.eye(3, dtype="f4")[i],
    ),
    "one_hot: values, axis": (
        lambda i: flow.one_hot(i, 3, 5, -1, axis=0),
        (IDS,),
        lambda i: np.where(np.eye(3)[i].T, 5, -1).astype("i4"),
    ),
    "argwhere": (
        flow.argwhere,
        (np.array([[0, 2, 0], [1, 0, 3]], "f4"),),
        expect(np.array([[0, 1], [1, 0], [1, 2]], "i4")),
    ),
    "argwhere: int64": (
        lambda x: flow.argwhere(x, dtype=flow.int64),
        (np.array([0, 2, 0, 1], "i4"),),
        expect(np.array([[1], [3]])),
    ),
    "where: condition only": (flow.where, (np.array([0, 1], "i1"),), expect(np.array([[1]], "i4"))),
    "nonzero": (
        flow.nonzero,
        (np.array([[0, 2, 0], [1, 0, 3]], "f4"),),
        expect(np.array([[0, 1, 1], [1, 0, 2]], "i4")),
    ),
    "sync_dynamic_resize": (
        flow.sync_dynamic_resize,
        (X, np.array([2], "i4")),
        lambda x, n: x[:2],
    ),
    "count_not_finite": (
        flow.count_not_finite,
        (np.array([1, np.inf, np.nan, -np.inf], "f4"),),
        expect(np.array([3])),
    ),
    "multi_count_not_finite": (
        lambda *xs: flow.multi_count_not_finite(xs),
        (np.array([1, np.inf], "f4"), np.array([[np.nan], [-np.inf]], "f4")),
        expect(np.array([3])),
    ),
    "experimental.square_sum": (
        flow.experimental.square_sum,
        (X,),
        lambda x: np.array([(x * x).sum()]),
    ),
    "experimental.unique_with_counts": (
        flow.experimental.unique_with_counts,
        (np.array([3, 1, 3, 2, 1, 3], "i4"),),
        expect(
            (
                np.array([3, 1, 2, 0, 0, 0], "i4"),
                np.array([0, 1, 0, 2, 1, 0], "i4"),
                np.array([3, 2, 1, 0, 0, 0], "i4"),
                np.array([3], "i4"),
            )
        ),
    ),
    "experimental.indexed_slices_reduce_sum": (
        flow.experimental.indexed_slices_reduce_sum,
        (np.array([3, 1, 3], "i4"), f32(3, 2)),
        lambda i, v: (
            np.array([3, 1, 0], "i4"),
            np.stack([v[0] + v[2], v[1], v[1] * 0]),
            np.array([2]),
        ),
    ),
}

MATMUL: dict[str, Call] = {
    "matmul": (flow.matmul, (X, f32(3, 5)), np.matmul),
    "matmul: transposed": (
        lambda a, b: flow.matmul(a, b, transpose_a=True, transpose_b=True),
        (X, f32(5, 4)),
        lambda a, b: a.T @ b.T,
    ),
    "linalg.matmul": (flow.linalg.matmul, (T, f32(2, 4, 5)), np.matmul),
    "linalg.matmul: batch, transposed": (
        lambda a, b: flow.linalg.matmul(a, b, transpose_b=True),
        (f32(2, 2, 3, 4), f32(2, 2, 5, 4)),
        lambda a, b: a @ b.swapaxes(-1, -2),
    ),
    "matmul: a stack and a matrix": (flow.matmul, (f32(2, 2, 3, 4), f32(4, 5)), np.matmul),
    "matmul: a stack and a matrix, transposed and scaled": (
        lambda a, b: flow.matmul(a, b, transpose_b=True, alpha=0.5),
        (f32(2, 3, 4), f32(5, 4)),
        lambda a, b: a @ b.T / 2,
    ),
}


def norms(ord: Any, axis: Any, keepdims: bool = False) -> Call:
    return (
        lambda x: flow.linalg.norm(x, ord, axis, keepdims),
        (T,),
        lambda x: np.linalg.norm(x, ord, axis, keepdims),
    )


NORM: dict[str, Call] = {
    "linalg.norm": (flow.linalg.norm, (T,), lambda x: np.linalg.norm(x).reshape(1)),
    **{f"norm: {ord} of vectors": norms(ord, -1) for ord in (None, 1, 2, 2.5, np.inf, -np.inf)},
    **{f"norm: {ord} of matrices": norms(ord, (0, -1)) for ord in ("fro", 1, -1, np.inf, -np.inf)},
    "norm: kept axes": norms(1, (2, 1), True),
}

PARTS: dict[str, Call] = {
    "split": (
        lambda x: flow.split(x, 2, axis=1),
        (T.swapaxes(1, 2),),
        lambda x: (x[:, :2], x[:, 2:]),
    ),
    "split: indices": (
        lambda x: flow.split(x, [1, -1], axis=-1),
        (T,),
        lambda x: tuple(np.split(x, [1, -1], -1)),
    ),
    "split: sizes": (lambda x: flow.split(x, sizes=[1, 3]), (X,), lambda x: (x[:1], x[1:])),
    "split: size": (lambda x: flow.split(x, sizes=3), (X,), lambda x: (x[:3], x[3:])),
    "split: one part": (lambda x: flow.split(x, 1), (X,), lambda x: x),
    "unbind": (lambda x: flow.unbind(x, 1), (T,), lambda x: tuple(np.moveaxis(x, 1, 0))),
    "unbind: numbers": (flow.unbind, (f32(2),), lambda x: (x[:1], x[1:])),
    "roll": (lambda x: flow.roll(x, 4), (X,), lambda x: np.roll(x, 4)),
    "roll: axes": (
        lambda x: flow.roll(x, (1, -5), (0, 2)),
        (T,),
        lambda x: np.roll(x, (1, -5), (0, 2)),
    ),
    "roll: one shift": (lambda x: flow.roll(x, 2, (1, 2)), (T,), lambda x: np.roll(x, 2, (1, 2))),
    "cumsum": (lambda x: flow.cumsum(x, 1), (X,), lambda x: x.cumsum(1)),
    "cumsum: all": (flow.cumsum, (i32(2, 3),), lambda x: x.cumsum(dtype="i4")),
    "cumsum: exclusive, reverse": (
        lambda x: flow.cumsum(x, -2, exclusive=True, reverse=True),
        (T,),
        lambda x: np.flip(np.cumsum(np.flip(x, 1), 1), 1) - x,
    ),
}

CALLS: dict[str, Call] = {**SHAPE, **SOURCE, **SELECT, **INDEX, **MATMUL, **NORM, **PARTS}
