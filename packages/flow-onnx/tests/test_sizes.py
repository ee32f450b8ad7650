"""Models exported for other sizes compute what jobs of these sizes compute, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import batch_functions
import numpy as np
import pytest
from onnx_cases.models import run_model

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import UnsupportedError

ROWS, OTHERS = 4, (1, 3, 10)
Function = Callable[[Any], Any]


def job_of(function: Function, rows: int) -> Any:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((rows, batch_functions.WIDTH))) -> tp.Numpy:
        return function(x)

    return job


def batch(rows: int) -> Any:
    return np.random.default_rng(rows).normal(size=(rows, batch_functions.WIDTH)).astype("f4")


def export(function: Function, folder: Path, rows: Any) -> Path:
    flow.checkpoint.save(str(folder / "none"), {"unused": np.zeros(1, np.float32)})
    path = folder / "model.onnx"
    override = {"x": (rows, batch_functions.WIDTH)}
    flow.onnx.export(job_of(function, ROWS), str(folder / "none"), path, shape_override=override)
    return path


def check(path: Path, function: Function, rows: int) -> None:
    expected = job_of(function, rows)(batch(rows))
    (found,) = run_model(path, {"x": batch(rows)})
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


SIZED = {**batch_functions.ANY_SIZE, **batch_functions.BY_SIZE}


@pytest.mark.parametrize("name", SIZED)
def test_a_fixed_size_is_that_of_a_job_of_this_size(name: str, tmp_path: Path) -> None:
    function = SIZED[name]
    path = export(function, tmp_path, 7)
    if name == "reshape to the constant size":
        function = lambda x: flow.reshape(x, (-1, 2, 3))  # noqa: E731
    check(path, function, 7)


@pytest.mark.parametrize("name", batch_functions.ANY_SIZE)
def test_an_open_size_takes_any_batch(name: str, tmp_path: Path) -> None:
    function = batch_functions.ANY_SIZE[name]
    path = export(function, tmp_path, "batch")
    for rows in OTHERS:
        check(path, function, rows)


OPEN = ("reshape by x.shape", "flat by x.shape", "reshape to the constant size")


@pytest.mark.parametrize("name", sorted({*batch_functions.BY_SIZE, *batch_functions.FIXED}))
def test_open_sizes_that_the_program_computes_with_are_refused(name: str, tmp_path: Path) -> None:
    function = {**batch_functions.BY_SIZE, **batch_functions.FIXED}[name]
    if name in OPEN:
        path = export(function, tmp_path, "batch")
        (found,) = run_model(path, {"x": batch(3)})
        assert found.size == 3 * batch_functions.WIDTH
        return
    with pytest.raises(UnsupportedError, match="with other sizes") as caught:
        export(function, tmp_path, "batch")
    line_known = Path(batch_functions.__file__).name in str(caught.value)
    assert line_known or name == "range", "the result is a constant, which no node makes"


def test_means_over_open_heights_and_widths(tmp_path: Path) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3, 4, 4))) -> tp.Numpy:
        return flow.math.reduce_mean(x, axis=[2, 3])

    flow.checkpoint.save(str(tmp_path / "none"), {"unused": np.zeros(1, np.float32)})
    path = tmp_path / "model.onnx"
    override = {"x": (2, 3, "height", "width")}
    flow.onnx.export(job, str(tmp_path / "none"), path, shape_override=override)
    x = np.random.default_rng(0).normal(size=(2, 3, 2, 7)).astype(np.float32)
    (found,) = run_model(path, {"x": x})
    np.testing.assert_allclose(found, x.mean((2, 3)), rtol=1e-5, atol=1e-6)
