"""Training in micro-batches gives the weights and results of the whole batch, or a warning."""

import re
import warnings
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
from parallel_forms import emulated

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import CompatibilityWarning

ROWS, m = 8, flow.math
NUMBERS = count()


@pytest.fixture(autouse=True)
def devices() -> Iterator[None]:
    with emulated(2):
        yield


def fed() -> Any:
    return np.random.default_rng(0).uniform(0.5, 1.5, (ROWS, 2, 3)).astype(np.float32)


def train(
    function: Callable[[Any, Any, Any], Any], micro: int, ids: str = "0:0"
) -> tuple[Any, Any, list[str]]:
    """Train for two steps; return the weights, the last result, and the warnings."""
    flow.clear_default_session()
    settings = flow.function_config()
    settings.train.num_gradient_accumulation_steps(micro)

    @flow.global_function("train", settings)
    def job(x: tp.Numpy.Placeholder((ROWS, 2, 3))) -> tp.Numpy:
        with flow.scope.placement("gpu", ids):
            w = flow.get_variable("w", (6,), initializer=flow.constant_initializer(0.7))
            v = flow.get_variable("v", (2, 3), initializer=flow.constant_initializer(0.4))
            loss = function(x, w, v)
            loss, result = loss if isinstance(loss, tuple) else (loss, loss)
            flow.optimizer.SGD(0.01, momentum=0.9).minimize(loss)
            return result

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            result = job(fed())
    found = flow.get_all_variables()
    texts = [str(w.message) for w in caught if "micro-batches" in str(w.message)]
    assert all(w.category is CompatibilityWarning for w in caught)
    return np.concatenate([found["w"].numpy(), found["v"].numpy().ravel()]), result, texts


def flat(x: Any) -> Any:
    return flow.reshape(x, (-1, 6))


def penalty(w: Any) -> Any:
    return 0.1 * m.reduce_sum(m.square(w))


def mean_of_rows(y: Any) -> Any:
    return m.reduce_mean(m.square(y), axis=0, keepdims=True)


EQUAL: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a loss per row": lambda x, w, v: m.square(flat(x) * w),
    "a mean": lambda x, w, v: m.reduce_mean(m.square(x * v)),
    "a sum": lambda x, w, v: m.reduce_sum(m.square(x * v)),
    "a sum with numbered names": lambda x, w, v: m.reduce_sum(
        m.square(x * v, name=f"square{next(NUMBERS)}")
    ),
    "a sum over the rows": lambda x, w, v: m.reduce_sum(m.square(x * v), axis=0),
    "a mean of sums": lambda x, w, v: m.reduce_mean(m.reduce_sum(m.square(x * v), axis=0)),
    "a sum of means": lambda x, w, v: m.reduce_sum(m.reduce_mean(m.square(x * v), axis=0)),
    "a sum by a constant": lambda x, w, v: m.reduce_sum(m.square(x * v)) / 8,
    "a sum by the batch": lambda x, w, v: m.reduce_sum(m.square(x * v)) / x.shape[0],
    "rows by the batch": lambda x, w, v: m.reduce_sum(m.square(x * v) * (1 / x.shape[0])),
    "rows by a constant blob": lambda x, w, v: m.reduce_sum(
        m.square(x * v) * flow.constant(1 / x.shape[0], flow.float, (1,))
    ),
    "a scaled loss per row": lambda x, w, v: m.square(x * v) / x.shape[0],
    "a mean and a penalty": lambda x, w, v: m.reduce_mean(m.square(flat(x) * w)) + penalty(w),
    "rows and a penalty": lambda x, w, v: m.square(flat(x) * w) + penalty(w),
    "rows and a mean": lambda x, w, v: m.square(flat(x) * w) + 0.1 * mean_of_rows(flat(x) * w),
    "the sum of rows and a mean": lambda x, w, v: m.reduce_sum(
        m.square(flat(x) * w) + 0.1 * mean_of_rows(flat(x) * w)
    ),
    "a difference of means": lambda x, w, v: m.reduce_mean(x * v) - m.reduce_mean(m.square(x * v)),
    "a mean times a weight": lambda x, w, v: m.reduce_mean(x, axis=0) * m.square(v),
    "a product over the batch": lambda x, w, v: m.reduce_mean(
        flow.matmul(flat(x) * w, flat(x), transpose_a=True)
    ),
    "a gradient without the batch": lambda x, w, v: flat(x) + w,
    "a constant reshape": lambda x, w, v: m.square(flow.reshape(x, (ROWS, 6)) * w),
    "two constant reshapes": lambda x, w, v: m.square(
        flow.reshape(flow.reshape(x, (2 * ROWS, 3)), (ROWS, -1)) * w
    ),
    "a reshape of transposed rows": lambda x, w, v: m.square(
        flow.reshape(flow.reshape(flow.transpose(x, (1, 0, 2)), (2, ROWS, 3)), (2, ROWS, 3, 1))
        * flow.reshape(v, (2, 1, 3, 1))
    ),
    "the batch as the last axis": lambda x, w, v: (
        m.square(x * v), flow.transpose(m.square(flat(x)), (1, 0))
    ),
    "a batch in the middle": lambda x, w, v: (m.square(x * v), flow.transpose(x, (1, 0, 2))),
}  # fmt: skip

