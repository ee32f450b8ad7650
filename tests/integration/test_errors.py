"""Mistakes of users: each a typed error with the line of their program and what to do."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Tuple  # noqa: UP035 - as in OneFlow's programs

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.errors import (
    AnnotationError,
    FeedError,
    FlowError,
    InferenceError,
    JobError,
    OutsideJobError,
    VariableError,
)

FIXED = flow.FixedTensorDef((2, 3))
PAIR = tp.Numpy.Placeholder((2, 3))
ZEROS = np.zeros((2, 3), np.float32)


def here() -> int:
    """The caller's line."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


@contextmanager
def mistake(kind: type[FlowError], text: str) -> Iterator[list[int]]:
    """Expects an error of a kind, with a text and at the line that is put into the list."""
    lines: list[int] = []
    with pytest.raises(kind, match=text) as caught:
        yield lines
    error = caught.value
    assert type(error) is kind
    assert error.at is not None, error
    assert (error.at.file, error.at.line) == (__file__, lines[0]), error
    assert f"(at {__file__}:{lines[0]})" in str(error)


def sgd(loss: Any) -> None:
    schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
    flow.optimizer.SGD(schedule, momentum=0).minimize(loss)


def weight(shape: tuple[int, ...] = (2, 3)) -> Any:
    return flow.get_variable("w", shape=shape, initializer=flow.ones_initializer())


# ------------------------------------------------------------------------------ annotations


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, r"int\n.*Numpy"),
        (np.ndarray, r"ndarray\n.*\n.*write -> tp\.Numpy"),
        (PAIR, r"placeholders are for parameters; write -> tp\.Numpy"),
        (tuple, "each of its types written out"),
        (list, r"List\[T\]"),
        (Tuple[tp.Numpy, int], "int"),  # noqa: UP006
        (Tuple[tp.Numpy, None], "None inside of another annotation"),  # noqa: UP006
        (tp.Bundle[tp.Tuple[tp.Numpy, tp.Numpy]], "Bundle of Numpy"),
        (Tuple[tp.Callback[tp.Numpy], tp.Numpy], "a Callback inside"),  # noqa: UP006
        ("tp.Nump", "Nump"),
        ("Nothing", "Nothing"),
    ],
)
def test_wrong_return_annotations(annotation: Any, text: str) -> None:
    with mistake(AnnotationError, text) as line:

        def job(x):
            return x

        line.append(job.__code__.co_firstlineno)
        job.__annotations__ = {"x": PAIR, "return": annotation}
        flow.global_function()(job)


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, r"int\n.*Placeholder"),
        (tp.Numpy, r"write tp\.Numpy\.Placeholder\(shape, dtype=\.\.\.\)"),
        (np.ndarray, "ndarray"),
        (Tuple[PAIR, tp.Numpy], "Numpy is for results"),  # noqa: UP006
    ],
)
def test_wrong_parameter_annotations(annotation: Any, text: str) -> None:
    with mistake(AnnotationError, text) as line:

        def job(x):
            return x

        line.append(job.__code__.co_firstlineno)
        job.__annotations__ = {"x": annotation, "return": tp.Numpy}
        flow.global_function()(job)


def test_a_parameter_without_placeholder() -> None:
    with mistake(AnnotationError, r"no annotation\n.*\n.*tp\.Numpy\.Placeholder") as line:
        line.append(here() + 2)

        @flow.global_function()
        def job(x):
            return x


def test_wrong_arguments_of_a_placeholder() -> None:
    for wrong in (
        lambda: tp.Numpy.Placeholder((2, -3)),
        lambda: tp.Numpy.Placeholder(6),
        lambda: tp.Numpy.Placeholder((2, 3), dtype="floaty"),
        lambda: tp.Numpy.Placeholder((2, 3), batch_axis=2),
    ):
        with mistake(AnnotationError, r"Numpy\.Placeholder") as line:
            line.append(wrong.__code__.co_firstlineno)
            wrong()


# ----------------------------------------------------------------------------- return values


