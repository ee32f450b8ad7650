"""Numbers that a loaded model must give: integers, infinities, negative indices, constants.

Expected values follow from the definitions; ONNX Runtime 1.32 gives the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_cases.files import model_with, saved
from onnx_cases.models import loaded_results, run_model

import oneflow as flow

node, ints, INF = helper.make_node, lambda *values: np.array(values, np.int64), np.inf


def computed(
    path: Path,
    op: str,
    x: Any,
    *known: Any,
    opset: int = 18,
    kind: int | None = None,
    **attrs: Any,
) -> Any:
    """Return the first result of a node of the fed x and known inputs."""
    names = [f"c{i}" for i in range(len(known))]
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    outputs = ["y", "places"] if op == "TopK" else ["y"]
    model = model_with(
        node(op, ["x", *names], outputs, **attrs),
        inputs={"x": x.shape}, kinds={"x": element}, outputs={"y": kind or element}, opset=opset,
        **dict(zip(names, known, strict=True)),
    )  # fmt: skip
    return loaded_results(saved(path / "m.onnx", model), [x])[0]


def test_means_of_integers_are_truncated_quotients(tmp_path: Path) -> None:
    for kind in (np.int32, np.int64):
        for values, expected in (([1, 2, 4], [2]), ([-1, -2, -4], [-2]), ([100, 200, 300], [200])):
            found = computed(tmp_path, "ReduceMean", np.array(values, kind))
            assert found.tolist() == expected
            assert found.dtype == kind
    large = np.full(4, 2**30, np.int32)
    assert computed(tmp_path, "ReduceMean", large, keepdims=0).tolist() == 2**30
    wide = np.full(4, 60000, np.float16)
    assert computed(tmp_path, "ReduceMean", wide, keepdims=0) == 60000


LEAST = {kind: np.iinfo(kind).min for kind in (np.int8, np.int32, np.int64, np.uint8)}


@pytest.mark.parametrize("kind", LEAST, ids=lambda kind: np.dtype(kind).name)
def test_the_least_integer_is_found(kind: Any, tmp_path: Path) -> None:
    x = np.array([3, LEAST[kind], np.iinfo(kind).max, 7], kind)
    found = computed(tmp_path, "ArgMin", x, keepdims=0, kind=TensorProto.INT64)
    assert found.tolist() == 1
    assert computed(tmp_path, "TopK", x, ints(2), largest=0).tolist() == [LEAST[kind], 3]
    assert computed(tmp_path, "TopK", x[::-1].copy(), ints(4), largest=0).tolist() == sorted(
        x.tolist()
    )


@pytest.mark.parametrize("upper", [0, 1])
def test_the_dropped_triangle_is_zero(upper: int, tmp_path: Path) -> None:
    right = np.triu if upper else np.tril
    for fill in (-INF, INF, np.nan, 1e38):
        x = np.full((2, 4, 3), fill, np.float32)
        for diagonal in (1, 0, -1, 2**40, -(2**40)):
            found = computed(tmp_path, "Trilu", x, np.array(diagonal), upper=upper)
            expected = right(x, min(max(diagonal, -9), 9))
            np.testing.assert_array_equal(found, expected)


def test_logarithms_of_sums_of_infinities(tmp_path: Path) -> None:
    rows = np.array([[-INF, -INF], [INF, 0], [INF, -INF], [1, 2], [np.nan, 1]], np.float32)
    found = computed(tmp_path, "ReduceLogSumExp", rows, ints(1), keepdims=0)
    expected = [-INF, INF, INF, np.logaddexp(1, 2), np.nan]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_product_of_two_vectors_has_no_axes(tmp_path: Path) -> None:
    x = np.array([1, 2, 3], np.float32)
    found = computed(tmp_path, "MatMul", x, np.array([4, 5, 6], np.float32))
    assert found.shape == ()
    assert found == 32


def test_a_slice_from_before_the_begin_starts_at_the_begin(tmp_path: Path) -> None:
    x = np.arange(10, dtype=np.float32)
    for start, end, step, expected in (
        (-20, -30, -1, [0]), (20, -30, -3, [9, 6, 3, 0]), (-20, 20, 4, [0, 4, 8]),
        (-1, -4, -2, [9, 7]),
    ):  # fmt: skip
        found = computed(tmp_path, "Slice", x, ints(start), ints(end), ints(0), ints(step))
        assert found.tolist() == expected


INDEXED: Mapping[str, tuple[str, Any, Mapping[str, Any]]] = {
    "Gather": ("Gather", ints(-1, 0), {"axis": 1}),
    "GatherElements": ("GatherElements", np.array([[-1, -2, 0, 1]]), {"axis": 0}),
    "GatherND": ("GatherND", np.array([[-1, -1], [0, -2]]), {}),
    "rows of GatherND": ("GatherND", np.array([[-1], [0]]), {}),
    "ScatterND": ("ScatterND", np.array([[-1], [0]]), {}),
    "added ScatterND": ("ScatterND", np.array([[-1], [-1]]), {"reduction": "add"}),
    "ScatterElements": (
        "ScatterElements", np.array([[-1, 0, -2, 1]]), {"axis": 0, "reduction": "add"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("fed", [True, False], ids=["fed", "known"])
@pytest.mark.parametrize("name", INDEXED)
def test_negative_indices_count_from_the_end(name: str, fed: bool, tmp_path: Path) -> None:
    op, index, attrs = INDEXED[name]
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    updates = 7 + np.arange(index.shape[0] * 4, dtype=np.float32).reshape(-1, 4)
    names = ["x", "i", "u"] if "Scatter" in op else ["x", "i"]
    weights = ({} if fed else {"i": index}) | ({"u": updates} if "u" in names else {})
    shapes = {"x": x.shape} | ({"i": index.shape} if fed else {})
    model = model_with(
        node(op, names, ["y"], **attrs), inputs=shapes, kinds={"i": TensorProto.INT64}, **weights
    )
    feeds = {"x": x} | ({"i": index} if fed else {})
    (found,) = loaded_results(saved(tmp_path / "m.onnx", model), [*feeds.values()])
    np.testing.assert_array_equal(found, run_model(tmp_path / "m.onnx", feeds)[0])


def test_constants_are_folded_with_the_ops_of_jobs(tmp_path: Path) -> None:
    zeros, infinite = np.zeros((2, 3, 4), np.float32), np.full((2, 2), -INF, np.float32)
    for op, value, attrs, expected in (
        ("Softmax", zeros, {}, 1 / 12), ("ReduceLogSumExp", infinite, {}, -INF),
        ("ReduceMean", ints(1, 2, 4), {}, 2), ("Gather", ints(3, 5), {}, 5),
    ):  # fmt: skip
        inputs = ["c", "i"] if op == "Gather" else ["c"]
        constant = node("Constant", [], ["c"], value=helper.make_tensor(
            "c", helper.np_dtype_to_tensor_dtype(value.dtype), value.shape, value.reshape(-1)
        ))  # fmt: skip
        parts = (
            constant, node(op, inputs, ["r"], **attrs), node("Cast", ["r"], ["f"], to=1),
            node("Add", ["x", "f"], ["y"]),
        )  # fmt: skip
        shape = value.shape if op == "Softmax" else (2,)
        model = model_with(*parts, inputs={"x": shape}, opset=11, i=np.array(-1))
        path = saved(tmp_path / "m.onnx", model)
        (found,) = loaded_results(path, [np.zeros(shape, np.float32)])
        np.testing.assert_allclose(found, np.full(found.shape, expected), rtol=1e-6)
        assert not flow.get_all_variables()


def test_padding_with_infinities(tmp_path: Path) -> None:
    x = np.ones((1, 2), np.float32)
    for value in (-INF, INF, np.nan):
        expected = [[1, 1, value]]
        late = computed(tmp_path, "Pad", x, ints(0, 0, 0, 1), np.float32(value))
        early = computed(tmp_path, "Pad", x, opset=2, pads=[0, 0, 0, 1], value=value)
        np.testing.assert_array_equal([late, early], [expected, expected])


def test_windows_of_padding_only_are_omitted(tmp_path: Path) -> None:
    attrs = {"kernel_shape": [2], "strides": [3], "pads": [1, 1], "ceil_mode": 1}
    for size, expected in ((5, [0, 3]), (7, [0, 3, 6]), (6, [0, 3, 5])):
        x = np.arange(size, dtype=np.float32).reshape(1, 1, size)
        found = computed(tmp_path, "MaxPool", x, **attrs)
        assert found.tolist() == [[expected]]


def test_rows_of_indices_out_of_range_are_off(tmp_path: Path) -> None:
    index = ints(0, -1, 2, 3, -4)
    found = computed(tmp_path, "OneHot", index, ints(3), np.array([-INF, 1], np.float32), kind=1)
    right = np.full((5, 3), -INF, np.float32)
    right[[0, 1, 2], [0, 2, 2]] = 1
    np.testing.assert_array_equal(found, right)


def test_powers_of_integers(tmp_path: Path) -> None:
    for kind in (np.int32, np.int64):
        x = np.array([-3, 0, 1, 2, 5], kind)
        for exponent in (np.array(3, kind), np.array([2.0], np.float32)):
            found = computed(tmp_path, "Pow", x, exponent)
            assert found.tolist() == (x.astype(np.int64) ** int(exponent.reshape(()))).tolist()


def test_channels_have_slopes_of_their_own_in_early_opsets(tmp_path: Path) -> None:
    x = np.array([[[-1.0, 2.0], [-1.0, 2.0]]], np.float32)
    found = computed(tmp_path, "PRelu", x, np.array([0.5, INF], np.float32), opset=6)
    np.testing.assert_array_equal(found, [[[-0.5, 2], [-INF, 2]]])


def test_dropout_masks_and_inputs_of_booleans(tmp_path: Path) -> None:
    x = np.array([1.0, -2.0], np.float32)
    outputs = {"y": TensorProto.FLOAT, "m": TensorProto.BOOL}
    model = model_with(node("Dropout", ["x"], ["y", "m"]), inputs={"x": (2,)}, outputs=outputs)
    y, mask = loaded_results(saved(tmp_path / "m.onnx", model), [x])
    assert (y.tolist(), mask.tolist()) == ([1, -2], [1, 1])
    flags = np.array([2, 0], np.int8)
    model = model_with(
        node("Cast", ["b"], ["y"], to=TensorProto.FLOAT), inputs={"b": (2,)},
        kinds={"b": TensorProto.BOOL},
    )  # fmt: skip
    assert loaded_results(saved(tmp_path / "b.onnx", model), [flags])[0].tolist() == [1, 0]


def test_narrow_constants_are_divided_without_truncation(tmp_path: Path) -> None:
    import ml_dtypes

    for kind in (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)):
        parts = [
            node("Constant", [], [name], value=numpy_helper.from_array(np.array(values, kind)))
            for name, values in (("a", [1, -3, 60]), ("b", [2, 4, 16]))
        ]
        model = model_with(
            *parts, node("Div", ["a", "b"], ["q"]), node("Cast", ["q"], ["f"], to=1),
            node("Add", ["x", "f"], ["y"]), inputs={"x": (3,)},
        )  # fmt: skip
        found = loaded_results(saved(tmp_path / "m.onnx", model), [np.zeros(3, np.float32)])
        assert found[0].tolist() == [0.5, -0.75, 3.75]


def test_extremes_of_no_booleans(tmp_path: Path) -> None:
    for op, expected in (("ReduceMax", 0), ("ReduceMin", 1)):
        model = model_with(
            node("Constant", [], ["b"], value=numpy_helper.from_array(np.zeros((2, 0), bool))),
            node(op, ["b", "axes"], ["r"], keepdims=0), node("Cast", ["r"], ["f"], to=1),
            node("Add", ["x", "f"], ["y"]), inputs={"x": (2,)}, opset=20, axes=ints(1),
        )  # fmt: skip
        found = loaded_results(saved(tmp_path / "m.onnx", model), [np.zeros(2, np.float32)])
        assert found[0].tolist() == [expected] * 2
