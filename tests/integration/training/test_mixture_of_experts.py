"""Mixtures of experts give what the papers' formulas give in numpy, token by token, in float64."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import InferenceError

WIDTH, HIDDEN, EXPERTS = 6, 5, 4


def tokens_of(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def softmax(x: Any) -> Any:
    parts = np.exp(x - x.max(-1, keepdims=True))
    return parts / parts.sum(-1, keepdims=True)


def mixture(
    x: Any, scores: Any, expert: Callable[[int, Any], Any], k: int, factor: float, groups: int
) -> tuple[Any, float, int]:
    """Return the results, the balance loss and the number of choices without a slot."""
    number = scores.shape[-1]
    rows, flat = x.reshape(groups, -1, x.shape[-1]), scores.reshape(groups, -1, number)
    size = rows.shape[1]
    capacity = max(1, min(size, ceil(k * size * factor / number)))
    results, losses, dropped = [], [], 0
    for group, logits in zip(rows, flat, strict=True):
        shares = softmax(logits)
        best = np.argsort(-shares, -1, kind="stable")[:, :k]
        found, used = [np.zeros_like(expert(0, row)) for row in group], [0] * number
        for rank in range(k):
            for token, row in enumerate(group):
                chosen = best[token, rank]
                used[chosen] += 1
                if used[chosen] > capacity:
                    dropped += 1
                    continue
                whole = 1 if k == 1 else shares[token, best[token]].sum()
                found[token] = found[token] + shares[token, chosen] / whole * expert(chosen, row)
        fractions = np.bincount(best[:, 0], minlength=number) / size
        losses.append(number * (fractions * shares.mean(0)).sum())
        results.append(found)
    return np.array(results).reshape(*x.shape[:-1], -1), float(np.mean(losses)), dropped


def run(*feeds: Any, job: Callable[..., Any]) -> list[Any]:
    def traced(xs: Any) -> Any:
        return job(*xs)

    places = [tp.Numpy.Placeholder(x.shape, flow.double) for x in feeds]
    traced.__annotations__ = {"xs": tuple[*places], "return": tuple[tp.Numpy, tp.Numpy, tp.Numpy]}
    return list(flow.global_function()(traced)(tuple(feeds)))


def layer(x: Any, **how: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the results of the layer, and its variables."""
    initializer = flow.random_normal_initializer(stddev=0.7)
    found = run(
        x,
        job=lambda x: flow.layers.mixture_of_experts(
            x, EXPERTS, HIDDEN, kernel_initializer=initializer, name="moe", **how
        ),
    )
    weights = flow.get_all_variables().items()
    return found, {name.removeprefix("moe-"): w.numpy() for name, w in weights}


def by_weights(weights: dict[str, Any]) -> Callable[[int, Any], Any]:
    def expert(number: int, row: Any) -> Any:
        hidden = np.maximum(weights["up-weight"][number] @ row + weights["up-bias"][number], 0)
        return weights["down-weight"][number] @ hidden + weights["down-bias"][number]

    return expert


CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "one choice": ((3, 8, WIDTH), {}),
    "two choices": ((3, 8, WIDTH), {"k": 2}),
    "all experts": ((2, 5, WIDTH), {"k": EXPERTS}),
    "many dropped": ((2, 16, WIDTH), {"k": 2, "capacity_factor": 0.3}),
    "none dropped": ((2, 16, WIDTH), {"capacity_factor": EXPERTS}),
    "matrix": ((12, WIDTH), {}),
    "matrix in groups": ((12, WIDTH), {"k": 2, "groups": 3}),
    "one group of sequences": ((3, 4, WIDTH), {"groups": 1}),
    "groups across sequences": ((2, 6, WIDTH), {"groups": 4}),
    "one token": ((1, WIDTH), {"k": 2}),
    "groups of one token": ((5, 1, WIDTH), {}),
    "four axes": ((2, 2, 3, WIDTH), {"k": 2}),
}


DROPPED = {"many dropped": True, "none dropped": False, "all experts": False}