@pytest.mark.parametrize(
    ("returns", "annotation", "text"),
    [
        (lambda x: 3, tp.Numpy, r"int 3\n.*a blob"),
        (lambda x: None, tp.Numpy, "None"),
        (lambda x: (x, x), tp.Numpy, "a tuple of 2"),
        (lambda x: x, None, r"-> tp\.Numpy"),
        (lambda x: x, Tuple[tp.Numpy, tp.Numpy], "a blob\n.*a tuple of 2"),  # noqa: UP006
        (lambda x: (x,), Tuple[tp.Numpy, tp.Numpy], "a tuple of 1\n.*a tuple of 2"),  # noqa: UP006
        (lambda x: [x, x], Tuple[tp.Numpy, tp.Numpy], "a list of 2"),  # noqa: UP006
        (lambda x: (x, "y"), Tuple[tp.Numpy, tp.Numpy], r"str 'y' at result\[1\]"),  # noqa: UP006
        (lambda x: x, tp.List[tp.Numpy], "a list"),
        (lambda x: {1: x}, tp.Dict[str, tp.Numpy], "keys of type str"),
        (lambda x: {"a": 2}, tp.Bundle[tp.Numpy], r"int 2 at result\['a'\]"),
        (lambda x: np.zeros(2), tp.Callback[tp.Numpy], "ndarray"),
    ],
)
def test_wrong_return_values(returns: Any, annotation: Any, text: str) -> None:
    def job(x):
        y = x + 1
        return returns(y)

    job.__annotations__ = {"x": PAIR, "return": annotation}
    wrapped = flow.global_function()(job)
    with mistake(AnnotationError, text) as line:
        line.append(job.__code__.co_firstlineno + 2)
        wrapped(ZEROS)


def test_the_line_of_a_job_with_several_returns_is_its_first() -> None:
    @flow.global_function()
    def job(x: PAIR) -> tp.Numpy:
        if x.shape == (2, 3):
            return 1
        return x

    with mistake(AnnotationError, "int 1") as line:
        line.append(job.function.__code__.co_firstlineno)
        job(ZEROS)


def test_returning_a_blob_of_another_job() -> None:
    kept = []

    @flow.global_function()
    def first(x: PAIR) -> tp.Numpy:
        kept.append(x)
        return x

    @flow.global_function()
    def second(x: PAIR) -> tp.Numpy:
        return kept[0]

    first(ZEROS)
    with mistake(AnnotationError, "BlobDef") as line:
        line.append(second.function.__code__.co_firstlineno + 2)
        second(ZEROS)


# ------------------------------------------------------------------------------------ feeding


def fed() -> Any:
    @flow.global_function()
    def job(
        x: PAIR,
        y: tp.Tuple[PAIR, tp.ListNumpy.Placeholder((4,), dtype=flow.int32)],
    ) -> tp.Numpy:
        return x

    return job


GOOD = (ZEROS, [np.zeros(4, np.int32)])


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((np.zeros((2, 4), np.float32), GOOD), r"'x'.*\n.*\(2, 4\)\n.*\(2, 3\)"),
        ((np.zeros(6, np.float32), GOOD), r"shape \(6,\)\n.*\(2, 3\)"),
        ((np.zeros((2, 3, 1), np.float32), GOOD), r"shape \(2, 3, 1\)"),
        ((np.full((2, 3), "1"), GOOD), "an array of <U1\n.*float32"),
        ((np.full((2, 3), None), GOOD), "an array of object"),
        (([[0, 0, 0], [0, 0, 0]], GOOD), r"a list of 2\n.*\n.*numpy\.asarray\(x, numpy\.float32\)"),
        ((None, GOOD), "NoneType"),
        ((3.0, GOOD), "float 3.0"),
        ((ZEROS, ZEROS), "array of float32 and shape"),
        ((ZEROS, (ZEROS,)), "a tuple of 1\n.*2 values"),
        ((ZEROS, (ZEROS, np.zeros(4, np.int32))), r"'y\[1\]'.*\n.*\n.*a list of arrays"),
        ((ZEROS, (ZEROS, [np.zeros(4, np.int32)] * 2)), "a list of 2"),
        ((ZEROS, (ZEROS, [np.array([1, 2, 2**31, 4])])), r"'y\[1\]\[0\]'.*\n.*2147483648\n.*int32"),
        ((ZEROS, (ZEROS, [np.full(4, 2.5)])), r"float64 with the number 2\.5\n.*\n.*astype"),
        ((ZEROS, (ZEROS, [np.full(4, np.nan)])), "with the number nan"),
        ((ZEROS, (ZEROS, [np.zeros(5, np.int32)])), r"shape \(5,\)"),
    ],
)
def test_wrong_arrays(args: Any, text: str) -> None:
    job = fed()
    with mistake(FeedError, text) as line:
        line.append(here() + 1)
        job(*args)
    np.testing.assert_array_equal(job(ZEROS, GOOD), ZEROS)


