"""Dropout, random and initial values: the same on one device and in every layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from parallel_forms import emulated

import oneflow as flow
import oneflow.typing as tp

SPLIT = flow.distribute.split(1)
STEPS = 5
X = np.random.default_rng(0).normal(size=(24, 16)).astype(np.float32)

FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "batch": ({"devices": "0:0-3"}, "S(0)"),
    "model": ({"devices": "0:0-3", "weight": SPLIT}, "S(1)"),
    "uneven": ({"devices": "0:0-2", "weight": SPLIT}, "S(1)"),
    "result": ({"devices": "0:0-3", "result": SPLIT}, "S(1)"),
    "grid": ({"devices": "0:0-3", "hierarchy": (2, 2)}, "(S(0), B)"),
    "micro-batches": ({"devices": "0:0-1", "micro_batches": 4}, "S(0)"),
    "recomputed": ({"devices": "0:0-3", "again": True}, "S(0)"),
}
"""The forms of the job, and the layout in which dropout runs."""


def run(
    devices: str = "0:0",
    hierarchy: tuple[int, ...] | None = None,
    weight: Any = None,
    result: Any = None,
    micro_batches: int = 1,
    again: bool = False,
    seed: int = 0,
) -> tuple[Any, Any, Any, str]:
    """Return what dropout keeps, the losses, the initial weights, and the layout of dropout."""
    config = flow.function_config()
    config.random_seed(seed)
    config.train.num_gradient_accumulation_steps(micro_batches)
    if weight is None and hierarchy is None and devices != "0:0":
        weight = flow.distribute.broadcast()

    with emulated(4):

        @flow.global_function(type="train", function_config=config)
        def train(x: tp.Numpy.Placeholder(X.shape)) -> tuple[tp.Numpy, tp.Numpy]:
            with flow.scope.placement("gpu", devices, hierarchy):
                begin = flow.random_normal_initializer()
                hint = {} if weight is None else {"distribute": weight}
                w = flow.get_variable("w", (16, 32), initializer=begin, **hint)
                y = flow.matmul(x, w)
                with flow.experimental.scope.config(checkpointing=again):
                    y = y if result is None else y.with_distribute(result)
                    y = flow.nn.dropout(y, rate=0.5, name="dropout")
                    y = y * flow.random.uniform(y.shape, 0.5, 1.5)
                    y = flow.math.tanh(y)
                loss = flow.math.reduce_mean(flow.math.square(y), axis=[1])
                flow.optimizer.SGD(0.1, momentum=0).minimize(loss)
            return y, loss

        initial = flow.get_all_variables()["w"].numpy()
        found = [train(X) for _ in range(STEPS)]
        layouts = train.compile().layouts
        texts = [str(v) for k, v in layouts.items() if k.op.startswith("dropout")]
    masks, losses = (np.stack(part) for part in zip(*found, strict=True))
    return masks != 0, losses, initial, texts[0].partition("] ")[2] if texts else ""


@pytest.fixture(scope="module")
def alone() -> tuple[Any, Any, Any, str]:
    return run()


@pytest.mark.parametrize("name", FORMS)
def test_a_form_drops_what_one_device_drops(name: str, alone: tuple[Any, Any, Any, str]) -> None:
    form, expected = FORMS[name]
    kept, losses, initial, layout = run(**form)
    assert layout == expected
    np.testing.assert_array_equal(kept, alone[0])
    np.testing.assert_array_equal(initial, alone[2])
    np.testing.assert_allclose(losses, alone[1], rtol=1e-5)


def test_each_step_and_seed_drops_others(alone: tuple[Any, Any, Any, str]) -> None:
    kept = alone[0]
    assert 0.4 < kept.mean() < 0.6
    assert all(not np.array_equal(kept[0], other) for other in kept[1:])
    assert not np.array_equal(run(seed=1)[0], kept)
