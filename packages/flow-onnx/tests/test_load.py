"""Models as parts of jobs: shared, trained, frozen; wrong files and inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import ConfigError, FlowError, JobError, UnsupportedError

RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(-1, 1, (4, 1, 14, 14)).astype(np.float32)
LABELS = np.arange(4, dtype=np.int32)


def network(images: Any) -> Any:
    init = flow.truncated_normal(0.1)
    x = flow.layers.conv2d(images, 8, 5, padding="SAME", kernel_initializer=init, name="conv")
    x = flow.layers.batch_normalization(x, axis=1, name="norm", training=False)
    x = flow.nn.avg_pool2d(flow.nn.relu(x), ksize=2, strides=2, padding="SAME")
    x = flow.reshape(x, [x.shape[0], -1])
    return flow.layers.dense(x, 10, kernel_initializer=init, name="dense")


@pytest.fixture
def exported(tmp_path: Path) -> tuple[Path, Any]:
    @flow.global_function()
    def classify(images: tp.Numpy.Placeholder(IMAGES.shape)) -> tp.Numpy:
        return network(images)

    flow.checkpoint.save(str(tmp_path / "weights"))
    path = tmp_path / "model.onnx"
    sizes = {"images": ("batch", 1, 14, 14)}
    flow.onnx.export(classify, str(tmp_path / "weights"), str(path), shape_override=sizes)
    expected = classify(IMAGES)
    flow.clear_default_session()
    return path, expected


def test_a_loaded_model_has_the_weights_and_results_of_the_job(exported: tuple[Path, Any]) -> None:
    path, expected = exported

    @flow.global_function()
    def classify(images: tp.Numpy.Placeholder(IMAGES.shape)) -> tp.Numpy:
        return flow.onnx.load(path, images)

    @flow.global_function()
    def by_name(images: tp.Numpy.Placeholder((1, 1, 14, 14))) -> tp.Numpy:
        return flow.onnx.load(path, images=images)

    np.testing.assert_allclose(classify(IMAGES), expected, 1e-4, 1e-5)
    np.testing.assert_allclose(by_name(IMAGES[:1]), expected[:1], 1e-4, 1e-5)
    assert {"conv-weight", "dense-bias", "norm-gamma"} <= set(flow.get_all_variables())


def train(path: Path, **options: Any) -> tuple[list[float], dict[str, tuple[Any, Any]]]:
    """Train a loaded model; return the losses, and each weight before and after."""

    @flow.global_function(type="train")
    def job(
        images: tp.Numpy.Placeholder(IMAGES.shape),
        labels: tp.Numpy.Placeholder((4,), dtype=flow.int32),
    ) -> tp.Numpy:
        logits = flow.onnx.load(path, images, **options)
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        flow.optimizer.SGD(0.1, momentum=0).minimize(loss)
        return loss

    before = {name: variable.numpy() for name, variable in flow.get_all_variables().items()}
    losses = [float(job(IMAGES, LABELS).mean()) for _ in range(20)]
    after = {name: variable.numpy() for name, variable in flow.get_all_variables().items()}
    return losses, {name: (before[name], after[name]) for name in before}


def test_a_loaded_model_is_trained(exported: tuple[Path, Any]) -> None:
    losses, weights = train(exported[0])
    assert losses[-1] < 0.5 * losses[0]
    changed = {name for name, (before, after) in weights.items() if (before != after).any()}
    assert {"conv-weight", "dense-weight", "dense-bias", "norm-beta"} <= changed
    assert not {name for name in changed if "moving" in name}


def test_weights_whose_names_match_no_pattern_are_frozen(exported: tuple[Path, Any]) -> None:
    _, weights = train(exported[0], trainable="^dense-")
    changed = {name for name, (before, after) in weights.items() if (before != after).any()}
    assert {name for name in changed if "System" not in name} == {"dense-weight", "dense-bias"}


def saved(path: Path, node: Any, **weights: Any) -> Path:
    """Save a model of one node with the input x of shape (2, 3) and the output y."""
    kind = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in
            (("x", (2, 3)), ("y", (None, None)))]  # fmt: skip
    arrays = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph([node], "one", kind[:1], kind[1:], arrays)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


def loading(path: Any, *inputs: str, **options: Any) -> Any:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3)), z: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        return flow.onnx.load(path, *({"x": x, "z": z}[name] for name in inputs), **options)

    return job(np.ones((2, 3), np.float32), np.ones(4, np.float32))


def test_errors(tmp_path: Path) -> None:
    relu = saved(tmp_path / "relu.onnx", helper.make_node("Relu", ["x"], ["y"]))
    odd = saved(tmp_path / "odd.onnx", helper.make_node("Det", ["x"], ["y"]))
    text = tmp_path / "text.onnx"
    text.write_text("no model")
    cases: list[tuple[Any, tuple[str, ...], type[FlowError], str]] = [
        (relu, (), ConfigError, "a blob for each of 'x'"),
        (relu, ("x", "z"), ConfigError, "2 inputs"),
        (relu, ("z",), ConfigError, r"shape \(4,\) for the input 'x'(.|\n)*\(2, 3\)"),
        (tmp_path / "none.onnx", ("x",), ConfigError, "none.onnx"),
        (text, ("x",), ConfigError, "an ONNX model"),
        (odd, ("x",), UnsupportedError, "without a counterpart: Det"),
    ]
    for path, inputs, error, message in cases:
        flow.clear_default_session()
        with pytest.raises(error, match=message) as found:
            loading(path, *inputs)
        assert __file__ in str(found.value)
    with pytest.raises(JobError):
        flow.onnx.load(relu)


def test_constants_are_not_trained(tmp_path: Path) -> None:
    table = RNG.normal(size=(2000,)).astype(np.float32)
    values = {"value": numpy_helper.from_array(table[:3])}
    node = helper.make_node("Add", ["x", "c"], ["y"])
    path = saved(tmp_path / "add.onnx", node, c=table[:3])
    np.testing.assert_allclose(loading(path, "x"), 1 + np.tile(table[:3], (2, 1)), rtol=1e-6)
    assert [*flow.get_all_variables()] == ["c"]
    model = onnx.load(path)
    model.graph.node.insert(0, helper.make_node("Constant", [], ["c"], **values))
    del model.graph.initializer[:]
    onnx.save(model, path)
    flow.clear_default_session()
    np.testing.assert_allclose(loading(path, "x"), 1 + np.tile(table[:3], (2, 1)), rtol=1e-6)
    assert not flow.get_all_variables()


def test_the_weights_of_a_model_are_loaded_by_name(tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["x", "/m/w"], ["y"])
    weight = RNG.normal(size=(3, 2)).astype(np.float32)
    path = saved(tmp_path / "matmul.onnx", node, **{"/m/w": weight})
    np.testing.assert_allclose(loading(path, "x"), np.tile(weight.sum(0), (2, 1)), rtol=1e-5)
    assert [*flow.get_all_variables()] == ["m/w"]
    flow.clear_default_session()

    @flow.global_function()
    def job() -> tp.Numpy:
        return flow.get_variable("dense", (2, 3)) * 1

    rule = flow.weights.Rule("dense", transpose=(1, 0))
    assert flow.weights.load(path, {"/m/w": rule}, strict=True).loaded == {"dense": "/m/w"}
    np.testing.assert_array_equal(job(), weight.T)