def test_numbers_of_other_types_are_cast() -> None:
    job, thirds = fed(), np.full((2, 3), 1 / 3)
    for numbers in (thirds, thirds.astype("f2"), np.ones((2, 3), "i8"), thirds > 0):
        for labels in (np.arange(4), np.arange(4.0), np.arange(4) > 2):
            np.testing.assert_array_equal(job(numbers, (ZEROS, [labels])), numbers.astype("f4"))


def test_a_smaller_array_in_a_list_is_welcome() -> None:
    job = fed()
    for size in (3, 4, 1):
        np.testing.assert_array_equal(job(ZEROS, (ZEROS, [np.zeros(size, np.int32)])), ZEROS)


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((), {}, "missing a required argument: 'x'"),
        ((ZEROS,), {}, "missing a required argument: 'y'"),
        ((ZEROS, GOOD, ZEROS), {}, "too many positional arguments"),
        ((ZEROS,), {"z": ZEROS, "y": GOOD}, "unexpected keyword argument 'z'"),
        ((ZEROS, GOOD), {"x": ZEROS}, "multiple values for argument 'x'"),
    ],
)
def test_wrong_arguments(args: Any, kwargs: Any, text: str) -> None:
    job = fed()
    with mistake(FeedError, rf"{text}(.|\n)*job\(x, y\)") as line:
        line.append(here() + 1)
        job(*args, **kwargs)


def test_a_job_without_annotations_needs_its_arguments_too() -> None:
    @flow.global_function()
    def job(x=FIXED):
        return x

    with mistake(FeedError, "missing a required argument") as line:
        line.append(here() + 1)
        job()


# --------------------------------------------------------------------------- train and predict


def test_minimize_in_a_predict_job() -> None:
    lines = []

    @flow.global_function(type="predict")
    def job() -> tp.Numpy:
        w = weight()
        schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
        lines.append(here() + 1)
        flow.optimizer.SGD(schedule, momentum=0).minimize(w)
        return w

    with mistake(JobError, r'type="train"') as line:
        line += lines
        try:
            job()
        finally:
            line += lines


def test_a_train_job_without_minimize() -> None:
    @flow.global_function(type="train")
    def job() -> tp.Numpy:
        return weight()

    with mistake(JobError, r'minimize(.|\n)*type="predict"') as line:
        line.append(job.function.__code__.co_firstlineno)
        job()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (lambda x: sgd(3.0), "float|3.0"),
        (lambda x: sgd(None), "None"),
        (lambda x: sgd(x), "trainable variables"),
        (lambda x: sgd([weight(), weight((2, 3))]), "one loss twice"),
        (
            lambda x: sgd([weight(), flow.math.reduce_sum(x)]),
            "losses of types",
        ),
    ],
)
def test_wrong_losses(body: Callable[[Any], None], text: str) -> None:
    @flow.global_function(type="train")
    def job(x: PAIR) -> tp.Numpy:
        body(x)
        return x

    with mistake(JobError, text) as line:
        line.append(sgd.__code__.co_firstlineno + 2)
        job(ZEROS)


def test_two_train_jobs_of_one_name() -> None:
    def make() -> Any:
        @flow.global_function(type="train")
        def job() -> None:
            sgd(weight())

        return job

    first = make()
    line = first.function.__code__.co_firstlineno
    with pytest.raises(JobError, match=rf"train job 'job' \(at .*:{line}\)\n.*:{line}\n"):
        make()


def test_wrong_uses_of_global_function() -> None:
    with mistake(JobError, "did you mean train") as line:
        line.append(here() + 1)
        flow.global_function(type="trian")
    with mistake(JobError, "made by flow.function_config") as line:
        line.append(here() + 1)
        flow.global_function(type="train", function_config={})


# ----------------------------------------------------------------------------- inside, outside


