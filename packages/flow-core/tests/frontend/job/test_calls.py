"""Calls of small jobs: what Python does for each, and feeds of all kinds of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from suite.work import calls

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import FeedError

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def doubled() -> Any:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return 2 * x

    return job


def test_a_call_of_a_small_job_makes_few_calls() -> None:
    job = doubled()
    for _ in range(2):
        job(X)  # compiles, and checks the outputs
    assert calls(lambda: job(X)) <= 54


class Labeled(np.ndarray[Any, np.dtype[Any]]):
    """A subclass of numpy's array that the program defines."""


@pytest.mark.parametrize(
    "fed",
    [
        X.view(Labeled),
        X.astype(">f4"),
        X.astype(np.float64),
        X.astype(np.int8),
        np.ma.MaskedArray(X),
        np.asfortranarray(X),
        X[::-1][::-1],
        X.tolist(),
    ],
    ids=["subclass", "byte order", "float64", "int8", "mask", "Fortran order", "view", "list"],
)
def test_feeds_that_are_not_plain_arrays_of_the_type(fed: Any) -> None:
    job = doubled()
    for value in (X, fed, X):
        np.testing.assert_array_equal(job(value), 2 * X)
    np.testing.assert_array_equal(job(x=fed), 2 * X)


@pytest.mark.parametrize("fed", [X[:1], X.astype(complex), X.ravel(), "six"])
def test_wrong_feeds_are_refused_between_right_ones(fed: Any) -> None:
    job = doubled()
    first = job(X)
    with pytest.raises(FeedError, match="feeding 'x' of job 'job'"):
        job(fed)
    second = job(X)
    np.testing.assert_array_equal(second, first)
    assert not np.shares_memory(second, first)
