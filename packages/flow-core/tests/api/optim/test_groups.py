"""Groups of variables: each variable is updated by the optimizer that names it."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import FlowError, InferenceError, JobError

X = np.array([[1.0, -2.0, 3.0]], np.float32)
Make = Callable[[Any, Any, Any], Any]


@pytest.fixture(autouse=True)
def own_session() -> None:
    flow.clear_default_session()


def updated(make: Make, steps: int = 1) -> dict[str, Any]:
    """Return the variables after steps that minimize the mean of x * a + x * b."""

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((1, 3))) -> tp.Numpy:
        a, b, frozen = (
            flow.get_variable(name, (1, 3), trainable=name != "frozen")
            for name in ("a", "b", "frozen")
        )
        loss = x * a + x * b + frozen
        make(a, b, frozen).minimize(loss)
        return loss

    for _ in range(steps):
        job(X)
    return {name: value.numpy() for name, value in flow.get_all_variables().items()}


@pytest.mark.parametrize(
    "given", [["a"], lambda: ["a"], "blob"], ids=["names", "function", "blobs"]
)
def test_an_optimizer_updates_the_variables_it_names(given: Any) -> None:
    found = updated(
        lambda a, b, frozen: flow.optimizer.SGD(
            0.5, momentum=0, variables=[a] if given == "blob" else given
        )
    )
    np.testing.assert_allclose(found["a"], -0.5 * X / 3, rtol=1e-6)
    assert not found["b"].any()


def test_each_group_has_its_own_rule_rate_and_limit() -> None:
    def make(a: Any, b: Any, frozen: Any) -> Any:
        optim = flow.optimizer
        limit = optim.grad_clipping.by_global_norm(0.1)
        return optim.CombinedOptimizer(
            [
                optim.SGD(0.5, momentum=0, variables=["a"]),
                optim.Adam(0.1, do_bias_correction=True, grad_clipping=limit, variables=[b]),
            ]
        )

    found = updated(make)
    np.testing.assert_allclose(found["a"], -0.5 * X / 3, rtol=1e-6)
    np.testing.assert_allclose(found["b"], -0.1 * np.sign(X), rtol=1e-4)
    clipped = X / np.linalg.norm(X) * 0.1
    np.testing.assert_allclose(found["b-m"], 0.1 * clipped, rtol=1e-5)
    assert not [name for name in found if name.startswith("a-")]


def test_a_combination_may_have_a_loss_scale() -> None:
    optim = flow.optimizer
    policies: list[Any] = [
        {"loss_scale_factor": 8.0},
        {"loss_scale_policy": optim.loss_scale.dynamic_loss_scale(8.0)},
    ]
    for policy in policies:
        flow.clear_default_session()
        found = updated(
            lambda a, b, frozen, policy=policy: optim.CombinedOptimizer(  # type: ignore[misc]
                [optim.SGD(rate, momentum=0, variables=[v]) for rate, v in ((0.5, a), (0.25, b))],
                **policy,
            )
        )
        np.testing.assert_allclose(found["a"], -0.5 * X / 3, rtol=1e-6)
        np.testing.assert_allclose(found["b"], -0.25 * X / 3, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda a, b, f: flow.optimizer.SGD(0.1, variables=["c"]), JobError, "no variable 'c'"),
        (lambda a, b, f: flow.optimizer.SGD(0.1, variables=[f]), JobError, "not trainable"),
        (lambda a, b, f: flow.optimizer.SGD(0.1, variables=[a, a]), JobError, "'a' twice"),
        (lambda a, b, f: flow.optimizer.SGD(0.1, variables="a"), InferenceError, "a list of names"),
        (lambda a, b, f: flow.optimizer.SGD(0.1, variables=[1]), InferenceError, "a list of names"),
        (lambda a, b, f: flow.optimizer.CombinedOptimizer([]), InferenceError, "optimizers"),
        (
            lambda a, b, f: flow.optimizer.CombinedOptimizer([flow.optimizer.SGD(0.1)]),
            InferenceError,
            "SGD without variables",
        ),
        (
            lambda a, b, f: flow.optimizer.CombinedOptimizer(
                [flow.optimizer.SGD(0.1, 2.0, variables=["a"])]
            ),
            InferenceError,
            "with a loss scale",
        ),
        (
            lambda a, b, f: flow.optimizer.CombinedOptimizer(
                [flow.optimizer.SGD(0.1, variables=["a"]) for _ in range(2)]
            ),
            JobError,
            "'a' twice",
        ),
    ],
)
def test_errors(make: Make, error: type[FlowError], text: str) -> None:
    with pytest.raises(error, match=text) as found:
        updated(make)
    assert __file__ in str(found.value)


@pytest.mark.parametrize("chosen", [None, False, True])
def test_one_note_on_bias_correction_unless_chosen(
    chosen: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "flow_core"):
        updated(lambda *_: flow.optimizer.Adam(1e-3, do_bias_correction=chosen), steps=2)
    notes = [record.getMessage() for record in caplog.records if "bias" in record.getMessage()]
    assert len(notes) == (1 if chosen is None else 0)
    for note in notes:
        assert __file__ in note
        assert "3.2 times" in note
