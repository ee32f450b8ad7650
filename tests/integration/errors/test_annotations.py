"""Wrong annotations and return values of job functions."""

from functools import partial
from typing import Any, Tuple  # noqa: UP035 - as in OneFlow's programs

import numpy as np
import pytest
from mistakes import PAIR, ZEROS, here, line_of, mistake

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import AnnotationError, JobError


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

        line.append(line_of(job))
        job.__annotations__ = {"x": PAIR, "return": annotation}
        flow.global_function()(job)


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, r"int\n.*Placeholder"),
        (tp.Numpy, r"write Annotated\[tp\.Numpy, tp\.shape\(4, 3\), flow\.float32\]"),
        (
            np.ndarray,
            r"ndarray(.|\n)*write Annotated\[tp\.Numpy, tp\.shape\(4, 3\), flow\.float32\]",
        ),
        (Tuple[PAIR, tp.Numpy], "Numpy is for results"),  # noqa: UP006
    ],
)
def test_wrong_parameter_annotations(annotation: Any, text: str) -> None:
    with mistake(AnnotationError, text) as line:

        def job(x):
            return x

        line.append(line_of(job))
        job.__annotations__ = {"x": annotation, "return": tp.Numpy}
        flow.global_function()(job)


def test_a_parameter_without_placeholder() -> None:
    with mistake(AnnotationError, r"no annotation\n.*\n.*write x: Annotated\[tp\.Numpy") as line:
        line.append(here(2))

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
            line.append(line_of(wrong))
            wrong()


@pytest.mark.parametrize(
    ("returns", "annotation", "text"),
    [
        (lambda x: 3, tp.Numpy, r"int 3\n.*a blob(.|\n)*flow\.constant"),
        (lambda x: None, tp.Numpy, r"None\n(.|\n)*or annotate the job with -> None"),
        (lambda x: (x, x), tp.Numpy, r"a tuple of 2\n(.|\n)*tuple\[tp\.Numpy, \.\.\.\]"),
        (lambda x: x, None, r"-> tp\.Numpy"),
        (lambda x: x, Tuple[tp.Numpy, tp.Numpy], "a blob\n.*a tuple of 2"),  # noqa: UP006
        (lambda x: (x,), Tuple[tp.Numpy, tp.Numpy], "a tuple of 1\n.*a tuple of 2"),  # noqa: UP006
        (lambda x: [x, x], Tuple[tp.Numpy, tp.Numpy], "a list of 2"),  # noqa: UP006
        (lambda x: (x, "y"), Tuple[tp.Numpy, tp.Numpy], r"str 'y' at result\[1\]"),  # noqa: UP006
        (lambda x: x, tp.List[tp.Numpy], "a list"),
        (lambda x: {1: x}, tp.Dict[str, tp.Numpy], "keys of type str"),
        (lambda x: {"a": 2}, tp.Bundle[tp.Numpy], r"int 2 at result\['a'\]"),
        (lambda x: np.zeros(2), tp.Callback[tp.Numpy], r"ndarray of float64 and shape \(2,\)"),
    ],
)
def test_wrong_return_values(returns: Any, annotation: Any, text: str) -> None:
    def job(x):
        y = x + 1
        return returns(y)

    job.__annotations__ = {"x": PAIR, "return": annotation}
    wrapped = flow.global_function()(job)
    with mistake(AnnotationError, text) as line:
        line.append(line_of(job, 2))
        wrapped(ZEROS)


def test_the_line_of_a_job_with_several_returns_is_its_first() -> None:
    @flow.global_function()
    def job(x: PAIR) -> tp.Numpy:
        if x.shape == (2, 3):
            return 1
        return x

    with mistake(AnnotationError, "int 1") as line:
        line.append(line_of(job.function))
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
        line.append(line_of(second.function, 2))
        second(ZEROS)


def test_parameters_that_no_data_can_be_fed_to() -> None:
    class Model:
        def method(self, x: PAIR) -> tp.Numpy:
            return x

    def number(x: PAIR, n=3) -> tp.Numpy:
        return x

    def several(*arrays: PAIR) -> tp.Numpy:
        return arrays[0]

    for function, text in (
        (Model.method, "inside of a method"),
        (number, "default 3(.|\n)*the variable n of the program"),
        (several, r"found:   \*arrays\n(.|\n)*Tuple"),
    ):
        with mistake(AnnotationError, text) as line:
            line.append(line_of(function))
            flow.global_function()(function)


def test_only_functions_become_jobs() -> None:
    for wrong in (3, dict, partial(print, "x")):
        with mistake(JobError, "a function written with def") as line:
            line.append(here(1))
            flow.global_function()(wrong)
