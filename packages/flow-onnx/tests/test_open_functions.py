"""Each public function in a model whose batch size is open, in ONNX Runtime at other sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batch_functions import CALLS, batch_arguments, job_of, of_size, other_sizes
from onnx_cases.models import ort, run_model

import oneflow as flow
from flow_core.base.errors import CheckpointError, FlowError, PluginError, UnsupportedError

RUNTIME_ERRORS = (
    ort.capi.onnxruntime_pybind11_state.Fail,
    ort.capi.onnxruntime_pybind11_state.InvalidArgument,
)

BEYOND = (
    "gather", "gather: of int8 by int64", "gather: out of range", "gather_nd",
    "gather_nd: slices", "math.top_k: axis 0", "tensor_scatter_nd_add",
    "tensor_scatter_nd_update",
)  # fmt: skip
"""Calls with constant indices that ONNX Runtime refuses for a batch with fewer rows."""


def export(key: str, folder: Path) -> Path | None:
    """Export the call with an open batch size; return None if it is refused."""
    arrays = CALLS[key][1]
    fed = batch_arguments(arrays)
    others = {f"c{i}": np.ones_like(x) for i, x in enumerate(arrays) if i not in fed}
    flow.clear_default_session()
    flow.checkpoint.save(str(folder / "weights"), {"unused": np.zeros(1, np.float32), **others})
    path = folder / "model.onnx"
    override = {f"xs-{j}": ("batch", *arrays[i].shape[1:]) for j, i in enumerate(fed)}
    job = job_of(key, arrays[0].shape[0])
    try:
        flow.onnx.export(job, str(folder / "weights"), path, shape_override=override)
    except (UnsupportedError, CheckpointError, PluginError):
        return None  # the last two: layers with weights of their own, and ops of other plugins
    return path


def expected(key: str, arrays: Any) -> list[Any] | None:
    """Return the results of a job of that size; None if there is no such job."""
    flow.clear_default_session()
    try:
        found = job_of(key, len(arrays[0]))(tuple(arrays)).get()
    except FlowError:
        return None
    return [x.numpy() for x in (found if isinstance(found, tuple | list) else [found])]


@pytest.mark.representative(
    r"\[(math\.reduce_(mean|std|logsumexp)|concat|reshape|slice|squeeze|gather|nn\.\w*Loss)",
    "functions that compute numbers from sizes",
)
@pytest.mark.parametrize("key", CALLS)
def test_an_open_size_is_that_of_a_job(key: str, tmp_path: Path) -> None:
    path = export(key, tmp_path)
    if path is None:
        return
    for rows in other_sizes(key):
        arrays = [of_size(CALLS[key][1][i], rows) for i in batch_arguments(CALLS[key][1])]
        wanted = expected(key, arrays)
        if wanted is None:
            continue
        feeds = {f"xs-{j}": x for j, x in enumerate(arrays)}
        if key in BEYOND and rows == 1:
            with pytest.raises(RUNTIME_ERRORS):
                run_model(path, feeds)
            continue
        found = run_model(path, feeds)
        for have, want in zip(found, wanted, strict=True):
            assert have.shape == want.shape
            np.testing.assert_allclose(have.astype("f8"), want.astype("f8"), rtol=1e-4, atol=1e-5)


@pytest.mark.exhaustive
def test_most_functions_are_exported(tmp_path: Path) -> None:
    made = 0
    for i, key in enumerate(CALLS):
        folder = tmp_path / str(i)
        folder.mkdir()
        made += export(key, folder) is not None
    assert made > 400
