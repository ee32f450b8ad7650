"""Small models that ask for much memory or many ops are refused before anything is allocated."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx_cases.files import model_with, saved
from onnx_cases.models import loaded_results

import oneflow as flow
from flow_core.base.errors import CheckpointError, ConfigError
from flow_onnx.importers.folding import LARGEST_KNOWN

X = np.arange(6, dtype=np.float32).reshape(2, 3)
node, ints = helper.make_node, lambda *values: np.array(values, np.int64)
ADDED = (node("ReduceSum", ["c"], ["s"], keepdims=0), node("Add", ["x", "s"], ["y"]))
ONE = np.zeros(1, np.float32)


def doubled(count: int) -> ModelProto:
    """Return a model whose constant is doubled many times."""
    parts = [node("Concat", [f"c{i}", f"c{i}"], [f"c{i + 1}"], axis=0) for i in range(count)]
    total = node("ReduceSum", [f"c{count}"], ["t"], keepdims=0)
    cast = node("Cast", ["t"], ["s"], to=TensorProto.FLOAT)
    return model_with(*parts, total, cast, ADDED[1], c0=ints(*range(16)))


def sparse(*sizes: int) -> ModelProto:
    """Return a model with a sparse initializer of one number that is not 0."""
    model = model_with(node("Add", ["x", "w"], ["y"]))
    values = numpy_helper.from_array(np.array([3], np.float32), "w")
    index = numpy_helper.from_array(ints(1), "w_index")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, index, sizes))
    return model


BOMBS = {
    "ConstantOfShape": model_with(node("ConstantOfShape", ["a"], ["c"]), *ADDED,
                                  a=ints(2**20, 2**12)),
    "Range": model_with(node("Range", ["a", "b", "d"], ["c"]), *ADDED, a=np.float32(0),
                        b=np.float32(1e10), d=np.float32(1)),
    "Tile of a constant": model_with(node("Tile", ["a", "b"], ["c"]), *ADDED, a=ONE, b=ints(2**33)),
    "Tile": model_with(node("Tile", ["x", "b"], ["y"]), b=ints(2**26, 1)),
    "Expand": model_with(node("Expand", ["x", "b"], ["y"]), b=ints(2**30, 2, 3)),
    "Expand of a constant": model_with(node("Expand", ["a", "b"], ["c"]), *ADDED, a=ONE,
                                       b=ints(2**30)),
    "Pad": model_with(node("Pad", ["x", "b"], ["y"]), b=ints(0, 0, 0, 2**30)),
    "reflection": model_with(node("Pad", ["x", "b"], ["y"], mode="reflect"),
                             b=ints(0, 0, 0, 2**30)),
    "OneHot": model_with(node("OneHot", ["x", "d", "v"], ["y"]), d=ints(2**40),
                         v=np.array([0, 1], np.float32)),
    "doublings": doubled(40),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_large_result_is_refused(name: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", BOMBS[name])
    assert path.stat().st_size < 8192
    tracemalloc.start()
    with pytest.raises(ConfigError, match=r"a result of [\d,]+ bytes"):
        loaded_results(path, [X])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * LARGEST_KNOWN


def test_a_value_that_is_repeated_often_is_three_ops(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", model_with(node("Tile", ["x", "r"], ["y"]), r=ints(3000, 2)))
    (found,) = loaded_results(path, [X])
    np.testing.assert_array_equal(found, np.tile(X, (3000, 2)))


def test_large_sparse_weights_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", sparse(2**20, 2**12))
    with pytest.raises(ConfigError, match="sparse tensor 'w' of shape"):
        loaded_results(path, [X])
    with pytest.raises(CheckpointError, match="sparse tensor 'w' of shape"):
        flow.checkpoint.get(str(path))


def test_sparse_weights_are_weights(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", sparse(2, 3))
    expected = np.array([[0, 3, 0], [0, 0, 0]], np.float32)
    np.testing.assert_array_equal(loaded_results(path, [X])[0], X + expected)
    assert [*flow.get_all_variables()] == ["w"]
    np.testing.assert_array_equal(flow.checkpoint.get(str(path))["w"], expected)


def test_a_wrong_index_of_a_sparse_weight_is_refused(tmp_path: Path) -> None:
    model = sparse(2, 3)
    wrong = numpy_helper.from_array(ints(6), "w_index")
    model.graph.sparse_initializer[0].indices.CopyFrom(wrong)
    with pytest.raises(ConfigError, match=r"(?i)sparse|index"):
        loaded_results(saved(tmp_path / "m.onnx", model), [X])


def test_bfloat16_weights_are_variables(tmp_path: Path) -> None:
    import ml_dtypes

    weight = np.array([1.5, -2, 0.25], ml_dtypes.bfloat16)
    cast = node("Cast", ["w"], ["c"], to=TensorProto.FLOAT)
    path = saved(tmp_path / "m.onnx", model_with(cast, node("Mul", ["x", "c"], ["y"]), w=weight))
    expected = X * weight.astype(np.float32)
    np.testing.assert_array_equal(loaded_results(path, [X])[0], expected)
    assert flow.get_all_variables()["w"].dtype == flow.bfloat16
