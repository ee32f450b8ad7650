"""Experts divided over devices: an all-to-all there and back, and the bits of one device."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from parallel_forms import assert_same, emulated

import oneflow as flow
import oneflow.typing as tp
from flow_core.frontend.session.session import default_session

BATCH, LENGTH, WIDTH, EXPERTS, HIDDEN, STEPS = 8, 6, 12, 4, 16, 3
SPLIT = {"model_distribute": flow.distribute.split(0)}
ALL = {"parallel_distribution": ["S(0)", "S(0)"]}
SECOND = {"parallel_distribution": ["B", "S(0)"]}
LAYOUTS: dict[str, tuple[str, tuple[int, ...] | None, dict[str, Any]]] = {
    "one device": ("0:0", None, {}),
    "2 devices": ("0:0-1", None, SPLIT),
    "4 devices": ("0:0-3", None, SPLIT),
    "all of a grid": ("0:0-3", (2, 2), ALL),
    "an axis of a grid": ("0:0-3", (2, 2), SECOND),
}


@pytest.fixture(autouse=True)
def devices() -> Iterator[None]:
    with emulated(4):
        yield


def make_job(
    layout: str, half: str = "", selector: str = "greedy", before: bool = False, **how: Any
) -> Any:
    """A train job of a mixture of experts; gives the loss of each token, and what was dropped."""
    devices, hierarchy, hint = LAYOUTS[layout]
    config = flow.function_config()
    config.enable_auto_mixed_precision(bool(half))
    if half == "bfloat16":
        config.mixed_precision_data_type(flow.bfloat16)
    shape = (BATCH, LENGTH, WIDTH)

    @flow.global_function(type="train", function_config=config)
    def job(
        x: tp.Numpy.Placeholder(shape), y: tp.Numpy.Placeholder(shape)
    ) -> tuple[tp.Numpy, tp.Numpy]:
        with flow.scope.placement("gpu", devices, hierarchy):
            if hierarchy:
                x = flow.hierarchical_parallel_cast(x, ["S(0)", "S(0)"])
            if before:
                x = flow.layers.layer_norm(x, name="before")
            found, balance_loss, dropped = flow.layers.mixture_of_experts(
                x, EXPERTS, HIDDEN, gate_dtype=flow.double, name="moe", **{**hint, **how}
            )
            losses = flow.math.reduce_sum(flow.math.square(x + found - y), -1)
            total = flow.math.reduce_mean(losses) + 0.01 * flow.cast(balance_loss, flow.float)
            flow.optimizer.Adam(1e-2, do_bias_correction=True).minimize(total)
        return losses, dropped

    return job


def feeds() -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    shape = (BATCH, LENGTH, WIDTH)
    return [tuple(rng.normal(size=(2, *shape)).astype(np.float32)) for _ in range(STEPS)]


def trained(*args: Any, **how: Any) -> tuple[Any, Any, dict[str, Any]]:
    """The losses of all tokens, the dropped choices of the steps, and the final weights."""
    flow.clear_default_session()
    job = make_job(*args, **how)
    losses, dropped = zip(*(job(*batch) for batch in feeds()), strict=True)
    stored = default_session().stored()
    return np.array(losses), np.array(dropped), {k: v.numpy() for k, v in stored.items()}


@pytest.mark.representative(
    "2 devices-1-]|4 devices-2-float16|grid-1-bfloat16|grid-2-]", "each layout, number, and type"
)
@pytest.mark.parametrize("half", ["", "float16", "bfloat16"])
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("layout", ["2 devices", "4 devices", "all of a grid"])
def test_training_has_the_bits_of_one_device(layout: str, k: int, half: str) -> None:
    losses, dropped, weights = trained(layout, half, k=k)
    wanted, without, alone = trained("one device", half, k=k)
    np.testing.assert_array_equal(dropped, without)
    assert (dropped > 0).all()
    assert_same((losses, weights), (wanted, alone))


def test_replicated_experts_differ_by_the_order_of_sums() -> None:
    losses, dropped, weights = trained("an axis of a grid")
    wanted, without, alone = trained("one device")
    np.testing.assert_array_equal(dropped, without)
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)
    for name, value in alone.items():
        np.testing.assert_allclose(weights[name], value, rtol=1e-3, atol=1e-4, err_msg=name)


MOVED = {
    "2 devices": ["S(1) -> S(0)", "S(0) -> S(1)", "S(1) -> S(0)"],
    "an axis of a grid": [
        "(S(1), S(1)) -> (S(1), S(0))",
        "(S(1), S(0)) -> (S(1), S(1))",
        "(S(1), S(1)) -> (S(1), S(0))",
    ],
}
"""Layouts of rows (experts, rows, width): to the experts, back, and gradients of results."""


@pytest.mark.representative("True-greedy|grid-True|2 devices-False-optimal", "each value of each")
@pytest.mark.parametrize("selector", ["greedy", "optimal"])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("layout", MOVED)
def test_devices_exchange_rows_by_all_to_all(layout: str, before: bool, selector: str) -> None:
    plan = make_job(layout, selector=selector, before=before).plan()
    large = [entry for entry in plan.ledger if entry.nbytes and entry.value.startswith("moe-")]
    found = [f"{e.source} -> {e.target}" for e in large if e.steps == ("all_to_all",)]
    assert [re.sub(r"gpu\[.*?\] ", "", text) for text in found] == (
        [*MOVED[layout], MOVED[layout][1]] if before else MOVED[layout]
    )
    rest = {step for entry in large for step in entry.steps} - {"all_to_all"}
    assert rest <= {"all_reduce", "reduce"}  # of gradients, and of the number of dropped choices
