"""`indexed_slices_optimizer_conf`: named tables change in the looked-up rows alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from parallel_forms import emulated

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import ConfigError

ROWS, WIDTH, RATE = 9, 5, 0.1
IDS = np.array([[1, 4, 1], [7, 4, 8]], np.int32)
FACTORS = np.linspace(-1, 2, IDS.size * WIDTH).reshape(*IDS.shape, WIDTH).astype(np.float32)
Make = Callable[[], Any]


def schedule() -> Any:
    return flow.optimizer.PiecewiseConstantScheduler([], [RATE])


OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda: flow.optimizer.SGD(schedule(), momentum=0),
    "momentum": lambda: flow.optimizer.SGD(schedule(), momentum=0.8),
    "sgdw": lambda: flow.optimizer.SGDW(schedule(), momentum=0, weight_decay=0.3),
    "adam": lambda: flow.optimizer.Adam(schedule(), beta1=0.8, beta2=0.9, epsilon=1e-3),
    "adamw": lambda: flow.optimizer.AdamW(
        schedule(), beta1=0.8, beta2=0.9, epsilon=1e-3, do_bias_correction=True, weight_decay=0.3
    ),
}


def trained(
    make: Make, names: list[str], split: int | None = None, steps: int = 3
) -> tuple[Any, Any]:
    """The table after some steps that look up other rows each, and the job."""
    flow.clear_default_session()
    config = flow.FunctionConfig()
    config.indexed_slices_optimizer_conf({"include_op_names": {"op_name": names}})
    devices = "0:0-2" if split is not None else "0:0"

    @flow.global_function(type="train", function_config=config)
    def job(
        ids: tp.Numpy.Placeholder(IDS.shape, dtype=flow.int32),  # type: ignore[valid-type]
        factors: tp.Numpy.Placeholder(FACTORS.shape),  # type: ignore[valid-type]
    ) -> tp.Numpy:
        with flow.scope.placement("cpu", devices):
            spread = {} if split is None else {"distribute": flow.distribute.split(split)}
            table = flow.get_variable(
                "table", (ROWS, WIDTH), initializer=flow.ones_initializer(), **spread
            )
            loss = flow.math.reduce_sum(flow.gather(table * 2.0, ids) * factors)
            make().minimize(loss)
        return loss

    for step in range(steps):
        job((IDS + step) % ROWS, FACTORS)
    return flow.get_all_variables()["table"].numpy(), job


def rows_alone(kind: str, steps: int = 3) -> Any:
    """The same in numpy, in float64."""
    w, m, v = np.ones((ROWS, WIDTH)), np.zeros((ROWS, WIDTH)), np.zeros((ROWS, WIDTH))
    decay = 0.3 if kind.endswith("w") else 0.0
    for step in range(steps):
        ids = (IDS + step) % ROWS
        gradient = np.zeros_like(w)
        np.add.at(gradient, ids, 2.0 * FACTORS.astype(float))
        at = np.unique(ids)
        r, before = gradient[at], w[at]
        if kind.startswith("adam"):
            m[at] = 0.8 * m[at] + 0.2 * r
            v[at] = 0.9 * v[at] + 0.1 * r * r
            rate = RATE
            if kind == "adamw":
                rate *= np.sqrt(1 - 0.9 ** (step + 1)) / (1 - 0.8 ** (step + 1))
            w[at] -= rate * (m[at] / (np.sqrt(v[at]) + 1e-3) + decay * before)
        else:
            m[at] = (0.8 * m[at] if kind == "momentum" else 0) - RATE * r
            w[at] += m[at] - RATE * decay * before
    return w


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_rows_without_a_gradient_stay_with_their_moments(kind: str) -> None:
    table, job = trained(OPTIMIZERS[kind], ["table"])
    np.testing.assert_allclose(table, rows_alone(kind), 2e-5, 1e-6)
    types = {task.type for task in job.plan().tasks}
    assert any(t.startswith("indexed_slices_") for t in types)
    assert "unsorted_segment_sum" not in types


@pytest.mark.parametrize("split", [0, 1])
def test_a_table_in_parts_gives_the_same(split: int) -> None:
    table, job = trained(OPTIMIZERS["adam"], ["table"], split)
    np.testing.assert_allclose(table, rows_alone("adam"), 2e-5, 1e-6)
    assert any(task.type.startswith("indexed_slices_") for task in job.plan().tasks)


def test_tables_that_are_not_named_are_updated_as_a_whole() -> None:
    table, job = trained(OPTIMIZERS["adam"], ["another"])
    assert np.abs(table - rows_alone("adam")).max() > 1e-3
    assert not any(task.type.startswith("indexed_slices_") for task in job.plan().tasks)


@pytest.mark.parametrize("value", [{}, {"include_op_names": ["table"]}, 3])
def test_what_is_no_list_of_names_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="include_op_names"):
        flow.FunctionConfig().indexed_slices_optimizer_conf(value)


FREQUENT = 4
"""Ids below this number are in a table of their own."""


def looked_up_in_parts(ids: Any) -> Any:
    """Look up each distinct id once, frequent ones on the job's devices, the others on the host."""
    distinct, places, counts, _ = flow.experimental.unique_with_counts(ids)
    valid = flow.math.greater(counts, 0)
    limit = flow.constant(FREQUENT, dtype=flow.int32)
    rows = flow.zeros((ids.shape[0], WIDTH))
    for name, chosen, first, last, scope in (
        ("often", flow.math.less(distinct, limit), 0, FREQUENT, nullcontext()),
        ("rarely", flow.math.greater_equal(distinct, limit), FREQUENT, ROWS,
         flow.scope.placement("cpu", "0:0")),
    ):  # fmt: skip
        at = flow.argwhere(flow.math.logical_and(chosen, valid))
        own = flow.gather_nd(distinct, at) - first
        with scope:
            table = flow.get_variable(
                name, (last - first, WIDTH), initializer=flow.ones_initializer()
            )
            found = flow.gather(table, own)
        rows = flow.tensor_scatter_nd_update(rows, at, found)
    return flow.gather(rows, places)


