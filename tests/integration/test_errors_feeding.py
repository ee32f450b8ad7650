"""Wrong arrays and arguments of a call."""

from typing import Any

import numpy as np
import pytest
from mistakes import FIXED, PAIR, ZEROS, here, mistake

import oneflow as flow
import oneflow.typing as tp
from flow_core.errors import FeedError


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
        ((np.zeros((5, 3), np.float32), GOOD), r"leave the batch out.*ListNumpy\.Placeholder"),
        ((np.full((2, 3), "1"), GOOD), "an array of <U1\n.*float32"),
        ((np.full((2, 3), None), GOOD), "an array of object"),
        ((np.full((2, 3), -1e300), GOOD), r"float64 with a number of size 1e\+300\n.*float32"),
        ((np.ma.masked_less(ZEROS, 1), GOOD), r"6 elements are masked\n.*\n.*x\.filled\(0\)"),
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
        line.append(here(1))
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
        line.append(here(1))
        job(*args, **kwargs)


def test_a_job_without_annotations_needs_its_arguments_too() -> None:
    @flow.global_function()
    def job(x=FIXED):
        return x

    with mistake(FeedError, "missing a required argument") as line:
        line.append(here(1))
        job()
