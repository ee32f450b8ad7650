"""What cannot be done while a job is defined, or outside of that."""

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mistakes import PAIR, SGD_LINE, ZEROS, here, line_of, mistake, sgd

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import (
    FlowError,
    InferenceError,
    JobError,
    NoValueError,
    OutsideJobError,
    VariableError,
)


def test_a_blob_of_another_job() -> None:
    kept, lines = [], []

    @flow.global_function()
    def first(x: PAIR) -> tp.Numpy:
        kept.append(x)
        return x

    @flow.global_function()
    def second(x: PAIR) -> tp.Numpy:
        lines.append(here(1))
        return flow.math.relu(kept[0] + x)

    first(ZEROS)
    with mistake(JobError, "of job 'first' inside job 'second'") as line:
        try:
            second(ZEROS)
        finally:
            line += lines


@pytest.mark.parametrize(
    "use",
    [
        lambda x: flow.math.relu(x),
        lambda x: x + 1,
        lambda x: flow.constant(1, dtype=flow.float),
        lambda x: flow.get_variable("w", shape=(1,)),
        lambda x: flow.watch(x),
        lambda x: sgd(x),
    ],
)
def test_ops_outside_of_jobs(use: Callable[[Any], Any]) -> None:
    kept = []

    @flow.global_function()
    def job(x: PAIR) -> tp.Numpy:
        kept.append(x)
        return x

    job(ZEROS)
    with mistake(OutsideJobError, "no job function being traced") as line:
        line.append(SGD_LINE if "sgd" in use.__code__.co_names else line_of(use))
        use(kept[0])


def test_values_that_are_no_blobs() -> None:
    lines = []

    @flow.global_function()
    def job(x: PAIR) -> tp.Numpy:
        lines.append(here(1))
        return flow.math.relu(ZEROS)

    with mistake(JobError, r"ndarray(.|\n)*flow\.constant") as line:
        try:
            job(ZEROS)
        finally:
            line += lines


def test_shapes_that_do_not_fit() -> None:
    lines = []

    @flow.global_function()
    def job(x: PAIR) -> tp.Numpy:
        y = flow.reshape(x, (3, 2))
        lines.append(here(1))
        return x + y

    with mistake(InferenceError, r"\(2, 3\)(.|\n)*\(3, 2\)|3, 2") as line:
        try:
            job(ZEROS)
        finally:
            line += lines


def test_the_truth_of_a_blob() -> None:
    lines = []

    @flow.global_function()
    def job(x: PAIR) -> tp.Numpy:
        lines.append(here(1))
        return x if x > 0 else -x

    with mistake(NoValueError, "truth value") as line:
        try:
            job(ZEROS)
        finally:
            line += lines


def test_a_blob_may_be_asked_whether_it_is_there() -> None:
    def dense(x: Any, bias: Any = None) -> Any:
        return flow.nn.bias_add(x, bias) if bias else x

    @flow.global_function()
    def job(x: PAIR) -> tuple[tp.Numpy, tp.Numpy]:
        bias = flow.get_variable("there", shape=(3,), initializer=flow.ones_initializer())
        return dense(x, bias), dense(x) or x

    found, plain = job(ZEROS)
    np.testing.assert_array_equal(found, ZEROS + 1)
    np.testing.assert_array_equal(plain, ZEROS)


def test_calling_a_job_inside_a_job() -> None:
    lines = []

    @flow.global_function()
    def inner(x: PAIR) -> tp.Numpy:
        return x

    @flow.global_function()
    def outer(x: PAIR) -> tp.Numpy:
        lines.append(here(1))
        return inner(x)

    with mistake(JobError, "the definition of another job") as line:
        try:
            outer(ZEROS)
        finally:
            line += lines
    np.testing.assert_array_equal(inner(ZEROS), ZEROS)


def test_an_error_in_the_body_is_the_cause_of_ours() -> None:
    @flow.global_function()
    def job(x: PAIR) -> tp.Numpy:
        raise KeyError("mine")

    for _ in range(2):  # and it does not make the job half defined
        with pytest.raises(JobError, match=r"(?s)defining job 'job'.*KeyError: 'mine'") as caught:
            job(ZEROS)
        assert caught.value.at == line_of(job.function, 2)
        cause = caught.value.__cause__
        assert isinstance(cause, KeyError)
        assert traceback.extract_tb(cause.__traceback__)[-1].filename == __file__


def test_an_unknown_function_is_an_error_of_its_job() -> None:
    @flow.global_function()
    def misspelt(x: PAIR) -> tp.Numpy:
        return flow.nn.rleu(x)

    with mistake(JobError, "(?s)job 'misspelt'.*no attribute 'rleu'.*did you mean relu") as line:
        line.append(line_of(misspelt.function, 2))
        misspelt(ZEROS)


def test_errors_of_flow_in_a_body_name_the_job_in_a_note() -> None:
    @flow.global_function()
    def job(x: PAIR) -> tp.Numpy:
        return flow.reshape(x, (7,))

    with pytest.raises(InferenceError) as caught:
        job(ZEROS)
    assert caught.value.__notes__ == [f"in job 'job', defined at {line_of(job.function)}"]


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (lambda: flow.get_variable("w"), VariableError, "no shape"),
        (lambda: flow.get_variable("w", shape=3), VariableError, "shape 3"),
        (lambda: flow.get_variable("w", shape=(-1,)), VariableError, r"shape \(-1,\)"),
        (lambda: flow.get_variable(None, shape=(1,)), VariableError, "name None"),
        (
            lambda: flow.get_variable("w", shape=(1,), initializer=0.5),
            InferenceError,
            "0.5(.|\n)*initializer",
        ),
        (
            lambda: flow.get_variable("w", shape=(1,), regularizer=0.5),
            VariableError,
            "0.5(.|\n)*regularizers",
        ),
        (lambda: flow.get_variable("w", shape=(1,), dtype="real"), InferenceError, "real"),
    ],
)
def test_wrong_variables(body: Callable[[], Any], kind: type[FlowError], text: str) -> None:
    @flow.global_function()
    def job() -> tp.Numpy:
        return body()

    with mistake(kind, text) as line:
        line.append(line_of(body))
        job()


