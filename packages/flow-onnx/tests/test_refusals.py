"""Rejected exports report found and allowed values and the line, and leave no files."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_cases.models import run_model

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import CheckpointError, ConfigError, JobError, UnsupportedError
from flow_core.frontend.session.session import default_session
from flow_onnx import files
from flow_onnx.options import OPSETS


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def weights(tmp_path: Path) -> str:
    flow.checkpoint.save(str(tmp_path / "weights"), {"w": np.ones((4, 4), np.float32)})
    return str(tmp_path / "weights")


def product() -> Any:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 4))) -> tp.Numpy:
        return flow.matmul(x, flow.get_variable("w", (4, 4), initializer=flow.ones_initializer()))

    return job


def odd() -> Any:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 4))) -> tp.Numpy:
        y = flow.math.lgamma(x)
        z = flow.nn.relu(y)
        return flow.math.lgamma(z, name="last")

    return job


def test_error_lists_all_unsupported_ops_with_their_lines(weights: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        flow.onnx.export(odd(), weights, "never.onnx")
    text, first = str(caught.value), odd.__code__.co_firstlineno
    assert f"lgamma 'lgamma' (at {__file__}:{first + 3}): no counterpart in ONNX" in text
    assert f"lgamma 'last' (at {__file__}:{first + 5}): no counterpart in ONNX" in text
    assert "relu" not in text
    assert "test_refusals.py" in str(caught.value.at)
    assert not os.path.exists("never.onnx")


def test_unsupported_ops_may_use_a_custom_domain(
    weights: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.onnx"
    with caplog.at_level(logging.WARNING, "flow_onnx"):
        flow.onnx.export(odd(), weights, path, continue_on_error=True)
    assert "lgamma 'lgamma' (at" in caplog.text
    model = onnx.load(path)
    assert [(n.op_type, n.domain) for n in model.graph.node] == [
        ("lgamma", "flow"), ("Relu", ""), ("lgamma", "flow"),
    ]  # fmt: skip
    flow.onnx.export(odd(), weights, path, continue_on_error=True, extra_opset=[("my.ops", 3)])
    domains = {entry.domain: entry.version for entry in onnx.load(path).opset_import}
    assert domains == {"": 18, "my.ops": 3}


@pytest.mark.parametrize(
    ("options", "found", "allowed"),
    [
        ({"opset": 5}, "opset=5", f"11 to {OPSETS[-1]}"),
        ({"opset": "11"}, "opset='11'", "the default is 18"),
        ({"extra_opset": 3}, "extra_opset=3", "pairs"),
        ({"extra_opset": [("", 11)]}, "('', 11)", "without ONNX's own domain"),
        ({"shape_override": [1]}, "shape_override", "a dict"),
        ({"shape_override": {"y": (1, 4)}}, "'y'", "'x'"),
        ({"shape_override": {"x": (1, 4, 1)}}, "(1, 4, 1)", "2 sizes"),
        ({"shape_override": {"x": (0, 4)}}, "(0, 4)", "at least 1"),
    ],
)
def test_options(options: dict[str, Any], found: str, allowed: str, weights: str) -> None:
    with pytest.raises(ConfigError) as caught:
        flow.onnx.export(product(), weights, "never.onnx", **options)
    assert found in str(caught.value.found)
    assert allowed in str(caught.value.allowed)
    assert "test_refusals.py" in str(caught.value.at)


def test_mismatched_sizes_name_the_op(weights: str) -> None:
    with pytest.raises(UnsupportedError, match=r"inner sizes 5 and 4") as caught:
        flow.onnx.export(product(), weights, "never.onnx", shape_override={"x": (2, 5)})
    assert f"test_refusals.py:{product.__code__.co_firstlineno + 3}" in str(caught.value.at)


def test_op_that_requires_a_dynamic_size_is_named(weights: str) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((1, 2, 7, 7))) -> tp.Numpy:
        return flow.nn.avg_pool2d(x, ksize=2, strides=2, padding="SAME", name="pool")

    open_size = {"x": (None, 2, None, 7)}
    with pytest.raises(UnsupportedError, match=r"'pool' .*its padding depends on sizes"):
        flow.onnx.export(job, weights, "never.onnx", shape_override=open_size)


@pytest.mark.parametrize(
    ("function", "node"),
    [
        (lambda x: flow.slice_v2(x, [(0, 4, 1)]), "Identity|Slice"),
        (lambda x: flow.slice_v2(x, [(3, 1, -1)]), "Slice"),
        (
            lambda x: flow.slice_update(x, flow.zeros((2, 2)), [[0, 2, 1], [None, None, 1]]),
            "Gather",
        ),
    ],
)
def test_node_constants_require_known_sizes(function: Any, node: str, weights: str) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 2))) -> tp.Numpy:
        return function(x)

    with pytest.raises(UnsupportedError, match=f"({node}) needs numbers for the open") as caught:
        flow.onnx.export(job, weights, "never.onnx", shape_override={"x": (None, 2)})
    assert "test_refusals.py" in str(caught.value.at)


def test_duplicate_dimension_names(weights: str) -> None:
    with pytest.raises(UnsupportedError, match=r"both .* and"):
        flow.onnx.export(product(), weights, "never.onnx", shape_override={"x": ("n", "n")})


def test_shape_override(weights: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    flow.onnx.export(product(), weights, path, shape_override={"x": (5, 4)})
    assert run_model(path, {"x": np.ones((5, 4), np.float32)})[0].tolist() == [[4] * 4] * 5


def test_invalid_jobs_are_rejected(weights: str) -> None:
    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((2, 4))) -> tp.Numpy:
        return x

    @flow.global_function()
    def silent(x: tp.Numpy.Placeholder((2, 4))) -> None:
        flow.nn.relu(x)

    for job, found in ((train, "type 'train'"), (silent, "returns nothing"), (print, "built-in")):
        with pytest.raises(JobError, match=found):
            flow.onnx.export(job, weights, "never.onnx")


def test_variable_updates_are_not_exported(weights: str) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 4))) -> tp.Numpy:
        w = flow.get_variable("w", (4, 4), initializer=flow.ones_initializer())
        flow.assign(w, x)
        return x

    with pytest.raises(UnsupportedError, match="assign"):
        flow.onnx.export(job, weights, "never.onnx")


def test_mismatched_checkpoints_are_rejected(weights: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such path"):
        flow.onnx.export(product(), str(tmp_path / "nowhere"), "never.onnx")
    flow.checkpoint.save(str(tmp_path / "wrong"), {"w": np.ones((4, 5), np.float32)})
    with pytest.raises(CheckpointError, match="misshapen"):
        flow.onnx.export(product(), str(tmp_path / "wrong"), "never.onnx")
    flow.checkpoint.save(str(tmp_path / "other"), {"v": np.ones((4, 4), np.float32)})
    with pytest.raises(CheckpointError, match="missing"):
        flow.onnx.export(product(), str(tmp_path / "other"), "never.onnx")


def test_failed_write_leaves_no_files(
    weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    flow.onnx.export(product(), weights, folder / "model.onnx")
    before = (folder / "model.onnx").read_bytes()

    def broken(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(files.os, "replace", broken)
    with pytest.raises(CheckpointError, match="no space left"):
        flow.onnx.export(product(), weights, folder / "model.onnx", opset=11)
    assert [entry.name for entry in folder.iterdir()] == ["model.onnx"]
    assert (folder / "model.onnx").read_bytes() == before


def test_missing_folder_is_rejected(weights: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file"):
        flow.onnx.export(product(), weights, tmp_path / "nowhere" / "model.onnx")


def test_external_weights(tmp_path: Path) -> None:
    big = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 64))) -> tp.Numpy:
        w = flow.get_variable("w", (64, 64), initializer=flow.ones_initializer())
        return flow.matmul(x, w) + flow.get_variable(
            "b", (64,), initializer=flow.ones_initializer()
        )

    values = {"w": big, "b": np.arange(64, dtype=np.float32)}
    flow.checkpoint.save(str(tmp_path / "weights"), values)
    path = tmp_path / "model.onnx"
    flow.onnx.export(job, str(tmp_path / "weights"), path, external_data=True)
    assert (tmp_path / "model.onnx.data").stat().st_size == big.nbytes
    assert path.stat().st_size < 4096
    x = np.eye(2, 64, dtype=np.float32)
    np.testing.assert_allclose(run_model(path, {"x": x})[0], x @ big + values["b"], 1e-5, 1e-5)


def test_model_too_large_for_one_file(weights: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGEST", 32)
    with pytest.raises(UnsupportedError, match="external_data=True"):
        flow.onnx.export(product(), weights, "never.onnx")


def test_missing_plugin_error_names_the_package_to_install(
    weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, registry = product(), default_session().registry
    monkeypatch.setattr(type(registry), "exporters", {}, raising=False)
    with pytest.raises(UnsupportedError, match=r"uv pip install .*packages/flow-onnx"):
        flow.onnx.export(job, weights, "never.onnx")
