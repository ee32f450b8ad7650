"""Saved models with other batch sizes compute what jobs of these sizes compute, or are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import batch_functions
import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import JobError

ROWS, OTHERS = 4, (1, 3, 10)


def job_of(function: Callable[[Any], Any], rows: int) -> Any:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((rows, batch_functions.WIDTH))) -> tp.Numpy:
        return function(x)

    return job


def batch(rows: int) -> Any:
    return np.random.default_rng(rows).normal(size=(rows, batch_functions.WIDTH)).astype("f4")


def save(function: Callable[[Any], Any], path: Path) -> None:
    builder = flow.saved_model.ModelBuilder(str(path)).Version(1)
    builder.AddFunction(job_of(function, ROWS))
    builder.Save()


def replayed(path: Path, rows: int) -> Any:
    option = flow.serving.SessionOption()
    option.device_tag = "cpu"
    with flow.serving.InferenceSession(option) as session:
        session.set_job_batch_size("job", rows)
        session.load_saved_model(str(path))
        session.launch()
        return session.run("job", x=batch(rows))[0]


LAYERS: dict[str, Callable[[Any], Any]] = {
    "multi_head_attention": lambda x: flow.layers.multi_head_attention(
        flow.reshape(x, (-1, 3, 2)), 2, num_key_value_heads=1, head_size=4, rotary_base=100
    ),
    "lstm": lambda x: flow.layers.lstm(flow.reshape(x, (-1, 3, 2)), 4)[0],
    "gru": lambda x: flow.layers.gru(flow.reshape(x, (-1, 3, 2)), 4)[1],
}
SIZED = {**batch_functions.ANY_SIZE, **batch_functions.BY_SIZE, **LAYERS}


@pytest.mark.parametrize("name", SIZED)
def test_a_replay_is_a_job_of_that_size(name: str, tmp_path: Path) -> None:
    save(SIZED[name], tmp_path)
    for rows in (ROWS, *OTHERS):
        adapted = name == "reshape to the constant size"
        function = (lambda x: flow.reshape(x, (-1, 2, 3))) if adapted else SIZED[name]
        expected = job_of(function, rows)(batch(rows))
        found = replayed(tmp_path, rows)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", batch_functions.FIXED)
def test_other_dependencies_are_refused(name: str, tmp_path: Path) -> None:
    function = batch_functions.FIXED[name]
    save(function, tmp_path)
    np.testing.assert_array_equal(replayed(tmp_path, ROWS), job_of(function, ROWS)(batch(ROWS)))
    with pytest.raises(JobError, match="not defined for this batch size") as caught:
        replayed(tmp_path, 8)
    assert Path(batch_functions.__file__).name in str(caught.value)


def test_sizes_between_the_multiples_are_refused(tmp_path: Path) -> None:
    save(lambda x: flow.reshape(x, (x.shape[0] // 2, -1)), tmp_path)
    assert replayed(tmp_path, 6).shape == (3, 12)
    with pytest.raises(JobError, match="with the number 7/2"):
        replayed(tmp_path, 7)


def test_sizes_below_what_a_program_needs_are_refused(tmp_path: Path) -> None:
    function = lambda x: flow.experimental.logical_slice(x, [(1, 3, 1), (None,) * 3])  # noqa: E731
    save(function, tmp_path)
    for rows in (3, 7):
        expected = job_of(function, rows)(batch(rows))
        np.testing.assert_array_equal(replayed(tmp_path, rows), expected)
    for rows in (1, 2):
        with pytest.raises(JobError, match=r"at least 3 rows: .*for size 2"):
            replayed(tmp_path, rows)


def test_all_results_of_an_op_are_returned(tmp_path: Path) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4,))) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        values, _, _, count = flow.experimental.unique_with_counts(x)
        return count, values, count

    builder = flow.saved_model.ModelBuilder(str(tmp_path)).Version(1)
    builder.AddFunction(job)
    builder.Save()
    option = flow.serving.SessionOption()
    option.device_tag = "cpu"
    with flow.serving.InferenceSession(option) as session:
        session.load_saved_model(str(tmp_path))
        session.launch()
        found = session.run("job", x=np.array([2, 1, 2, 2], np.float32))
    np.testing.assert_array_equal(found[0], [2])
    np.testing.assert_array_equal(found[1][:2], [2, 1])
    np.testing.assert_array_equal(found[2], [2])


def test_a_model_of_an_earlier_version_has_its_own_size_only(tmp_path: Path) -> None:
    save(batch_functions.ANY_SIZE["mean"], tmp_path)
    path = tmp_path / "1" / "saved_model.json"
    text = json.loads(path.read_text())
    del text["graphs"]["job"]["batch"]
    path.write_text(json.dumps(text))
    assert replayed(tmp_path, ROWS).shape == (1,)
    with pytest.raises(JobError, match="did not record"):
        replayed(tmp_path, 2)


def test_tracing_for_other_sizes_leaves_the_session_alone(tmp_path: Path) -> None:
    def function(x: Any) -> Any:
        if x.shape[0] != ROWS:
            flow.get_variable("other", (x.shape[0],), initializer=flow.zeros_initializer())
        return x * 2.0

    save(function, tmp_path)
    assert "other" not in flow.get_all_variables()


def any_size(path: Path) -> Any:
    option = flow.serving.SessionOption()
    option.device_tag = "cpu"
    session = flow.serving.InferenceSession(option)
    session.set_job_batch_size("job", -1)
    session.load_saved_model(str(path))
    session.launch()
    return session


BY_POSITION: dict[str, Callable[[Any], Any]] = {
    "tril": lambda x: flow.math.tril(x),
    "positions": lambda x: (
        x + flow.reshape(flow.range(0, x.shape[0], 1, dtype=flow.float), (x.shape[0], 1))
    ),
    "share of the batch": lambda x: x * flow.constant(1 / x.shape[0], flow.float, (1,)),
}
"""Functions of the position of a row, or of the size of its batch."""
REFUSED = ("constant rows",)
"""Functions with independent rows for which no proof is looked for."""


@pytest.mark.parametrize("name", [*SIZED, *BY_POSITION])
def test_rows_are_independent_where_a_job_of_one_row_computes_the_same(
    name: str, tmp_path: Path
) -> None:
    save((SIZED | BY_POSITION)[name], tmp_path)
    with any_size(tmp_path) as session:
        rows = batch(5)
        (whole,) = session.run("job", x=rows)
        parts = [session.run("job", x=rows[i : i + 1])[0] for i in range(5)]
        same = all(
            part.shape == (1, *whole.shape[1:])
            and whole.shape[:1] == (5,)
            and np.allclose(part, whole[i : i + 1], rtol=1e-5, atol=1e-6)
            for i, part in enumerate(parts)
        )
        mixed = session.mixed_rows("job")
        assert same is (not mixed) or name in REFUSED, mixed
        assert not (same and name in BY_POSITION)


def test_a_job_that_updates_a_variable_mixes_rows(tmp_path: Path) -> None:
    def function(x: Any) -> Any:
        seen = flow.get_variable("seen", (ROWS, batch_functions.WIDTH), trainable=False)
        flow.assign(seen, x)
        return flow.nn.relu(x)

    save(function, tmp_path)
    option = flow.serving.SessionOption()
    option.device_tag = "cpu"
    with flow.serving.InferenceSession(option) as session:
        session.load_saved_model(str(tmp_path))
        assert session.mixed_rows("job")


def test_a_size_that_a_program_does_not_define_is_refused_by_the_call(tmp_path: Path) -> None:
    save(lambda x: flow.reshape(x, (-1, 4)) if x.shape[0] % 2 == 0 else x, tmp_path)
    with pytest.raises(JobError, match="not defined for this batch size"):
        any_size(tmp_path)
    save(lambda x: flow.math.relu(x) if x.shape[0] < 30 else x, tmp_path / "other")
    with any_size(tmp_path / "other") as session:
        assert session.run("job", x=batch(30))[0].shape == (30, batch_functions.WIDTH)