@pytest.mark.parametrize("name", CASES)
def test_layer_equals_the_formulas(name: str) -> None:
    shape, how = CASES[name]
    x = tokens_of(*shape)
    (y, balance_loss, dropped), weights = layer(x, **how)
    groups = how.get("groups", shape[0] if len(shape) > 2 else 1)
    scores = x @ weights["gate-weight"].T
    given = (how.get("k", 1), how.get("capacity_factor", 1.25), groups)
    wanted, loss, without = mixture(x, scores, by_weights(weights), *given)
    np.testing.assert_allclose(y, wanted, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(balance_loss, [loss], rtol=1e-10)
    assert dropped.tolist() == [without]
    if name in DROPPED:
        assert (without > 0) == DROPPED[name]


# ---------------------------------------------------------------------------- special scores


def negated(x: Any, scores: Any, **how: Any) -> tuple[Any, float, int]:
    """Return what experts give that negate their rows and add the expert's number."""

    def experts(rows: Any) -> Any:
        numbers = flow.reshape(flow.range(0, rows.shape[0], 1, flow.double), (-1, 1, 1))
        return numbers - rows

    y, loss, dropped = run(
        x, scores, job=lambda x, s: flow.nn.mixture_of_experts(x, s, experts, **how)
    )
    return y, float(loss[0]), int(dropped[0])


def test_of_equal_scores_that_of_the_first_expert_counts() -> None:
    x = tokens_of(6, 3)
    y, loss, dropped = negated(x, np.zeros((6, 3)), k=1, capacity_factor=1.5)
    np.testing.assert_allclose(y[:3], -x[:3] / 3)
    np.testing.assert_array_equal(y[3:], 0)
    assert (loss, dropped) == (pytest.approx(1), 3)


def test_first_choices_come_before_second_choices() -> None:
    x, scores = tokens_of(2, 3), np.log([[0.3, 0.7], [0.6, 0.4]])
    y, _, dropped = negated(x, scores, k=2, capacity_factor=0.5)
    np.testing.assert_allclose(y, [0.7 * (1 - x[0]), -0.6 * x[1]])
    assert dropped == 2


def test_one_expert_takes_all_tokens() -> None:
    x = tokens_of(2, 4, 3)
    y, loss, dropped = negated(x, tokens_of(2, 4, 1), capacity_factor=1)
    np.testing.assert_allclose(y, -x)
    assert (loss, dropped) == (1, 0)


@pytest.mark.parametrize("k", [1, 2])
def test_nan_scores_reach_their_own_token_and_the_loss(k: int) -> None:
    x, scores = tokens_of(5, 3), tokens_of(5, 4)
    scores[2, 1] = np.nan
    y, loss, dropped = negated(x, scores, k=k, capacity_factor=4)
    assert np.isnan(y).all(1).tolist() == [False, False, True, False, False]
    assert np.isfinite(y[[0, 1, 3, 4]]).all()
    assert np.isnan(loss)
    assert dropped == 0


def test_infinite_scores_choose_their_expert() -> None:
    x, scores = tokens_of(3, 2), np.zeros((3, 4))
    scores[:, 2] = 800  # the softmax of the others is 0
    scores[1] = [-np.inf, 0, -np.inf, -np.inf]
    y, _, _ = negated(x, scores, k=2, capacity_factor=4)
    np.testing.assert_allclose(y, np.array([[2], [1], [2]]) - x)


# -------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("factor", [0.5, 4.0])
def test_gradients_equal_finite_differences(k: int, factor: float) -> None:
    rng = np.random.default_rng(k)
    values = {
        "x": rng.normal(size=(2, 5, 3)), "scores": rng.normal(size=(2, 5, 4)),
        "w": rng.normal(size=(4, 2, 3)),
    }  # fmt: skip
    weights = rng.normal(size=(2, 5, 2))

    def loss(x: Any, scores: Any, w: Any) -> float:
        def expert(number: int, row: Any) -> Any:
            return np.tanh(w[number] @ row)

        y, balance, _ = mixture(x, scores, expert, k, factor, 2)
        return float((y * weights).sum() + 0.3 * balance)

    @flow.global_function(type="train")
    def job(c: tp.Numpy.Placeholder(weights.shape, flow.double)) -> tp.Numpy:
        x, scores, w = (
            flow.get_variable(name, v.shape, flow.double, initializer=v)
            for name, v in values.items()
        )
        y, balance, _ = flow.nn.mixture_of_experts(
            x, scores, lambda rows: flow.math.tanh(flow.matmul(rows, w, transpose_b=True)),
            k, factor,
        )  # fmt: skip
        total = flow.math.reduce_sum(y * c) + 0.3 * balance
        flow.optimizer.SGD(1.0).minimize(total)
        return total

    np.testing.assert_allclose(job(weights), [loss(**values)], rtol=1e-12)
    trained, step = flow.get_all_variables(), 1e-6
    for name, value in values.items():
        found = value - trained[name].numpy()
        for place in np.ndindex(*found.shape):
            ends = []
            for sign in (1, -1):
                moved = value.copy()
                moved[place] += sign * step
                ends.append(loss(**{**values, name: moved}))
            slope = (ends[0] - ends[1]) / (2 * step)
            np.testing.assert_allclose(found[place], slope, atol=2e-8, err_msg=f"{name} {place}")


# ----------------------------------------------------------------------------------- errors


def rows_of(shape: tuple[int, ...]) -> Callable[[Any], Any]:
    return lambda rows: flow.reshape(rows, shape)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "more choices than experts": ({"k": 5}, "k=5"),
    "no choices": ({"k": 0}, "k=0"),
    "half a choice": ({"k": 0.5}, "k=0.5"),
    "groups that do not divide the tokens": ({"groups": 4}, "a divisor of 6"),
    "no groups": ({"groups": 0}, "groups=0"),
    "no slots": ({"capacity_factor": 0}, "capacity_factor=0"),
    "a factor that is no number": ({"capacity_factor": float("nan")}, "a finite number"),
    "no function": ({"experts": None}, "experts=None"),
    "experts that mix rows": ({"experts": rows_of((8, 1, 3))}, "any width"),
    "scores of other tokens": ({"scores": (5, 4)}, "scores"),
    "no axis of tokens": ({"x": (3,), "scores": (4,)}, "x (3,)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_arguments_are_refused(name: str) -> None:
    given, found = REFUSED[name]
    shapes = [given.pop(key, shape) for key, shape in (("x", (6, 3)), ("scores", (6, 4)))]
    how = {"experts": lambda rows: rows, **given}
    with pytest.raises(InferenceError) as error:
        run(*map(np.ones, shapes), job=lambda x, s: flow.nn.mixture_of_experts(x, s, **how))
    assert found in str(error.value)
    assert Path(__file__).name in str(error.value)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"num_experts": 0}, "num_experts, hidden_units, units = (0, 5, None)"),
        ({"hidden_units": 2.5}, "(4, 2.5, None)"),
        ({"units": -1}, "(4, 5, -1)"),
        ({"k": 7}, "an integer from 1 to 4"),
        ({"activation": 3}, "activation=3"),
    ],
)
def test_wrong_arguments_of_the_layer_are_refused(given: dict[str, Any], found: str) -> None:
    how = {"num_experts": EXPERTS, "hidden_units": HIDDEN, **given}
    with pytest.raises(InferenceError) as error:
        run(tokens_of(2, WIDTH), job=lambda x: flow.layers.mixture_of_experts(x, **how))
    assert found in str(error.value)


@pytest.mark.parametrize(
    ("shape", "experts", "capacity", "found"),
    [
        ((2, 3), 4, 1, "(groups, choices, tokens)"),
        ((2, 1, 3), 0, 1, "experts 0"),
        ((2, 1, 3), 4, 0, "capacity 0"),
        ((2, 1, 3), 4, 1.5, "capacity 1.5"),
    ],
)
def test_wrong_slots_are_refused(shape: Any, experts: Any, capacity: Any, found: str) -> None:
    @flow.global_function()
    def job(i: tp.Numpy.Placeholder(shape, flow.int32)) -> tp.Numpy:
        return flow.nn.expert_slots(i, experts, capacity)[0]

    with pytest.raises(InferenceError) as error:
        job(np.zeros(shape, np.int32))
    assert found in str(error.value)