@pytest.mark.parametrize("gpus", [1, 2])
def test_tables_in_parts_train_like_one_table(gpus: int) -> None:
    """Rows that no id looked up keep their values and moments, also the first row of a part."""
    steps = [[0, 5, 1, 8, 4, 5], [2, 2, 2, 2, 2, 2], [6, 7, 6, 7, 6, 8], [0, 4, 0, 4, 1, 5]]
    factors = FACTORS.reshape(6, WIDTH)

    def train(look_up: Callable[[Any], Any]) -> Any:
        config = flow.FunctionConfig()
        names = ["table", "often", "rarely"]
        config.indexed_slices_optimizer_conf({"include_op_names": {"op_name": names}})

        @flow.global_function(type="train", function_config=config)
        def job(
            ids: tp.Numpy.Placeholder((6,), dtype=flow.int32),
            factors: tp.Numpy.Placeholder((6, WIDTH)),
        ) -> tp.Numpy:
            loss = flow.math.reduce_sum(flow.math.square(look_up(ids)) * factors)
            flow.optimizer.LazyAdam(schedule(), beta1=0.8, beta2=0.9, epsilon=1e-3).minimize(loss)
            return loss

        with emulated(gpus):
            losses = [job(np.array(ids, np.int32), factors).item() for ids in steps]
            used = {t.type for t in job.plan().tasks}
            return losses, {n: x.numpy() for n, x in flow.get_all_variables().items()}, used

    def whole(ids: Any) -> Any:
        table = flow.get_variable("table", (ROWS, WIDTH), initializer=flow.ones_initializer())
        return flow.gather(table, ids)

    losses, tables, _ = train(whole)
    found, parts, used = train(looked_up_in_parts)
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    assert "indexed_slices_adam_update" in used
    assert "adam_update" not in used
    joined = np.concatenate([parts["often"], parts["rarely"]])
    np.testing.assert_allclose(joined, tables["table"], rtol=1e-5, atol=1e-6)
