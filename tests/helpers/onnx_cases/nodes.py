"""Cases of each ONNX operator that `flow.onnx.load` supports, as models of one node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from onnx_cases.case import Case
from onnx_cases.recurrent import recurrent_cases

FLOATS = ("float32", "float64", "float16")
INTEGERS = ("int32", "int64", "int8", "uint8")
NUMBERS = (*FLOATS, *INTEGERS)
TYPES = (*NUMBERS, "bool")
NAN, INF = float("nan"), float("inf")


def special(dtype: str) -> Any:
    """Return the extreme and some ordinary numbers of an element type."""
    if dtype == "bool":
        return np.array([False, True])
    if dtype.startswith("float"):
        return np.array(
            [-INF, -200, -3, -2.5, -1.5, -1, -0.5, -0.0, 0, 0.25, 0.5, 1, 1.5, 2, 3, 90, INF, NAN],
            dtype,
        )
    bounds = np.iinfo(dtype)
    ordinary = [n for n in (-7, -2, -1, 0, 1, 2, 7) if n >= bounds.min]
    return np.array([bounds.min, bounds.min + 1, *ordinary, bounds.max - 1, bounds.max], dtype)


def ordinary(dtype: str, *shape: int) -> Any:
    """Return distinct small numbers, half of which are negative in signed types, out of order."""
    size = int(np.prod(shape))
    numbers = (np.arange(size) * 7 + 3) % size
    if dtype == "bool":
        return (numbers % 2 == 0).reshape(shape)
    if dtype.startswith("uint"):
        return numbers.astype(dtype).reshape(shape)
    centered = numbers - size // 2
    return (centered / 2 if dtype.startswith("float") else centered).astype(dtype).reshape(shape)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def i64(value: Any) -> Any:
    return np.array(value, np.int64)


UNARY = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp",
    "Floor", "HardSwish", "Log", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin",
    "Sinh", "Softplus", "Sqrt", "Tan", "Tanh", "Not", "Identity", "IsNaN", "Mish", "Softsign",
    "Elu", "LeakyRelu", "Selu", "HardSigmoid", "Gelu",
)  # fmt: skip
ALPHAS = {
    "Elu": ({"alpha": 0.5},), "LeakyRelu": ({"alpha": -0.3},), "Gelu": ({"approximate": "tanh"},),
    "Selu": ({"alpha": 2.0, "gamma": 0.5},), "HardSigmoid": ({"alpha": 1 / 6, "beta": 0.5},),
}  # fmt: skip


def unary_cases() -> Iterator[Case]:
    for op in UNARY:
        for dtype in TYPES:
            for attrs in ({}, *ALPHAS.get(op, ())):
                yield Case(op, (special(dtype),), attrs)


COMPARED = (
    "Add", "Sub", "Mul", "Max", "Min", "And", "Or", "Xor", "Equal", "Greater", "GreaterOrEqual",
    "Less", "LessOrEqual", "PRelu", "Sum", "Mean",
)  # fmt: skip


def pairs(dtype: str) -> tuple[Any, Any]:
    """Return all pairs of special numbers, as two arrays of equal shape."""
    x = special(dtype)
    a, b = np.broadcast_arrays(x[:, None], x[None])
    return a.copy(), b.copy()


def divisible(dtype: str) -> tuple[Any, Any]:
    """Return pairs for quotients, of which integer ones are defined."""
    a, b = pairs(dtype)
    if dtype.startswith("float"):
        return a, b
    b = np.where(b == 0, 3, b)
    least = np.iinfo(dtype).min
    return a, np.where((a == least) & (b.astype(np.int64) == -1), 2, b).astype(dtype)


def binary_cases() -> Iterator[Case]:
    for dtype in TYPES:
        for op in COMPARED:
            yield Case(op, pairs(dtype), fed=(0, 1))
            x = special(dtype)
            yield Case(op, (x.reshape(-1, 1), x[1:2]), opsets=(7, 99))
        if dtype != "bool":
            yield Case("Div", divisible(dtype), fed=(0, 1))
            yield Case("Mod", divisible(dtype), {"fmod": 1}, fed=(0, 1))
            yield Case("Mod", divisible(dtype), fed=(0, 1))
            yield Case("Sub", (special(dtype), special(dtype)[-1:]), opsets=(7, 99))
    for op in ("Max", "Min", "Sum", "Mean"):
        x = special("float32")
        yield Case(op, (x, x[::-1].copy(), x[:1]), fed=(0, 1))
        yield Case(op, (x,))
    for a in NUMBERS:
        base = np.array([-3, -1, 0, 1, 2, 5] if a != "uint8" else [0, 1, 2, 5], a)
        for b in NUMBERS:
            exponent = np.array([2, 0, 1, 3] if b in INTEGERS else [2, 0.5, -1, 3], b)
            if a in INTEGERS:
                exponent = np.abs(exponent)
            yield Case("Pow", (base[:, None], exponent[None]), fed=(0, 1), opsets=(12, 99))
            yield Case("Pow", (base, exponent[:1]), opsets=(12, 99))
    yield Case("Pow", pairs("float32"), fed=(0, 1))


def selection_cases() -> Iterator[Case]:
    for dtype in TYPES:
        x = special(dtype)
        yield Case("Where", (np.arange(len(x)) % 2 == 0, x, x[::-1].copy()), fed=(0, 1, 2))
        yield Case("Where", (np.array([[True], [False]]), x, x[:1]), fed=(0, 1))
        for to in (*NUMBERS, "bool"):
            number = helper.np_dtype_to_tensor_dtype(np.dtype(to))
            kept = x if dtype == "bool" else convertible(x, to)
            yield Case("Cast", (kept,), {"to": number}, opsets=(6, 99))
            yield Case("CastLike", (kept, np.ones(1, to)), opsets=(15, 99))
        for low, high in ((-1, 2), (None, 1), (-2, None), (2, 1)):
            limits = [None if v is None else np.array(max(v, 0) if dtype == "uint8" else v, dtype)
                      for v in (low, high)]  # fmt: skip
            if dtype != "bool":
                yield Case("Clip", (x, *limits), moved={1: "min", 2: "max"})
    x = special("float32")
    for low, high in ((-INF, 1), (0, INF), (INF, None), (-INF, INF), (-3.4e38, 3.4e38)):
        limits = [None if v is None else np.array(v, np.float32) for v in (low, high)]
        yield Case("Clip", (x, *limits), moved={1: "min", 2: "max"})
    for dtype in FLOATS:
        x = special(dtype)
        yield Case("Dropout", (x,))
        yield Case("Dropout", (x,), outputs=2, opsets=(12, 99))
        yield Case("Dropout", (x, np.array(0.5, np.float32)), opsets=(12, 99))
        yield Case("Dropout", (x, np.array(0.5, np.float32), np.array(True)), opsets=(12, 99))


def convertible(x: Any, to: str) -> Any:
    """Return the numbers whose conversion is defined."""
    if to.startswith("float") or to == "bool":
        return x
    bounds = np.iinfo(to)
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float64)
        inside = (wide > bounds.min - 1) & (wide < min(bounds.max, 2**62))
    return x[np.isfinite(wide) & (inside if x.dtype.kind == "f" else True)]


REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip


def reduction_cases() -> Iterator[Case]:
    infinite = np.array([[-INF, -INF], [INF, 1], [INF, -INF], [NAN, 1], [1, 2], [-90, 90]])
    for op in REDUCTIONS:
        moved = {1: "axes"}
        for dtype in TYPES:
            x = ordinary(dtype, 2, 3, 2)
            for axes in (None, ints(1), ints(-1), ints(0, 2), ints(2, -3)):
                for keep in (0, 1):
                    yield Case(op, (x, axes), {"keepdims": keep}, moved=moved)
            yield Case(op, (x, ints(3)), moved=moved)
            if dtype.startswith("float"):
                yield Case(op, (infinite.astype(dtype), ints(1)), moved=moved)
            elif op in ("ReduceMax", "ReduceMin", "ReduceMean") and dtype != "bool":
                yield Case(op, (special(dtype)[::-1].copy(), ints(0)), moved=moved)
        x = ordinary("float32", 2, 3)
        yield Case(op, (x, ints()), {"noop_with_empty_axes": 1}, opsets=(18, 99))
        yield Case(op, (x, None), {"noop_with_empty_axes": 1}, opsets=(18, 99))
    yield Case("ReduceMean", (np.array([7, 2, 4], np.int32),))
    yield Case("ReduceMean", (np.array([100, 200, 300], np.int64),), {"keepdims": 0})
    for dtype in ("float32", "float64", "int32", "int64"):
        for axis in (1, -1):
            for exclusive, reverse in ((0, 0), (1, 0), (0, 1), (1, 1)):
                attrs = {"exclusive": exclusive, "reverse": reverse}
                x = ordinary(dtype, 2, 3, 2)
                yield Case("CumSum", (x, np.array(axis)), attrs, opsets=(11, 99))
    for op in ("GlobalAveragePool", "GlobalMaxPool"):
        for dtype in FLOATS:
            yield Case(op, (ordinary(dtype, 2, 3, 4, 2),))
            yield Case(op, (special(dtype).reshape(1, 2, 9),))


def order_cases() -> Iterator[Case]:
    for dtype in TYPES:
        x = special(dtype)
        x = x[~np.isnan(x)] if dtype.startswith("float") else x
        yield Case("TopK", (ordinary(dtype, 2, 4), ints(2)), moved={1: "k"}, outputs=2)
        for op in ("ArgMax", "ArgMin"):
            for axis in (0, 1, -1, 2):
                yield Case(op, (ordinary(dtype, 3, 4),), {"axis": axis, "keepdims": axis % 2})
            yield Case(op, (x,), {"keepdims": 0})
            yield Case(op, (x[::-1].copy(),), {"select_last_index": 1}, opsets=(12, 99))
        for largest in (0, 1):
            attrs = {"largest": largest}
            shared: dict[str, Any] = {"moved": {1: "k"}, "outputs": 2}
            for k in (1, len(x)):
                yield Case("TopK", (x, ints(k)), attrs, opsets=(11, 99), **shared)
            rows = ordinary(dtype, 3, 4)
            yield Case("TopK", (rows, ints(2)), {**attrs, "axis": 0}, opsets=(11, 99), **shared)
        yield Case("TopK", (x, ints(len(x) + 1)), outputs=2, opsets=(10, 99))


def shape_cases() -> Iterator[Case]:
    for dtype in TYPES:
        x, one = ordinary(dtype, 2, 3, 4), ordinary(dtype, 1, 3, 1)
        yield from reshape_cases(x)
        yield from split_cases(x)
        yield from slice_cases(x)
        for axes in (None, ints(0), ints(-1), ints(0, 2), ints(1), ints(3)):
            yield Case("Squeeze", (one, axes), moved={1: "axes"})
        for axes in (ints(0), ints(-1), ints(0, 3), ints(0, 0), ints(5)):
            yield Case("Unsqueeze", (one, axes), moved={1: "axes"})
        for shape in ((2, 3, 4), (1,), (2, 1, 1, 4), (5,)):
            yield Case("Expand", (one, ints(*shape)))
        for repeats in ((2, 1, 3), (1, 1, 1), (0, 1, 1), (2, 2), (-1, 1, 1)):
            yield Case("Tile", (x, ints(*repeats)), opsets=(6, 99))
        for upper in (0, 1):
            for k in (0, 1, -1, 9, -9):
                yield Case("Trilu", (x, i64(k)), {"upper": upper})
    for upper in (0, 1):
        for k, fill in ((1, -INF), (0, -INF), (-1, INF), (1, NAN), (0, 1e38)):
            yield Case("Trilu", (np.full((4, 4), fill, np.float32), i64(k)), {"upper": upper})


def reshape_cases(x: Any) -> Iterator[Case]:
    for shape in ((6, 4), (0, -1), (-1, 2), (24,), (4, 0, -1), (5, -1), (-1, -1), (2, 3, 4, 0)):
        yield Case("Reshape", (x, ints(*shape)))
    yield Case("Reshape", (x, ints(2, 0, 4)), {"allowzero": 1}, opsets=(14, 99))
    for axis in (0, 1, 3, -1, 4):
        yield Case("Flatten", (x,), {"axis": axis})
    for perm in (None, (2, 0, 1), (0,), (0, 0, 1), (0, 1, 2)):
        yield Case("Transpose", (x,), {} if perm is None else {"perm": perm})
    yield Case("Shape", (x,))
    yield Case("Shape", (x,), {"start": -2, "end": 9}, opsets=(15, 99))
    yield Case("Size", (x,))


def split_cases(x: Any) -> Iterator[Case]:
    for axis in (0, -1, 2, 3):
        yield Case("Concat", (x, x), {"axis": axis}, fed=(0, 1))
    yield Case("Concat", (x,), {"axis": 0})
    for parts in (ints(1, 2), ints(2, 1), ints(1, 1), ints(4, 9), ints(3)):
        yield Case("Split", (x, parts), {"axis": 1}, moved={1: "split"}, outputs=2)
    for count, axis in ((2, 0), (2, -1), (2, 1), (3, 2), (2, 3)):
        yield Case("Split", (x,), {"axis": axis}, outputs=count, opsets=(2, 17))
        attrs = {"axis": axis, "num_outputs": count}
        yield Case("Split", (x,), attrs, outputs=count, opsets=(18, 99))


def slice_cases(x: Any) -> Iterator[Case]:
    moved = {1: "starts", 2: "ends", 3: "axes"}
    big = 2**63 - 1
    for start, end, axis in (
        (0, 2, 0),
        (-2, big, 2),
        (1, -1, -1),
        (5, 9, 2),
        (-9, 9, 2),
        (0, 1, 3),
    ):
        yield Case("Slice", (x, ints(start), ints(end), ints(axis)), moved=moved)
    for start, end, axis, step in (
        (-1, -9, 2, -1), (-20, -30, 2, -1), (-20, -20, 2, -1), (9, 0, 2, -2), (0, 4, 2, 3),
        (3, -1, 2, -1), (big, -big, 2, -1), (0, 4, 2, 0), (0, big, 2, big), (2, 1, 2, 1),
    ):  # fmt: skip
        yield Case("Slice", (x, *(ints(n) for n in (start, end, axis, step))), opsets=(10, 99))
    yield Case("Slice", (x, ints(1, 1), ints(3, 2), None, ints(1, 1)), opsets=(10, 99))


def index_cases() -> Iterator[Case]:
    for dtype in TYPES:
        x = ordinary(dtype, 3, 4)
        for fed in ((0,), (0, 1)):
            for index in (i64([-1, 0]), i64([[2, -3]]), np.array([0, -1], np.int32)):
                for axis in (0, 1, -1):
                    yield Case("Gather", (x, index), {"axis": axis}, fed=fed)
            elements = i64([[-1, -2, 0, 1]])
            yield Case("GatherElements", (x, elements), {"axis": 0}, fed=fed)
            yield Case("GatherElements", (x, i64([[0, -4], [3, 1]])), {"axis": -1}, fed=fed)
            for index in (i64([[-1, -1], [0, -2]]), i64([[-1], [0]]), i64([[[2, 3]]])):
                yield Case("GatherND", (x, index), fed=fed)
            yield Case("GatherND", (x, i64([[-1], [0], [2]])), {"batch_dims": 1}, fed=fed,
                       opsets=(12, 99))  # fmt: skip
            yield Case("ScatterND", (x, i64([[-1], [0]]), ordinary(dtype, 2, 4)), fed=(*fed, 2))
            yield Case("ScatterND", (x, i64([[-1, -4], [0, 2]]), ordinary(dtype, 2)), fed=(*fed, 2))
            for attrs in ({"reduction": "add"}, {}):
                shared: dict[str, Any] = {"fed": (*fed, 2), "opsets": (16, 99)}
                yield Case("ScatterND", (x, i64([[-1], [-1]]), ordinary(dtype, 2, 4)),
                           {"reduction": "add"}, **shared)  # fmt: skip
                updates = ordinary(dtype, 1, 4)
                yield Case("OneHot", (i64([0, 2]), ints(3), np.array([0, 1], dtype)), fed=fed[:1])
                yield Case("ScatterElements", (x, elements, updates), attrs, **shared)
            for axis in (-1, 0, 1):
                values = np.array([0, 1], dtype)
                hot = i64([0, -1, 2, 5, -9])
                yield Case("OneHot", (hot, ints(4), values), {"axis": axis}, fed=fed[:1])
        yield Case("Gather", (x, i64(7)), {"axis": 0})
        yield Case("Gather", (x, i64(-1)), {"axis": 1})
        yield Case("Gather", (x, i64([0])), {"axis": 3})
    for kind in ("int32", "float32", "uint8", "int8"):
        index = np.array([0, 1, 3, 7], kind)
        yield Case("OneHot", (index, np.array(300), np.array([-INF, 1], np.float32)))


PADS = (
    (1, 0, 0, 2), (0, -1, 0, -2), (-1, 2, 0, -1), (0, 0, 0, 0), (1, 1), (0, -3, 0, -3),
)  # fmt: skip


def border_cases() -> Iterator[Case]:
    moved = {1: "pads", 2: "value"}
    for dtype in TYPES:
        x = ordinary(dtype, 2, 4)
        for pads in PADS:
            yield Case("Pad", (x, ints(*pads)), moved=moved)
        for mode in ("reflect", "edge", "wrap"):
            opsets = (19 if mode == "wrap" else 2, 99)
            yield Case("Pad", (x, ints(1, 2, 0, 1)), {"mode": mode}, opsets=opsets, moved=moved)
        fill = np.array(1, dtype)
        yield Case("Pad", (x, ints(1, 0, 0, 2), fill), opsets=(11, 99))
        yield Case("Pad", (x, ints(1, 2), fill, ints(-1)), opsets=(18, 99))
    for value in (-INF, INF, NAN, -3.4e38):
        x = ordinary("float32", 2, 4)
        yield Case("Pad", (x, ints(1, 0, 0, 2), np.array(value, np.float32)), moved=moved)


def pool_cases() -> Iterator[Case]:
    for op in ("MaxPool", "AveragePool"):
        for dtype in ("float32", "float64", "float16", "int8", "uint8"):
            x = ordinary(dtype, 1, 2, 7)
            for attrs in (
                {"kernel_shape": [2]}, {"kernel_shape": [3], "strides": [2], "pads": [1, 1]},
                {"kernel_shape": [2], "strides": [3], "pads": [1, 1], "ceil_mode": 1},
                {"kernel_shape": [3], "strides": [2], "ceil_mode": 1},
                {"kernel_shape": [3], "strides": [2], "auto_pad": "SAME_UPPER"},
                {"kernel_shape": [2], "strides": [2], "auto_pad": "SAME_LOWER"},
                {"kernel_shape": [3], "auto_pad": "VALID"}, {"kernel_shape": [2, 2]},
                {"kernel_shape": [2], "dilations": [2]},
            ):  # fmt: skip
                if "ceil_mode" in attrs or "dilations" in attrs:
                    yield Case(op, (x,), attrs, opsets=(10 if "ceil_mode" in attrs else 19, 99))
                else:
                    yield Case(op, (x,), attrs)
        yield Case(op, (special("float32").reshape(1, 2, 9),), {"kernel_shape": [2]})
        x = ordinary("float32", 1, 2, 5, 6)
        yield Case(op, (x,), {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [1, 0, 0, 2]})
        yield Case(op, (x[..., :5],), {"kernel_shape": [2, 2], "strides": [3, 3],
                   "pads": [1, 1, 1, 1], "ceil_mode": 1}, opsets=(10, 99))  # fmt: skip
        yield Case(op, (ordinary("float32", 1, 2, 3, 4, 5),), {"kernel_shape": [2, 2, 2]})
    for ceil in (0, 1):
        attrs = {"kernel_shape": [3], "pads": [1, 1], "strides": [2], "count_include_pad": 1}
        yield Case("AveragePool", (ordinary("float32", 1, 2, 8),), {**attrs, "ceil_mode": ceil},
                   opsets=(10, 99))  # fmt: skip
    yield Case("MaxPool", (ordinary("float32", 1, 2, 6),), {"kernel_shape": [2]}, outputs=2,
               opsets=(8, 99))  # fmt: skip


def product_cases() -> Iterator[Case]:
    for dtype in NUMBERS:
        for a, b in (((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((3,), (4, 3, 2)),
                     ((4, 2, 3), (3,)), ((4, 1, 2, 3), (5, 3, 2)), ((2, 3), (4, 2))):  # fmt: skip
            yield Case("MatMul", (ordinary(dtype, *a), ordinary(dtype, *b)), fed=(0, 1))
        for attrs, shapes in (
            ({}, ((2, 3), (3, 4), (4,))), ({"transA": 1, "alpha": 2.0}, ((3, 2), (3, 4), (2, 1))),
            ({"transB": 1, "beta": 3.0}, ((2, 3), (4, 3), (2, 4))),
            ({}, ((2, 3), (3, 4), (1, 2, 4))),
        ):  # fmt: skip
            yield Case("Gemm", tuple(ordinary(dtype, *s) for s in shapes), attrs, fed=(0, 1))
    for dtype in FLOATS:
        x, w = ordinary(dtype, 1, 4, 6), ordinary(dtype, 2, 4, 3)
        for attrs in (
            {}, {"kernel_shape": [3]}, {"kernel_shape": [5]}, {"strides": [2], "pads": [1, 2]},
            {"auto_pad": "SAME_LOWER", "strides": [2]}, {"dilations": [2]}, {"pads": [1]},
            {"auto_pad": "VALID"}, {"strides": [0]},
        ):  # fmt: skip
            yield Case("Conv", (x, w), attrs, fed=(0, 1))
        yield Case("Conv", (x, ordinary(dtype, 4, 2, 3), ordinary(dtype, 4)), {"group": 2})
        yield Case("Conv", (x, ordinary(dtype, 4, 3, 3)))
        grown = ordinary(dtype, 4, 3, 3)
        for attrs in (
            {}, {"strides": [2], "output_padding": [1]}, {"pads": [1, 0]}, {"kernel_shape": [4]},
            {"group": 2, "strides": [2]}, {"auto_pad": "SAME_UPPER"}, {"output_shape": [9]},
        ):  # fmt: skip
            yield Case("ConvTranspose", (x, grown), attrs, fed=(0, 1))


def norm_cases() -> Iterator[Case]:
    for dtype in FLOATS:
        x = ordinary(dtype, 2, 4, 3)
        scale, shift = (np.linspace(a, b, 4).astype(dtype) for a, b in ((0.5, 2), (-1, 1)))
        moving = (shift * 2, scale + 1)
        yield Case("BatchNormalization", (x, scale, shift, *moving), opsets=(7, 99))
        attrs = {"epsilon": 0.1}
        yield Case("BatchNormalization", (x, scale, shift, *moving), attrs, opsets=(7, 99))
        yield Case("InstanceNormalization", (x, scale, shift), {"epsilon": 0.01})
        for groups in (1, 2, 4, 3):
            yield Case("GroupNormalization", (x, scale, shift), {"num_groups": groups},
                       opsets=(21, 99))  # fmt: skip
        for axis in (-1, 1, 0, 3):
            size = x.shape[axis:] if axis < 3 else (3,)
            gamma = ordinary(dtype, *size)
            yield Case("LayerNormalization", (x, gamma, gamma), {"axis": axis})
            yield Case("LayerNormalization", (x, gamma), {"axis": axis})
        for op in ("Softmax", "LogSoftmax"):
            for axis in (None, 0, 1, -1, 3):
                yield Case(op, (x,), {} if axis is None else {"axis": axis})
            rows = np.array([[-INF, 0, 1], [INF, 0, 1], [NAN, 0, 1], [900, 0, -900]], dtype)
            yield Case(op, (rows,), {"axis": 1})
    x = ordinary("float32", 1, 2, 3, 3)
    for scales in ((1, 1, 2, 2), (1, 1, 3, 2), (1, 1, 1.5, 2), (1, 2, 1, 1)):
        for mode in (
            {"mode": "nearest", "coordinate_transformation_mode": "asymmetric",
             "nearest_mode": "floor"},
            {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}, {"mode": "cubic"},
            {},
        ):  # fmt: skip
            given = np.array(scales, np.float32)
            yield Case("Resize", (x, None, given), mode, opsets=(11, 99))
    twice = np.array([1, 1, 2, 2], np.float32)
    yield Case("Resize", (x, twice), opsets=(10, 10))
    mode = {"mode": "linear"}
    yield Case("Resize", (x, np.zeros(0, np.float32), twice), mode, opsets=(11, 99))
    yield Case("Resize", (x, None, None, ints(1, 2, 6, 9)), {"mode": "linear"}, opsets=(13, 99))


def level_cases() -> Iterator[Case]:
    """Yield conversions to levels and from levels; numbers that are not finite are left out."""
    one, three = np.array(0.5, np.float32), np.array([0.5, 0.25, 2], np.float32)
    wide = special("float32")[np.isfinite(special("float32"))]
    x = ordinary("float32", 2, 3, 4)
    for dtype in ("int8", "uint8"):
        zero, zeros = np.array(3, dtype), np.array([3, 0, 5], dtype)
        yield Case("QuantizeLinear", (wide, one, zero), opsets=(10, 99))
        yield Case("QuantizeLinear", (x, three, zeros), {"axis": 1}, opsets=(13, 99))
        yield Case("QuantizeLinear", (x, three, zeros), {"axis": -2}, opsets=(13, 99))
        yield Case("DequantizeLinear", (special(dtype), one, zero), opsets=(10, 99))
        levels = ordinary(dtype, 2, 3, 4)
        yield Case("DequantizeLinear", (levels, three, zeros), {"axis": 1}, opsets=(13, 99))
        yield Case("DequantizeLinear", (levels, one), opsets=(10, 99))
    yield Case("QuantizeLinear", (wide, one), opsets=(10, 99))
    yield Case("DequantizeLinear", (special("int32"), one), opsets=(10, 99))
    yield Case("DequantizeLinear", (ordinary("int32", 3, 2), three), {"axis": 0}, opsets=(13, 99))


def source_cases() -> Iterator[Case]:
    for dtype in TYPES:
        value = numpy_helper.from_array(special(dtype)[-1:])
        yield Case("ConstantOfShape", (ints(2, 3),), {"value": value}, fed=())
        yield Case("Constant", (), {"value": numpy_helper.from_array(special(dtype))}, fed=())
        if dtype in ("int32", "int64", "float32", "float64"):
            for start, limit, delta in ((0, 5, 1), (7, -2, -3), (1, 9, 3)):
                parts = tuple(np.array(v, dtype) for v in (start, limit, delta))
                yield Case("Range", parts, fed=())
    yield Case("ConstantOfShape", (ints(2, 3),), fed=())
    yield Case("Range", tuple(np.array(v, np.float32) for v in (0.5, 2, 0.4)), fed=())
    for attrs in ({"value_int": 3}, {"value_ints": [1, 2]}, {"value_float": 0.5},
                  {"value_floats": [0.5, -1.0]}):  # fmt: skip
        yield Case("Constant", (), attrs, fed=(), opsets=(12, 99))


def all_cases() -> dict[str, list[Case]]:
    """Return the cases by operator."""
    found: dict[str, list[Case]] = {}
    for family in (
        unary_cases, binary_cases, selection_cases, reduction_cases, order_cases, shape_cases,
        index_cases, border_cases, pool_cases, product_cases, norm_cases, recurrent_cases,
        level_cases, source_cases,
    ):  # fmt: skip
        for case in family():
            found.setdefault(case.op, []).append(case)
    return found