def test_a_blob_of_another_job() -> None:
    kept, lines = [], []

    @flow.global_function()
    def first(x: PAIR) -> tp.Numpy:
        kept.append(x)
        return x

    @flow.global_function()
    def second(x: PAIR) -> tp.Numpy:
        lines.append(here() + 1)
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
    with mistake(OutsideJobError, "no job function under definition") as line:
        own = "sgd" not in use.__code__.co_names and use.__code__.co_firstlineno
        line.append(own or sgd.__code__.co_firstlineno + 2)
        use(kept[0])


def test_values_that_are_no_blobs() -> None:
    lines = []

    @flow.global_function()
    def job(x: PAIR) -> tp.Numpy:
        lines.append(here() + 1)
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
        lines.append(here() + 1)
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
        lines.append(here() + 1)
        return x if x > 0 else -x

    with mistake(JobError, "truth value") as line:
        try:
            job(ZEROS)
        finally:
            line += lines


def test_calling_a_job_inside_a_job() -> None:
    lines = []

    @flow.global_function()
    def inner(x: PAIR) -> tp.Numpy:
        return x

    @flow.global_function()
    def outer(x: PAIR) -> tp.Numpy:
        lines.append(here() + 1)
        return inner(x)

    with mistake(JobError, "the definition of another job") as line:
        try:
            outer(ZEROS)
        finally:
            line += lines
    np.testing.assert_array_equal(inner(ZEROS), ZEROS)


def test_an_error_in_the_body_is_the_users_own() -> None:
    @flow.global_function()
    def job(x: PAIR) -> tp.Numpy:
        raise KeyError("mine")

    for _ in range(2):  # and it does not make the job half defined
        with pytest.raises(KeyError, match="mine") as caught:
            job(ZEROS)
        assert caught.traceback[-1].path.name == "test_errors.py"


# --------------------------------------------------------------------------------- variables


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
        line.append(body.__code__.co_firstlineno)
        job()


# ---------------------------------------------------------------------------------- watching


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (lambda x, w: flow.watch(3, "a"), "3"),
        (lambda x, w: flow.watch_diff(None), "None"),
        (lambda x, w: flow.watch_diff(flow.math.relu(x)), "no loss depends on"),
    ],
)
def test_wrong_watches(body: Callable[[Any, Any], Any], text: str) -> None:
    @flow.global_function(type="train")
    def job(x: PAIR) -> None:
        w = weight()
        sgd(w)
        body(x, w)

    with mistake(JobError, text) as line:
        line.append(body.__code__.co_firstlineno)
        job(ZEROS)


def test_watching_gradients_in_a_predict_job() -> None:
    lines = []

    @flow.global_function(type="predict")
    def job(x: PAIR) -> None:
        lines.append(here() + 1)
        flow.watch_diff(x)

    with mistake(JobError, "predict") as line:
        try:
            job(ZEROS)
        finally:
            line += lines


def test_a_handler_of_several_values() -> None:
    def handler(a: tp.Numpy, b: tp.Numpy) -> None:
        pass

    @flow.global_function(type="predict")
    def job(x: PAIR) -> None:
        flow.watch(x, handler)

    with mistake(AnnotationError, "2 parameters") as line:
        line.append(handler.__code__.co_firstlineno)
        job(ZEROS)


def test_a_handler_with_another_annotation() -> None:
    def handler(a: np.ndarray) -> None:
        pass

    @flow.global_function(type="predict")
    def job(x: PAIR) -> None:
        flow.watch(x, handler)

    with mistake(AnnotationError, "parameter of handler 'handler'") as line:
        line.append(handler.__code__.co_firstlineno)
        job(ZEROS)


# ----------------------------------------------------------------------------------- the rest


def test_an_op_outside_of_jobs_in_eager_mode() -> None:
    flow.enable_eager_execution()
    with mistake(OutsideJobError, "global_function") as line:
        line.append(here() + 1)
        flow.constant(1.0, shape=(2,), dtype=flow.float)


def test_a_callback_that_is_no_function() -> None:
    @flow.global_function()
    def job(x: PAIR) -> tp.Callback[tp.Numpy]:
        return x

    with mistake(JobError, "a function of one argument") as line:
        line.append(here() + 1)
        job(ZEROS)(3)


def test_arrays_of_a_structure() -> None:
    @flow.global_function()
    def job(x=FIXED):
        return x, x

    with mistake(JobError, r"get\(\)\[0\]\.numpy\(\)") as line:
        line.append(here() + 1)
        job(ZEROS).numpy()
