"""Each public function in a loss: micro-batches give the weights of the batch, or a warning."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import public_arrays
import public_layers
import public_math
import public_nn
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import FlowError

FAMILIES = (public_math, public_arrays, public_nn, public_layers)
CALLS: dict[str, public_math.Call] = {
    key: call
    for family in FAMILIES
    for key, call in family.CALLS.items()
    if call[1] and call[1][0].ndim
}
UNCHANGED = {
    "dynamic_reshape": "the mean of all elements does not depend on their shape",
    "math.l2_normalize: negative axis, small": "a sum of squares below epsilon is not used",
    "reverse": "the mean of rows does not depend on their order",
    "sort: descending, axis 0": "the mean of rows does not depend on their order",
    "tensor_scatter_nd_add": "the mean of what is added to each micro-batch is what is added",
}
"""Losses that a warning names although a mean over their elements makes them equal."""
STATISTICS = "layers.batch_normalization"
"""Statistics of batches are those of micro-batches, as in other frameworks."""
DYNAMIC = ("sync_dynamic_resize", "math.broadcast_to_compatible_with")
"""Functions that are told a number of rows: of the batch, or of the micro-batch."""
BIG, WEIGHT = 4, 1.01


def enlarged(arrays: Sequence[Any], fed: Sequence[int]) -> list[Any]:
    """Return the arrays, with several times as many rows of those that are fed."""
    rng = np.random.default_rng(5)
    order = rng.permutation(BIG * len(arrays[0]))

    def more(x: Any) -> Any:
        y = np.concatenate([x] * BIG)[order]
        scale = rng.uniform(0.9, 1, (len(y), *[1] * (y.ndim - 1)))
        return (y * scale).astype(y.dtype) if y.dtype.kind == "f" else y

    return [more(x) if i in fed else x for i, x in enumerate(arrays)]


def job_of(key: str, fed: Sequence[int], arrays: Sequence[Any], parts: int, mean: bool) -> Any:
    """Return a job that trains one weight, by which what is fed is multiplied."""

    def job(xs: Any) -> Any:
        w = flow.get_variable("w", (1,), initializer=flow.constant_initializer(WEIGHT))
        own = []
        for i, x in enumerate(arrays):
            if i in fed:
                value = xs[fed.index(i)]
                own.append(value * w if x.dtype.kind == "f" else value)
            else:
                ones = flow.ones_initializer()
                own.append(flow.get_variable(f"c{i}", x.shape, as_dtype(x.dtype), ones))
        found = CALLS[key][0](*own)
        first = next(
            (y for y in (found if isinstance(found, list | tuple) else [found])
             if y.dtype is flow.float32),
            own[0],
        )  # fmt: skip
        loss = flow.math.reduce_mean(first) if mean else first
        flow.optimizer.SGD(0.1, momentum=0).minimize(loss)
        return loss

    places = [tp.Numpy.Placeholder(arrays[i].shape, as_dtype(arrays[i].dtype)) for i in fed]
    job.__annotations__ = {"xs": tuple[*places], "return": tp.Numpy}
    settings = flow.function_config()
    settings.train.num_gradient_accumulation_steps(parts)
    return flow.global_function("train", settings)(job)


def trained(
    key: str, fed: Sequence[int], parts: int, mean: bool
) -> tuple[dict[str, Any], list[str]]:
    """Return the variables after a step, and the warnings about micro-batches."""
    flow.clear_default_session()
    arrays = enlarged(CALLS[key][1], fed)
    job = job_of(key, fed, arrays, parts, mean)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        job(tuple(arrays[i] for i in fed))
    found = {k: v.numpy() for k, v in flow.get_all_variables().items()}
    return found, [str(w.message) for w in caught if "micro-batches" in str(w.message)]


def whole_batch(key: str, mean: bool) -> tuple[list[int], dict[str, Any]] | None:
    """Return which arguments are the batch, and the trained variables; None without a gradient."""
    arrays = CALLS[key][1]
    rows = arrays[0].shape[0]
    same = [i for i, x in enumerate(arrays) if x.shape and x.shape[0] == rows]
    for fed in ([0], same):
        try:
            return fed, trained(key, fed, 1, mean)[0]
        except (FlowError, IndexError):
            pass
    return None


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return all(np.allclose(a[k], b[k], rtol=1e-6, atol=2e-7, equal_nan=True) for k in a)


@pytest.mark.representative(
    r"\[(math\.reduce_(sum|mean|max)|slice|gather|nn\.conv2d: valid|reshape|concat|math\.add)",
    "reductions, row-wise ops and ops that pick rows",
)
@pytest.mark.parametrize("key", CALLS)
def test_weights_are_those_of_the_batch_or_a_warning_says_why(key: str) -> None:
    for mean in (True, False):
        whole = whole_batch(key, mean)
        if whole is None or key in DYNAMIC:
            continue
        fed, expected = whole
        found, texts = trained(key, fed, 2, mean)
        if texts:
            assert "rows" in texts[0]
            assert key in UNCHANGED or not equal(found, expected)
        else:
            assert equal(found, expected) or key.startswith(STATISTICS)


@pytest.mark.exhaustive
def test_most_functions_have_a_gradient() -> None:
    assert sum(whole_batch(key, mean=True) is not None for key in CALLS) > 300
