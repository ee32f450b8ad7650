"""Operators that draw random numbers: their distributions, seeds and refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto
from onnx_cases.case import Case, model_of
from onnx_cases.models import run_model

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import FlowError, UnsupportedError

COUNT = 20_000
LOGITS = np.array([[0.0, 1.0, -math.inf, -1.0], [5.0, 5.0, 5.0, 5.0]], np.float32)


def job_of(path: Path, inputs: dict[str, Any]) -> Callable[..., Any]:
    """Return a job that loads a model."""
    kinds = tuple(tp.Numpy.Placeholder(x.shape) for x in inputs.values())

    def fed(x: Any) -> Any:
        return flow.onnx.load(path, *x)

    def source() -> tp.Numpy:
        return flow.onnx.load(path)

    flow.clear_default_session()
    fed.__annotations__ = {"x": tp.Tuple[kinds], "return": tp.Numpy}
    found: Callable[..., Any] = flow.global_function()(fed if kinds else source)
    return found


def drawn(
    folder: Path, op: str, inputs: dict[str, Any], attrs: dict[str, Any], known: bool = False
) -> list[Any]:
    """Return the results of two steps."""
    path = folder / "m.onnx"
    case = Case(op, tuple(inputs.values()), attrs, fed=tuple(range(len(inputs))))
    path.write_bytes(model_of(case, 18, known).SerializeToString())
    feeds = {} if known else inputs
    job = job_of(path, feeds)
    return [job(tuple(feeds.values())) if feeds else job() for _ in range(2)]


def distance(numbers: Any, cumulative: Callable[[float], float]) -> float:
    """Return the distance of Kolmogorov and Smirnov, times the root of the count."""
    ordered = np.sort(numbers.astype(np.float64).reshape(-1))
    expected = np.array([cumulative(x) for x in ordered])
    ranks = np.arange(len(ordered) + 1) / len(ordered)
    gap = max(np.max(ranks[1:] - expected), np.max(expected - ranks[:-1]))
    return float(gap) * math.sqrt(len(ordered))


def normal(mean: float, scale: float) -> Callable[[float], float]:
    return lambda x: (1 + math.erf((x - mean) / (scale * math.sqrt(2)))) / 2


def uniform(low: float, high: float) -> Callable[[float], float]:
    return lambda x: min(max((x - low) / (high - low), 0), 1)


SHAPE = {"shape": [COUNT // 4, 4], "seed": 7.0}
LIKE = {"x0": np.zeros((COUNT // 4, 4), np.float32)}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], Callable[[float], float], str]] = {
    "normal": ("RandomNormal", {}, SHAPE, normal(0, 1), "float32"),
    "normal, of a type": ("RandomNormal", {},
        {**SHAPE, "mean": -3.0, "scale": 0.5, "dtype": TensorProto.DOUBLE},
        normal(-3, 0.5), "float64"),
    "normal like": ("RandomNormalLike", LIKE, {"mean": 2.0, "scale": 4.0, "seed": 0.0},
        normal(2, 4), "float32"),
    "uniform": ("RandomUniform", {}, SHAPE, uniform(0, 1), "float32"),
    "uniform, between": ("RandomUniform", {}, {**SHAPE, "low": -2.0, "high": 6.0},
        uniform(-2, 6), "float32"),
    "uniform like": ("RandomUniformLike", LIKE,
        {"low": 1.0, "high": 1.5, "seed": 3.5, "dtype": TensorProto.DOUBLE},
        uniform(1, 1.5), "float64"),
}  # fmt: skip
LIMIT = 1.95
"""The distance that 0.1 % of all samples exceed."""


@pytest.mark.parametrize("case", CASES)
def test_numbers_have_the_distribution(case: str, tmp_path: Path) -> None:
    op, inputs, attrs, cumulative, dtype = CASES[case]
    first, second = drawn(tmp_path, op, inputs, attrs)
    (runtime,) = run_model(tmp_path / "m.onnx", inputs)
    for numbers in (first, second, runtime):
        assert numbers.shape == (COUNT // 4, 4)
        assert numbers.dtype == dtype
        assert distance(numbers, cumulative) < LIMIT
    assert (first != second).mean() > 0.99
    assert (drawn(tmp_path, op, inputs, attrs)[0] == first).all()
    other, _ = drawn(tmp_path, op, inputs, {**attrs, "seed": attrs["seed"] + 0.25})
    assert (first != other).mean() > 0.99


def test_numbers_are_float16(tmp_path: Path) -> None:
    attrs = {"shape": [COUNT], "dtype": TensorProto.FLOAT16}
    numbers, _ = drawn(tmp_path, "RandomNormal", {}, attrs)
    assert numbers.dtype == np.float16
    assert distance(numbers, normal(0, 1)) < LIMIT


@pytest.mark.parametrize("known", [False, True])
def test_bits_have_their_probabilities(known: bool, tmp_path: Path) -> None:
    chances = np.repeat(np.array([[0, 0.1, 0.5, 0.75, 1]], np.float32), COUNT, 0)
    attrs = {"seed": 1.0, "dtype": TensorProto.INT32}
    first, second = drawn(tmp_path, "Bernoulli", {"x0": chances}, attrs, known)
    for bits in (first, second):
        assert bits.dtype == np.int32
        assert set(np.unique(bits)) == {0, 1}
        assert (bits[:, 0] == 0).all()
        assert (bits[:, 4] == 1).all()
        errors = (bits.mean(0) - chances[0]) / np.sqrt(0.25 / COUNT)
        assert np.abs(errors).max() < 3.3
    assert (first != second).any()


@pytest.mark.parametrize("known", [False, True])
def test_classes_have_their_probabilities(known: bool, tmp_path: Path) -> None:
    attrs = {"sample_size": COUNT, "seed": 4.0, "dtype": TensorProto.INT64}
    first, second = drawn(tmp_path, "Multinomial", {"x0": LOGITS}, attrs, known)
    (runtime,) = run_model(tmp_path / "m.onnx", {} if known else {"x0": LOGITS})
    chances = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
    for classes in (first, second, runtime):
        assert classes.shape == (2, COUNT)
        assert classes.dtype == np.int64
        counts = np.array([np.bincount(row, minlength=4) for row in classes])
        assert counts[0, 2] == 0
        expected = np.where(chances, chances * COUNT, 1)
        squares = ((counts - chances * COUNT) ** 2 / expected).sum(1)
        assert (squares < 16.3).all()  # chi-square with 3 degrees of freedom, 0.1 %
    assert (first != second).any()


def test_a_step_draws_one_class_of_each_row_by_default(tmp_path: Path) -> None:
    certain = np.array([[-math.inf, 0], [0, -math.inf], [1, 1]], np.float32)
    found = np.array(drawn(tmp_path, "Multinomial", {"x0": certain}, {}))
    assert found.dtype == np.int32
    assert found.shape == (2, 3, 1)
    assert found[:, :2, 0].tolist() == [[1, 0], [1, 0]]


REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "scale": ("RandomNormal", {}, {"shape": [2], "scale": -1.0}, "scale=-1"),
    "bounds": ("RandomUniform", {}, {"shape": [2], "low": 2.0, "high": 1.0}, "low=2 and high=1"),
    "type": ("Bernoulli", {"x0": np.zeros(3, np.float32)}, {"dtype": TensorProto.UINT32},
        "results of type UINT32"),
    "count": ("Multinomial", {"x0": np.zeros((1, 2**15), np.float32)}, {"sample_size": 2**14},
        "more than 268,435,456 random numbers"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_node_without_a_counterpart_is_named(case: str, tmp_path: Path) -> None:
    op, inputs, attrs, message = REFUSED[case]
    with pytest.raises(UnsupportedError, match=message) as caught:
        drawn(tmp_path, op, inputs, attrs, known=True)
    assert f"{op} 'y0'" in str(caught.value)


@pytest.mark.parametrize(
    "attrs",
    [
        {"shape": [-1]},
        {"shape": [2], "mean": math.nan},
        {"shape": [2], "scale": math.inf},
        {"shape": [2], "dtype": TensorProto.INT32},
    ],
)
def test_numbers_that_onnx_does_not_permit(attrs: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(FlowError, match="RandomNormal 'y0'"):
        drawn(tmp_path, "RandomNormal", {}, attrs)
