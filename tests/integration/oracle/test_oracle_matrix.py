"""Networks in every parallel form are trained as on one device.

Losses and final weights of float64 networks are equal but for the order of sums, and bit for bit
from run to run; op by op, the oracle finds nothing but rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from parallel_networks import NETWORKS, Form, assert_near, batches, step_of, train, train_job

from flow_core.testing import assert_like_one_device

COUNTS = (2, 3, 4)
FORMS = {
    **{f"data-{n}": Form(n) for n in COUNTS},
    **{f"rows-{n}": Form(n, weights=0) for n in COUNTS},
    **{f"columns-{n}": Form(n, weights=1) for n in COUNTS},
    **{f"hybrid-{n}": Form(n, weights=0, hybrid=True) for n in COUNTS},
    "pipeline-2": Form(2, stages=2),
    "pipeline-4": Form(4, stages=4),
    "pipeline-2-data-2": Form(4, stages=2),
    "pipeline-2-micro-2": Form(2, stages=2, micro=2),
    "pipeline-4-micro-3": Form(4, stages=4, micro=3),
    "data-2-micro-2": Form(2, micro=2),
    "grid-2x2": Form(4, hierarchy=(2, 2)),
    "grid-2x2-rows": Form(4, weights=0, hierarchy=(2, 2)),
    "grid-2x2-columns": Form(4, weights=1, hierarchy=(2, 2)),
    **{f"zero-{n}": Form(n, optimizer="distributed_split") for n in COUNTS},
    **{f"zero-owners-{n}": Form(n, optimizer="non_distributed") for n in COUNTS},
    "zero-rows-4": Form(4, weights=0, hybrid=True, optimizer="distributed_split"),
    "zero-2-pipeline-2-micro-2": Form(4, stages=2, optimizer="distributed_split", micro=2),
    **{f"mirrored-{n}": Form(n, mirrored=True) for n in COUNTS},
}

SAMPLE = {
    ("mlp", "data-3"), ("mlp", "pipeline-4-micro-3"), ("mlp", "zero-4"), ("lenet", "rows-2"),
    ("lenet", "mirrored-3"), ("transformer", "data-2"), ("wide_deep", "columns-2"),
    ("transformer", "zero-2-pipeline-2-micro-2"), ("wide_deep", "zero-owners-2"),
}  # fmt: skip
"""What is tried each time; the rest is exhaustive."""
ALL = (pytest.mark.slow, pytest.mark.exhaustive)

"""Relative to the largest element; float64 sums in other orders differ by 1e-13 or so."""


def cases(sample: set[tuple[str, str]]) -> list[Any]:
    """All networks in all forms, those that are not in the sample marked as slow."""
    return [
        pytest.param(network, form, marks=[] if (network, form) in sample else ALL)
        for network in NETWORKS
        for form in FORMS
    ]


@cache
def alone(network: str, form: Form) -> tuple[Any, dict[str, Any]]:
    """The losses and weights of a network on one device."""
    return train(NETWORKS[network], form)


def _arrays(fed: Any) -> Iterator[Any]:
    """The arrays of a step, in the order of the job's inputs."""
    if isinstance(fed, list | tuple):
        for part in fed:
            yield from _arrays(part)
    else:
        yield fed


@pytest.mark.slow
@pytest.mark.representative(
    "mlp-data-3|transformer-zero-2|lenet-mirrored",
    "each network; an uneven split, states in parts, and a job per device",
)
@pytest.mark.arithmetic
@pytest.mark.parametrize(("network", "form"), cases(SAMPLE))
def test_training_equals_one_device(network: str, form: str) -> None:
    losses, weights = train(NETWORKS[network], FORMS[form])
    wanted, wanted_weights = alone(network, FORMS[form].alone())
    assert_near(losses, wanted, "losses")
    assert weights.keys() == wanted_weights.keys()
    for name, value in weights.items():
        assert_near(value, wanted_weights[name], name)
    again, weights_again = train(NETWORKS[network], FORMS[form])
    np.testing.assert_array_equal(again, losses)
    for name, value in weights.items():
        np.testing.assert_array_equal(weights_again[name], value)


@pytest.mark.slow
@pytest.mark.representative(
    "mlp", "weights split by rows, unevenly; the other network has convolutions"
)
@pytest.mark.arithmetic
@pytest.mark.parametrize(("network", "form"), cases({("mlp", "rows-3"), ("lenet", "columns-2")}))
def test_every_op_is_right(network: str, form: str) -> None:
    steps = [step_of(FORMS[form], batch) for batch in batches(NETWORKS[network])]
    feeds = [list(_arrays(step)) for step in steps]
    found = assert_like_one_device(train_job(NETWORKS[network], FORMS[form]), feeds=feeds)
    assert len(found.ops) > 20


@pytest.mark.parametrize("network", NETWORKS)
def test_networks_learn(network: str) -> None:
    """There is something to compare: weights change, and losses are numbers."""
    losses, weights = alone(network, Form())
    assert np.isfinite(losses).all()
    moments = [value for name, value in weights.items() if name.endswith("-m")]
    assert len(moments) >= 8
    assert all(np.abs(value).max() > 0 for value in moments)