ROW_BY_ROW = (
    "a loss per row", "a constant reshape", "the batch as the last axis", "a batch in the middle"
)  # fmt: skip
"""The cases whose results are computed row by row, so that those of the batch consist of theirs."""


@pytest.mark.representative("sum|mean|constant", "the kinds of factors")
@pytest.mark.parametrize("name", EQUAL)
def test_weights_and_results_are_those_of_the_whole_batch(name: str) -> None:
    weights, result, _ = train(EQUAL[name], 1)
    for micro, ids in ((2, "0:0"), (4, "0:0-1")):
        found, parts, texts = train(EQUAL[name], micro, ids)
        assert not texts
        np.testing.assert_allclose(found, weights, rtol=2e-6)
        if name in ROW_BY_ROW:
            np.testing.assert_allclose(parts, result, rtol=2e-6)


WARNED: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "the square of a mean": (
        lambda x, w, v: m.square(m.reduce_mean(x * v)), "square .*reduce_mean",
    ),
    "a norm": (lambda x, w, v: m.sqrt(m.reduce_sum(m.square(x * v))), "sqrt .*reduce_sum"),
    "a quotient of sums": (
        lambda x, w, v: m.reduce_sum(m.square(x * v)) / m.reduce_sum(x), "_div .*reduce_sum",
    ),
    "a variance": (lambda x, w, v: m.reduce_variance(x * v, axis=0), "square .*reduce_mean"),
    "centered rows": (
        lambda x, w, v: m.square(x * v - m.reduce_mean(x * v, axis=0, keepdims=True)),
        "square .*reduce_mean",
    ),
    "the largest value": (
        lambda x, w, v: m.reduce_max(x * v, axis=0), "reduce_max.* combines all",
    ),
    "pairs of rows": (
        lambda x, w, v: flow.matmul(flat(x) * w, flat(x), transpose_b=True),
        "matmul.* combines all",
    ),
    "a sum and a penalty": (
        lambda x, w, v: m.reduce_sum(m.square(flat(x) * w)) + penalty(w),
        "the same for every batch",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WARNED)
def test_a_loss_that_differs_from_that_of_the_batch_is_named(name: str) -> None:
    function, expected = WARNED[name]
    whole, _, none = train(function, 1)
    found, _, (text,) = train(function, 2)
    assert not none
    assert not np.allclose(found, whole, rtol=1e-5)
    assert re.search(expected, text.replace("\n", " ")), text
    assert "test_micro_batches.py" in text
