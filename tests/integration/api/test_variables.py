"""Variables: shared by name, conflicts named, values that come from seed and name alone."""

from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import CheckpointError, JobError, VariableError


def variable(name: str = "w", shape: Any = (2, 3), **options: Any) -> Any:
    options.setdefault("initializer", flow.random_normal_initializer(stddev=0.5))
    return flow.get_variable(name, shape=shape, **options)


def minimize(loss: Any, rate: float = 0.5) -> None:
    schedule = flow.optimizer.PiecewiseConstantScheduler([], [rate])
    flow.optimizer.SGD(schedule, momentum=0).minimize(loss)


def test_jobs_share_variables_by_name() -> None:
    @flow.global_function(type="train")
    def train() -> tp.Numpy:
        w = variable()
        minimize(w)
        return w

    @flow.global_function(type="predict")
    def look() -> tp.Numpy:
        return variable()

    before = look()
    np.testing.assert_array_equal(train(), before)
    np.testing.assert_allclose(look(), before - 0.5 / 6, rtol=1e-6)
    np.testing.assert_array_equal(flow.get_all_variables()["w"].numpy(), look())
    assert look() is not before


def test_a_variable_is_asked_for_twice_in_one_job() -> None:
    @flow.global_function(type="predict")
    def job() -> tp.Tuple[tp.Numpy, tp.Numpy]:
        return variable(), variable()

    first, second = job()
    np.testing.assert_array_equal(first, second)
    assert list(flow.get_all_variables()) == ["w"]


def test_name_scopes_prefix_names() -> None:
    @flow.global_function(type="predict")
    def job() -> tp.Numpy:
        with flow.scope.namespace("outer"), flow.scope.namespace("inner"):
            a = variable("w")
        return a + variable("w")

    job()
    assert sorted(flow.get_all_variables()) == ["outer-inner-w", "w"]


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"shape": (3, 2)}, "type"),
        ({"dtype": flow.double}, "type"),
        ({"initializer": flow.ones_initializer()}, "initializer"),
        ({"random_seed": 7}, "seed"),
    ],
)
def test_conflicts_between_jobs_name_both_lines(other: dict[str, Any], what: str) -> None:
    @flow.global_function(type="predict")
    def first() -> tp.Numpy:
        return variable()

    @flow.global_function(type="predict")
    def second() -> tp.Numpy:
        return flow.get_variable(
            "w",
            **{"shape": (2, 3), "initializer": flow.random_normal_initializer(stddev=0.5), **other},
        )

    value = first()
    second_line = second.function.__code__.co_firstlineno + 2
    first_line = variable.__code__.co_firstlineno + 2
    for _ in range(2):
        with pytest.raises(VariableError, match=f"found: +{what}") as caught:
            second()
        message = str(caught.value)
        assert f"(at {__file__}:{second_line})" in message
        assert f"in job 'first' at {__file__}:{first_line}" in message
    np.testing.assert_array_equal(first(), value)


def test_a_job_that_failed_leaves_no_variables_behind() -> None:
    @flow.global_function(type="predict")
    def broken() -> tp.Numpy:
        variable(shape=(5,))
        raise RuntimeError("later in the job")

    @flow.global_function(type="predict")
    def sound() -> tp.Numpy:
        return variable(shape=(2,))

    with pytest.raises(JobError, match="RuntimeError: later"):
        broken()
    assert sound().shape == (2,)


def test_reuse_can_be_refused() -> None:
    lines = []

    @flow.global_function(type="predict")
    def job() -> tp.Numpy:
        a = variable()
        lines.append(variable.__code__.co_firstlineno + 2)
        return a + variable(reuse=False)

    with pytest.raises(VariableError, match="since reuse=False") as caught:
        job()
    assert f"made at {__file__}:{lines[0]}" in str(caught.value)


def test_a_name_that_another_op_has() -> None:
    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        y = flow.math.relu(x, name="w")
        return y + variable("w", (2,))

    with pytest.raises(VariableError, match=r"another op of that name \(relu\)"):
        job(np.zeros(2, np.float32))


def test_values_depend_on_seed_and_name_only() -> None:
    @flow.global_function(type="predict")
    def job() -> tp.Bundle[tp.Numpy]:
        return {
            "a": variable("a"),
            "b": variable("b"),
            "seeded": variable("c", random_seed=3),
            "sliced": variable("d", (4, 3)),
        }

    once = job()
    flow.clear_default_session()
    again = job()
    for name, value in once.items():
        np.testing.assert_array_equal(value, again[name])
    assert (once["a"] != once["b"]).any()
    flow.clear_default_session()

    @flow.global_function(type="predict")
    def other() -> tp.Numpy:
        variable("z")
        return variable("a")

    np.testing.assert_array_equal(other(), once["a"])


def test_variables_that_are_not_trainable_stay() -> None:
    @flow.global_function(type="train")
    def train() -> tp.Numpy:
        frozen = variable("frozen", trainable=False)
        minimize(frozen + variable("w"))
        return frozen

    np.testing.assert_array_equal(train(), train())


def test_listing_variables_waits_for_steps_in_flight() -> None:
    @flow.global_function(type="train")
    def train() -> tp.Callback[tp.Numpy]:
        w = variable("w", (1,), initializer=flow.zeros_initializer())
        minimize(w, 1.0)
        return w

    for _ in range(10):
        train()(lambda _: None)
    values = flow.get_all_variables()
    assert float(values["w"].numpy()[0]) == -10.0
    train()(lambda _: None)
    assert float(values["w"].numpy()[0]) == -11.0
    assert values["w"].shape == (1,)
    assert values["w"].dtype == flow.float32
    assert repr(values["w"]).startswith("VariableBlob('w', ")
    (counter,) = (name for name in values if name.startswith("System-Train-TrainStep"))
    assert int(values[counter].numpy()[0]) == 11


def test_loading_variables_from_arrays() -> None:
    @flow.global_function(type="predict")
    def job() -> tp.Numpy:
        return variable() + variable("v")

    w, v = np.full((2, 3), 2, np.float32), np.full((2, 3), 3, np.float32)
    flow.load_variables({"w": w, "v": v, "unknown": w})
    np.testing.assert_array_equal(job(), w + v)
    flow.load_variables({"w": v})
    np.testing.assert_array_equal(job(), v + v)
    flow.load_variables(flow.get_all_variables())
    with pytest.raises(CheckpointError, match="'unknown', which no job has") as caught:
        flow.load_variables({"w": v, "unknown": w}, ignore_mismatch=False)
    assert caught.value.at is not None
    assert caught.value.at.file == __file__
    with pytest.raises(CheckpointError, match=r"'v'.*\n.*'w'"):
        flow.load_variables({"w": v[:1], "v": v.astype(np.float64)})
    np.testing.assert_array_equal(job(), v + v)