# ------------------------------------------------------------------- blobs are no arrays


def run(body: Callable[[Any], Any], kind: str = "predict") -> Any:
    """Defines and calls a job of a body."""

    def job(x):
        return body(x)

    job.__annotations__ = {"x": PAIR, "return": tp.Numpy}
    return flow.global_function(kind)(job)(ZEROS)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (lambda x: x * float(x), "flow's functions"),
        (lambda x: x * int(x), r"blob\.shape\[0\]"),
        (lambda x: [x, x][x], "a Python number"),
        (lambda x: range(x), "a Python number"),
        (lambda x: f"{x:.2f}", "a Python number"),
        (lambda x: list(x), r"range\(blob\.shape\[0\]\)"),
        (lambda x: 1 in x, "reduce_any"),
        (lambda x: x.__setitem__(0, 1), "slice_update"),
        (lambda x: np.exp(x), r"flow\.math"),
        (lambda x: np.asarray(x), r"flow\.math"),
        (lambda x: max(x, x + 1), r"flow\.where"),
    ],
)
def test_python_and_numpy_ask_for_data(body: Callable[[Any], Any], text: str) -> None:
    with mistake(NoValueError, text) as line:
        line.append(line_of(body))
        run(body)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (lambda x: x + ZEROS, "ndarray(.|\n)*parameter of the job"),
        (lambda x: ZEROS + x, "ndarray(.|\n)*parameter of the job"),
        (lambda x: flow.math.subtract(x, ZEROS), "ndarray(.|\n)*parameter of the job"),
        (lambda x: x - "1", "str '1'"),
        (lambda x: x == None, "NoneType"),  # noqa: E711 - the mistake
        (lambda x: x / 0, "divisor not 0"),
    ],
)
def test_operands_that_are_no_numbers(body: Callable[[Any], Any], found: str) -> None:
    with mistake(JobError, found) as line:
        line.append(line_of(body))
        run(body)


def test_numbers_of_numpy_on_either_side() -> None:
    found = run(lambda x: np.float32(2) * (x + 3) - np.array(1.5) + (np.int64(1) - x))
    np.testing.assert_array_equal(found, ZEROS + 5.5)


def test_attributes_say_where_they_are() -> None:
    for name, where in (("mean", "flow.math.reduce_mean"), ("T", "flow.transpose"), ("grad", "'g")):
        with pytest.raises(JobError, match=f"AttributeError(.|\n)*{where}"):
            run(lambda x, name=name: getattr(x, name))
    with pytest.raises(JobError, match=r"AttributeError(.|\n)*no 'bias'$"):
        run(lambda x: x.bias)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (lambda x: flow.layers.dense(ZEROS, 2), r"layers\.dense(.|\n)*ndarray"),
        (lambda x: flow.layers.conv2d(ZEROS, 2), r"layers\.conv2d(.|\n)*ndarray"),
        (lambda x: flow.layers.batch_normalization(ZEROS), "ndarray"),
        (lambda x: flow.concat([x, ZEROS], 0), "ndarray|array"),
        (lambda x: flow.nn.softmax(x, axis="rows"), "axis 'rows'"),
        (lambda x: flow.concat([x, x], axis=1.5), r"axis 1\.5"),
        (lambda x: flow.reshape(x, 6), r"shape 6(.|\n)*\[size\]"),
        (lambda x: flow.layers.conv2d(flow.reshape(x, (1, 1, 2, 3)), 1, 1.5), r"kernel_size=1\.5"),
        # later releases have a bias before the format of the data
        (lambda x: flow.nn.conv2d(x, x, 1, "SAME", None, "NCHW"), "data_format=None(.|\n)*NCHW"),
        (lambda x: flow.layers.dense(x, 2, activation="relu"), "activation='relu'"),
        (lambda x: flow.assign(x + 1, x), "scalar_add(.|\n)*get_variable"),
    ],
)
def test_wrong_arguments_of_functions(body: Callable[[Any], Any], text: str) -> None:
    with mistake(InferenceError, text) as line:
        line.append(line_of(body))
        run(body)


def test_names_and_axes_of_distributions() -> None:
    for body, text in (
        (lambda x: flow.math.relu(x, name=3), "name of a relu"),
        (lambda x: x.with_distribute(flow.distribute.split(5)), "axis 5"),
    ):
        with mistake(JobError, text) as line:
            line.append(line_of(body))
            run(body)


def test_activations_need_take_no_name() -> None:
    ones = flow.ones_initializer()
    layer = lambda x, act: flow.layers.dense(x + 1, 2, activation=act, kernel_initializer=ones)  # noqa: E731
    for activation in (lambda y: y * 2, lambda y, name: y * 2, lambda y, **_: y * 2):
        np.testing.assert_array_equal(run(lambda x, a=activation: layer(x, a)), np.full((2, 2), 6))
        flow.clear_default_session()


def test_the_next_step_out_of_a_job() -> None:
    for body, text in (
        (lambda x: run(lambda y: y), "plain Python function"),
        (lambda x: [flow.layers.dense(x, 3, name="d") for _ in range(2)], 'name="..."'),
    ):
        with pytest.raises(FlowError, match=text):
            run(body)
