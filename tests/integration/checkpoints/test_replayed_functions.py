"""Each public function in a job that is saved for one batch size and replayed for others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batch_functions import CALLS, batch_arguments, job_of, of_size, other_sizes

import oneflow as flow
from flow_core.api.serving.batch_sizes import BatchSizes, batch_sizes
from flow_core.base.errors import FlowError, JobError
from flow_core.frontend.job.exported import traced_for_export
from flow_core.plugins.exporters import ExportedJob

SAMPLED = pytest.mark.representative(
    r"\[(math\.reduce_|slice|gather|reshape|dynamic|squeeze|nn\.conv2d_transpose|smooth|concat)",
    "functions that compute numbers from sizes",
)


def traced(key: str, rows: int) -> ExportedJob:
    flow.clear_default_session()
    return traced_for_export(job_of(key, rows), "tracing", None)


def check_same_job(known: BatchSizes, saved: ExportedJob, key: str, rows: int) -> None:
    """Check that a replay for a size has the ops of a job of that size, or that there is none."""
    try:
        fresh = traced(key, rows).graph
    except FlowError:
        return  # the replay infers the types again, and fails like the job
    assert list(fresh.ops) == list(saved.graph.ops)
    for name, op in saved.graph.ops.items():
        if op.type != "input":
            assert known.attrs(op, rows) == fresh.ops[name].attrs


FIXED = {
    "broadcast_like": "does not broadcast|for shape",
    "dynamic_reshape": "with the number 3/4",
    "math.broadcast_to_compatible_with": "do not broadcast",
    "matmul: transposed": "inner sizes",
    "nn.conv2d_transpose": "output_shape=",
    "reshape_like": "does not reshape",
    "squeeze": "axes of squeeze",
    **dict.fromkeys(
        (f"math.{name}: one first" for name in (
            "add", "divide", "equal", "floordiv", "greater", "greater_equal", "less",
            "less_equal", "logical_and", "maximum", "minimum", "mod", "multiply", "not_equal",
            "squared_difference", "subtract",
        )), "do not broadcast",
    ),
}  # fmt: skip
"""Calls whose constants fit the size of the samples only, and what the refusal says."""


ADAPTED = ("dynamic_reshape", "reshape", "reshape: list")
"""Calls whose constant sizes are adapted to the batch."""


def fixed(key: str) -> str | None:
    return FIXED.get(key) or FIXED.get(key.split(":")[0])


@SAMPLED
@pytest.mark.parametrize("key", CALLS)
def test_a_replay_is_a_trace_of_that_size(key: str) -> None:
    saved, reason = traced(key, CALLS[key][1][0].shape[0]), fixed(key)
    known = batch_sizes(saved)
    if known.fixed:
        assert reason is not None
        assert re.search(reason, known.fixed)
        return
    for rows in other_sizes(key):
        if reason is None:
            check_same_job(known, saved, key, rows)
        else:
            with suppress(ValueError):
                check_same_job(known, saved, key, rows)


def replayed(path: Path, rows: int, arrays: Sequence[Any]) -> list[Any]:
    option = flow.serving.SessionOption()
    option.device_tag = "cpu"
    with flow.serving.InferenceSession(option) as session:
        session.set_job_batch_size("job", rows)
        session.load_saved_model(str(path))
        session.launch()
        return list(session.run("job", **{f"xs-{i}": x for i, x in enumerate(arrays)}))


def compare(key: str, path: Path, rows: int) -> None:
    """Compare a replay with a job of that size."""
    arrays = [of_size(CALLS[key][1][i], rows) for i in batch_arguments(CALLS[key][1])]
    flow.clear_default_session()
    try:
        expected = job_of(key, rows)(tuple(arrays)).get()
    except FlowError:
        if key not in ADAPTED:
            with pytest.raises(FlowError):
                replayed(path, rows, arrays)
        return
    wanted = expected if isinstance(expected, tuple | list) else [expected]
    found = replayed(path, rows, arrays)
    for have, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(have, want.numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("key", CALLS)
def test_a_saved_model_computes_what_a_job_of_that_size_computes(key: str, tmp_path: Path) -> None:
    flow.clear_default_session()
    builder = flow.saved_model.ModelBuilder(str(tmp_path)).Version(1)
    builder.AddFunction(job_of(key, CALLS[key][1][0].shape[0]))
    builder.Save()
    for rows in other_sizes(key):
        if fixed(key) is None:
            compare(key, tmp_path, rows)
        else:
            with suppress(JobError):
                compare(key, tmp_path, rows)
