"""Networks in every parallel form are trained as on one device.

Losses and final weights of float64 networks are equal but for the order of sums, and bit for bit
from run to run; op by op, the oracle finds nothing but rounding.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from flow_core.testing import assert_like_one_device

from .networks import NETWORKS, Form, batches, train, train_job

FORMS = {
    **{f"data-{n}": Form(n) for n in (2, 3, 4)},
    **{f"rows-{n}": Form(n, weights=0) for n in (2, 3, 4)},
    **{f"columns-{n}": Form(n, weights=1) for n in (2, 3, 4)},
    **{f"hybrid-{n}": Form(n, weights=0, hybrid=True) for n in (2, 3, 4)},
    "pipeline-2": Form(2, stages=2),
    "pipeline-4": Form(4, stages=4),
    "pipeline-2-data-2": Form(4, stages=2),
    "grid-2x2": Form(4, hierarchy=(2, 2)),
}

SAMPLE = {
    ("mlp", "data-3"), ("mlp", "pipeline-4"), ("lenet", "rows-2"), ("lenet", "hybrid-3"),
    ("transformer", "data-2"), ("wide_deep", "columns-2"),
}  # fmt: skip
"""What is tried each time; the rest is slow."""

TOLERANCE = 1e-10
"""Relative to the largest element; float64 sums in other orders differ by 1e-13 or so."""


def cases(sample: set[tuple[str, str]]) -> list[Any]:
    """All networks in all forms, those that are not in the sample marked as slow."""
    return [
        pytest.param(network, form, marks=[] if (network, form) in sample else pytest.mark.slow)
        for network in NETWORKS
        for form in FORMS
    ]


@cache
def alone(network: str) -> tuple[Any, dict[str, Any]]:
    """The losses and weights of a network on one device."""
    return train(NETWORKS[network], Form())


def assert_near(found: Any, wanted: Any, what: str) -> None:
    scale = max(1.0, float(np.abs(wanted).max(initial=0.0)))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE * scale, err_msg=what)


@pytest.mark.parametrize(("network", "form"), cases(SAMPLE))
def test_training_equals_one_device(network: str, form: str) -> None:
    losses, weights = train(NETWORKS[network], FORMS[form])
    wanted, wanted_weights = alone(network)
    assert_near(losses, wanted, "losses")
    assert weights.keys() == wanted_weights.keys()
    for name, value in weights.items():
        assert_near(value, wanted_weights[name], name)
    again, weights_again = train(NETWORKS[network], FORMS[form])
    np.testing.assert_array_equal(again, losses)
    for name, value in weights.items():
        np.testing.assert_array_equal(weights_again[name], value)


@pytest.mark.parametrize(("network", "form"), cases({("mlp", "rows-3"), ("lenet", "columns-2")}))
def test_every_op_is_right(network: str, form: str) -> None:
    feeds = [[*inputs, labels] for inputs, labels in batches(NETWORKS[network])]
    found = assert_like_one_device(train_job(NETWORKS[network], FORMS[form]), feeds=feeds)
    assert len(found.ops) > 20


@pytest.mark.parametrize("network", NETWORKS)
def test_networks_learn(network: str) -> None:
    """There is something to compare: weights change, and losses are numbers."""
    losses, weights = alone(network)
    assert np.isfinite(losses).all()
    moments = [value for name, value in weights.items() if name.endswith("-m")]
    assert len(moments) >= 8
    assert all(np.abs(value).max() > 0 for value in moments)
