"""Saved models and ONNX models in worker processes compute what their jobs compute."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import ConfigError
from flow_serve.info import find_models
from flow_serve.metrics import Metrics
from flow_serve.models import load_model
from flow_serve.pool import Pool, Setup
from flow_serve.protocol import bytes_of
from flow_serve.settings import Batching

X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
INIT = flow.random_normal_initializer()


def dense(x: Any) -> Any:
    return flow.layers.dense(x, 2, kernel_initializer=INIT, name="line")


@flow.global_function()
def line(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
    return flow.math.tanh(dense(x), name="y")


@flow.global_function()
def norms(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
    return flow.math.reduce_mean(flow.nn.softmax(x, axis=0), axis=1)


@flow.global_function()
def several(
    ids: tp.Numpy.Placeholder((4, 2), flow.int32), x: tp.Numpy.Placeholder((4, 3))
) -> tuple[tp.Numpy, tp.Numpy]:
    table = flow.get_variable("table", (5, 2), initializer=INIT)
    return flow.gather(table, ids, name="rows"), flow.cast(10.0 * x, flow.int64, name="tens")


def save(job: Any, path: Path, version: int = 1) -> None:
    builder = flow.saved_model.ModelBuilder(str(path)).Version(version)
    builder.AddFunction(job)
    builder.Save()


def load(path: Path, rows: int = 3) -> Any:
    (source,) = find_models(path, 1)
    return load_model(source, Batching(rows), "cpu")


def test_a_saved_model_has_its_names_and_any_number_of_rows(tmp_path: Path) -> None:
    save(line, tmp_path / "line")
    expected = line(X)
    info, run = load(tmp_path)
    assert info.inputs[0].metadata == {"name": "x", "datatype": "FP32", "shape": [-1, 3]}
    assert info.outputs[0].metadata == {"name": "y", "datatype": "FP32", "shape": [-1, 2]}
    assert (info.rows, info.combines, info.note) == (3, True, "")
    for n in (1, 2, 3):
        np.testing.assert_allclose(run([X[:n]])[0], expected[:n], rtol=1e-6)


def test_a_model_that_mixes_rows_keeps_its_batch_size(tmp_path: Path) -> None:
    save(norms, tmp_path / "norms")
    expected = norms(X)
    info, run = load(tmp_path)
    assert (info.rows, info.combines) == (0, False)
    assert info.note == "softmax 'softmax' may mix rows"
    assert (info.inputs[0].shape, info.outputs[0].shape) == ((4, 3), (4,))
    np.testing.assert_allclose(run([X])[0], expected, rtol=1e-6)


def test_several_inputs_and_outputs(tmp_path: Path) -> None:
    save(several, tmp_path / "several")
    ids = np.arange(8, dtype=np.int32).reshape(4, 2) % 5
    expected = several(ids, X)
    info, run = load(tmp_path)
    assert [t.datatype for t in (*info.inputs, *info.outputs)] == ["INT32", "FP32", "FP32", "INT64"]
    for found, wanted in zip(run([ids[:2], X[:2]]), expected, strict=True):
        np.testing.assert_array_equal(found, wanted[:2])


@pytest.mark.parametrize("open_size", [True, False])
def test_an_onnx_model(tmp_path: Path, open_size: bool) -> None:
    pytest.importorskip("onnx")
    expected = line(X)
    flow.checkpoint.save(str(tmp_path / "weights"))
    (tmp_path / "models" / "net" / "1").mkdir(parents=True)
    shapes = {"x": ("batch", 3)} if open_size else {}
    path = tmp_path / "models" / "net" / "1" / "model.onnx"
    flow.onnx.export(line, str(tmp_path / "weights"), str(path), shape_override=shapes)
    flow.clear_default_session()
    info, run = load(tmp_path / "models", 4)
    first = -1 if open_size else 4
    assert info.inputs[0].metadata == {"name": "x", "datatype": "FP32", "shape": [first, 3]}
    assert info.outputs[0].shape == (first, 2)
    assert info.combines is open_size
    np.testing.assert_allclose(run([X])[0], expected, rtol=1e-6)


def test_a_damaged_model_is_named(tmp_path: Path) -> None:
    save(line, tmp_path / "line")
    (tmp_path / "line" / "1" / "saved_model.json").write_text("{}")

    async def start() -> None:
        await Pool(Setup(find_models(tmp_path, 1)), Metrics()).start()

    with pytest.raises(ConfigError, match="loading version 1 of 'line'"):
        asyncio.run(start())


@pytest.mark.slow
def test_a_worker_pads_batches_and_shares_the_rows(tmp_path: Path) -> None:
    for name, job in (("line", line), ("norms", norms)):
        save(job, tmp_path / name)
    expected = {"line": line(X), "norms": norms(X)}

    async def check() -> None:
        pool = Pool(Setup(find_models(tmp_path, 1), Batching(8, 0.01)), Metrics())
        await pool.start()
        try:
            infos = {name: versions["1"] for name, versions in pool.models.items()}
            calls = [pool.run(infos["line"], n, [bytes_of(X[:n])]) for n in (1, 2, 3, 4, 1, 4)]
            *lines, norm = await asyncio.gather(*calls, pool.run(infos["norms"], 1, [bytes_of(X)]))
        finally:
            await pool.close()
        for n, (found,) in zip((1, 2, 3, 4, 1, 4), lines, strict=True):
            rows = np.frombuffer(found, np.float32).reshape(n, 2)
            np.testing.assert_allclose(rows, expected["line"][:n], rtol=1e-6)
        np.testing.assert_allclose(np.frombuffer(norm[0], np.float32), expected["norms"], rtol=1e-6)

    asyncio.run(check())
