"""Wrong watches and callbacks, and what goes wrong in a step."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mistakes import FIXED, PAIR, ZEROS, here, line_of, mistake, sgd, weight

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import (
    AnnotationError,
    CheckpointError,
    DataError,
    JobError,
    NoValueError,
    OutOfMemoryError,
    OutsideJobError,
)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (lambda x, w: flow.watch(3, "a"), "3"),
        (lambda x, w: flow.watch_diff(None), "None"),
    ],
)
def test_wrong_watches(body: Callable[[Any, Any], Any], text: str) -> None:
    @flow.global_function(type="train")
    def job(x: PAIR) -> None:
        w = weight()
        sgd(w)
        body(x, w)

    with mistake(JobError, text) as line:
        line.append(line_of(body))
        job(ZEROS)


def test_a_handler_of_several_values() -> None:
    def handler(a: tp.Numpy, b: tp.Numpy) -> None:
        pass

    @flow.global_function(type="predict")
    def job(x: PAIR) -> None:
        flow.watch(x, handler)

    with mistake(AnnotationError, "2 parameters") as line:
        line.append(line_of(handler))
        job(ZEROS)


def test_a_handler_with_another_annotation() -> None:
    def handler(a: np.ndarray) -> None:
        pass

    @flow.global_function(type="predict")
    def job(x: PAIR) -> None:
        flow.watch(x, handler)

    with mistake(AnnotationError, "parameter of handler 'handler'") as line:
        line.append(line_of(handler))
        job(ZEROS)


def test_an_op_outside_of_jobs_in_eager_mode() -> None:
    flow.enable_eager_execution()
    with mistake(OutsideJobError, "global_function") as line:
        line.append(here(1))
        flow.constant(1.0, shape=(2,), dtype=flow.float)


def test_a_callback_that_is_no_function() -> None:
    @flow.global_function()
    def job(x: PAIR) -> tp.Callback[tp.Numpy]:
        return x

    with mistake(JobError, "a function of one argument") as line:
        line.append(here(1))
        job(ZEROS)(3)


def test_arrays_of_a_structure() -> None:
    @flow.global_function()
    def job(x=FIXED):
        return x, x

    with mistake(JobError, r"get\(\)\[0\]\.numpy\(\)") as line:
        line.append(here(1))
        job(ZEROS).numpy()


def test_an_error_of_a_kernel_has_the_line_of_its_op() -> None:
    line = []

    @flow.global_function()
    def job(x: PAIR, labels: tp.Numpy.Placeholder((2,), dtype=flow.int32)) -> tp.Numpy:
        y = flow.math.relu(x)
        line.append(here(1))
        return flow.nn.sparse_softmax_cross_entropy_with_logits(labels, y)

    for _ in range(2):
        with mistake(DataError, "1 of 2 labels") as found:
            try:
                job(ZEROS, np.array([0, 3], np.int32))
            finally:
                found += line
    assert job(ZEROS, np.array([0, 2], np.int32)).shape == (2,)


def test_more_memory_than_there_is() -> None:
    @flow.global_function()
    def job() -> tp.Numpy:
        return flow.math.reduce_sum(flow.ones((2**30, 2**24), flow.float))

    with pytest.raises(OutOfMemoryError, match=rf"{2**56:,} bytes(.|\n)*{Path(__file__).name}"):
        job()


def test_a_callback_of_other_parameters_is_named() -> None:
    @flow.global_function()
    def job(x: PAIR) -> tp.Callback[tp.Bundle[tp.Numpy]]:
        return x, x

    def callback(one, other):
        pass

    job(ZEROS)(callback)
    with pytest.raises(TypeError, match="callback") as caught:
        flow.sync_default_session()
    assert str(line_of(callback)) in caught.value.__notes__[0]


def test_a_handle_says_how_to_get_the_array() -> None:
    @flow.global_function()
    def job(x=FIXED):
        return x

    with pytest.raises(AttributeError, match=r"no 'mean' yet: job\(\.\.\.\)\.get\(\)"):
        job(ZEROS).mean()


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda result: result[0], "an index into the result of a call"),
        (lambda result: list(result), "a loop over"),
        (lambda result: float(result), "a Python number of"),
        (lambda result: result + 1, "arithmetic with"),
        (lambda result: 2 * result, "arithmetic with"),
        (lambda result: np.float32(2) * result, "arithmetic with"),
        (lambda result: ZEROS - result, "arithmetic with"),
        (lambda result: np.mean(result), "numpy's view of"),
    ],
)
def test_a_handle_is_no_array(use: Callable[[Any], Any], text: str) -> None:
    @flow.global_function()
    def job(x=FIXED):
        return x

    result = job(ZEROS)
    with mistake(NoValueError, rf"{text}(.|\n)*job\(\.\.\.\)\.get\(\)") as line:
        line.append(line_of(use))
        use(result)
    np.testing.assert_array_equal(result.get().numpy(), ZEROS)


def test_checkpoints_that_are_not_there(tmp_path: Path) -> None:
    @flow.global_function()
    def job(x: PAIR) -> tp.Numpy:
        return x + weight()

    flow.checkpoint.save(str(tmp_path / "saved" / "step1"))
    for path, text in (("savd", "did you mean saved"), ("x", "check the path of the save")):
        with mistake(CheckpointError, text) as line:
            line.append(here(1))
            flow.checkpoint.get(str(tmp_path / path))


def test_variables_that_are_no_dict() -> None:
    for wrong in ([ZEROS], "folder"):
        with mistake(CheckpointError, r"flow\.checkpoint\.get") as line:
            line.append(here(1))
            flow.load_variables(wrong)
