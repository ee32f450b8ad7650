"""A warning lists the weights that start at zero and can never change, and no others."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import FlowWarning, ZeroWeightsWarning
from flow_core.frontend.job.zero_weights import (
    ALL,
    CONSTANTS,
    ONLY_FIRST_RESULT,
    RULES,
    alternatives,
)
from flow_core.ir.graph import Op, Value
from flow_core.ops.build import complete_attrs
from flow_core.plugins.host import default_registry
from flow_core.sharding.topology import Placement

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
RANDOM = flow.random_normal_initializer(stddev=0.5)
CPU = Placement.parse("cpu", "0:0")
NUMBERS = itertools.count()


def warned(body: Callable[[Any], Any], steps: int = 3, kind: str = "train") -> list[str]:
    """Return the texts of the warnings issued by a train job with a body."""

    def job(x: tp.Numpy.Placeholder((8, 3))) -> tp.Numpy:
        loss = body(x)
        if kind == "train":
            flow.optimizer.Adam(0.1).minimize(loss)
        return loss

    defined = flow.global_function(kind)(job)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            defined(X)
    assert all(w.category is ZeroWeightsWarning for w in caught)
    assert all(w.lineno == job.__code__.co_firstlineno for w in caught)
    return [str(w.message) for w in caught]


def dense(x: Any, units: int, activation: Any = None, **more: Any) -> Any:
    name = f"layer{next(NUMBERS)}"
    return flow.layers.dense(x, units, activation=activation, name=name, **more)


def mean(x: Any) -> Any:
    return flow.math.reduce_mean(flow.math.square(x - 1))


def attention(x: Any, **initializer: Any) -> Any:
    q, k = (dense(x, 4, **initializer) for _ in range(2))
    v = dense(x, 4, kernel_initializer=RANDOM)
    scores = flow.nn.softmax(flow.matmul(q, k, transpose_b=True))
    return dense(flow.matmul(scores, v), 1, kernel_initializer=RANDOM)


def convolutions(x: Any, activation: Any) -> Any:
    y = flow.reshape(x, (8, 1, 3, 1))
    for _ in range(2):
        name = f"conv{next(NUMBERS)}"
        zeros = flow.zeros_initializer()
        y = flow.layers.conv2d(y, 2, 1, activation=activation, kernel_initializer=zeros, name=name)
        y = flow.layers.batch_normalization(y, axis=1, name=f"{name}-norm")
    return flow.math.reduce_mean(y, axis=[1, 2, 3])


STUCK: dict[str, tuple[Callable[[Any], Any], int]] = {
    "two layers": (lambda x: dense(dense(x, 4), 1), 2),
    "tanh": (lambda x: dense(dense(x, 4, flow.math.tanh), 1), 2),
    "five layers": (lambda x: dense(dense(dense(dense(dense(x, 4), 4), 4), 4), 1), 5),
    "relu at zero": (
        lambda x: dense(dense(x, 4, flow.nn.relu), 1, kernel_initializer=RANDOM),
        1,
    ),
    "a block beside a shortcut": (
        lambda x: dense(x + dense(dense(x, 4, flow.nn.relu), 3), 1, kernel_initializer=RANDOM),
        2,
    ),
    "queries and keys": (attention, 2),
    "numbers without spread": (
        lambda x: dense(dense(x, 4, kernel_initializer=flow.random_uniform_initializer(0, 0)), 1),
        2,
    ),
    "dropout and concatenation": (
        lambda x: dense(flow.concat([flow.nn.dropout(dense(x, 4), 0.5), dense(x, 2)], 1), 1),
        3,
    ),
}

LEARNING: dict[str, Callable[[Any], Any]] = {
    "one layer": lambda x: dense(x, 1),
    "logistic": lambda x: flow.math.sigmoid(dense(x, 1)),
    "the last layer": lambda x: dense(dense(x, 4, flow.nn.relu, kernel_initializer=RANDOM), 1),
    "the first layer": lambda x: dense(dense(x, 4, flow.math.tanh), 1, kernel_initializer=RANDOM),
    "a bias that is not zero": lambda x: dense(
        dense(x, 4, flow.math.tanh, bias_initializer=flow.ones_initializer()), 1
    ),
    "sigmoid": lambda x: dense(dense(x, 4, flow.math.sigmoid), 1),
    "a shortcut": lambda x: dense(x, 1) + dense(dense(x, 4, kernel_initializer=RANDOM), 1),
    "queries only": lambda x: attention(x, kernel_initializer=RANDOM),
    "an adapter": lambda x: dense(
        dense(x, 2, use_bias=False, kernel_initializer=RANDOM), 1, use_bias=False
    ),
    "norms that begin at zero": lambda x: flow.layers.batch_normalization(
        dense(x, 4, kernel_initializer=RANDOM), axis=1, gamma_initializer=flow.zeros_initializer()
    ),
}


@pytest.mark.parametrize("name", STUCK)
def test_weights_that_never_change(name: str) -> None:
    body, count = STUCK[name]
    (text,) = warned(lambda x: mean(body(x)))
    assert text.count(f" at {__file__}:") == count
    assert "bias" not in text
    assert "kernel_initializer=flow.glorot_uniform_initializer()" in text
    values = {name: v.numpy() for name, v in flow.get_all_variables().items()}
    named = [name for name in values if f"{name!r} at" in text]
    assert len(named) == count
    assert not any(values[name].any() for name in named)


@pytest.mark.parametrize("name", LEARNING)
def test_weights_that_change(name: str) -> None:
    assert warned(lambda x: mean(LEARNING[name](x))) == []
    trained = {n: v.numpy() for n, v in flow.get_all_variables().items() if n.endswith("weight")}
    assert all(value.any() for value in trained.values())


def test_convolutions_and_norms() -> None:
    # the norm of zeros is its beta, whose gradient is nonzero: every weight learns
    assert warned(lambda x: mean(convolutions(x, None))) == []


def test_single_layer_at_its_optimum() -> None:
    assert warned(lambda x: flow.math.reduce_mean(flow.math.square(dense(x, 4)))) == []


def test_one_warning_for_a_job_defined_at_every_step() -> None:
    flow.enable_eager_execution()
    try:
        found = [warned(lambda x: mean(product(x)), steps=1) for _ in range(3)]
    finally:
        flow.enable_eager_execution(False)
    assert list(map(len, found)) == [1, 0, 0]


def test_predict_jobs_are_not_checked() -> None:
    assert warned(lambda x: mean(dense(dense(x, 4), 1)), kind="predict") == []


def test_long_lists_of_layer_names_are_truncated() -> None:
    def deep(x: Any) -> Any:
        for _ in range(12):
            x = dense(x, 3)
        return x

    (text,) = warned(lambda x: mean(deep(x)))
    assert text.count(f" at {__file__}:") == 8
    assert "and 4 more" in text


def product(x: Any) -> Any:
    w, v = flow.get_variable("w", shape=(3, 4)), flow.get_variable("v", shape=(4, 1))
    return flow.matmul(flow.matmul(x, w), v)


def test_weights_loaded_before_training() -> None:
    @flow.global_function()
    def other(x: tp.Numpy.Placeholder((8, 3))) -> tp.Numpy:
        return product(x)

    other(X)
    flow.load_variables({"w": np.ones((3, 4), np.float32)})
    assert warned(lambda x: mean(product(x))) == []
    flow.clear_default_session()
    assert len(warned(lambda x: mean(product(x)))) == 1


def test_warning_has_its_own_category() -> None:
    assert issubclass(ZeroWeightsWarning, FlowWarning)

    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((8, 3))) -> tp.Numpy:
        loss = mean(dense(dense(x, 4), 1))
        flow.optimizer.SGD(0.1).minimize(loss)
        return loss

    with pytest.warns(ZeroWeightsWarning, match="never changes these weights"):
        job(X)


# ----------------------------------------------------------------------------------- rules


SPECS = default_registry().ops
LINEAR = [name for name, spec in SPECS.items() if name.endswith("_grad") and spec.samples]


def cases(spec: Any) -> Iterator[tuple[Any, Any, list[Any]]]:
    """Yield samples of an op: attributes, arrays, and a set of inputs that its rules name."""
    for sample in spec.samples(np.random.default_rng(5)):
        attrs = complete_attrs(spec, sample.attrs, "sample")
        inputs = tuple(Value(f"x{i}", 0) for i in range(len(sample.inputs)))
        for chosen in alternatives(Op("op", spec.type, inputs, attrs, CPU), spec):
            positions = [*range(len(inputs))] if chosen == (ALL,) else [*chosen]
            if all(i < len(inputs) for i in positions):
                yield attrs, sample.inputs, positions


@pytest.mark.parametrize("name", [*RULES, *CONSTANTS, "scalar_mul", *LINEAR])
def test_zero_inputs_produce_zero_results(name: str) -> None:
    spec = SPECS[name]
    for attrs, given, positions in cases(spec):
        arrays = [np.zeros_like(x) if i in positions else x for i, x in enumerate(given)]
        with np.errstate(all="ignore"):
            found = spec.reference(*arrays, **attrs)
        results = found if isinstance(found, tuple | list) else (found,)
        for result in results[:1] if name in ONLY_FIRST_RESULT else results:
            assert not np.any(result), (attrs, positions)


def test_rules_refer_to_existing_ops() -> None:
    assert {*RULES, *CONSTANTS} <= {*SPECS}
    assert not {*RULES} & {*CONSTANTS}
