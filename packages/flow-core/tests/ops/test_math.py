"""Compare every composite function of ``flow.math`` with numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flow_core.api import math as m
from flow_core.base.dtypes import as_dtype, float32, int32
from flow_core.base.errors import InferenceError
from flow_core.builtin.ops_plugin import flow_register_ops
from flow_core.frontend.config.function_config import FunctionConfig
from flow_core.frontend.session.session import default_session
from flow_core.frontend.trace.blob import BlobDef
from flow_core.frontend.trace.job_build import JobBuild, defining
from flow_core.ir.graph import Attrs, Op, tensor_type
from flow_core.testing.checks import CPU
from flow_core.testing.interpret import evaluate

RNG = np.random.default_rng(0)
A = RNG.uniform(0.5, 2, (3, 4)).astype(np.float32)
B = RNG.uniform(0.5, 2, 4).astype(np.float32)
N = RNG.integers(1, 9, (3, 4)).astype(np.int32)


def compute(function: Callable[..., BlobDef], *arrays: Any) -> Any:
    """Evaluate a function of blobs on arrays with the ops' references."""
    specs = {spec.type: spec for spec in flow_register_ops()}
    job = JobBuild("job", "predict", specs, CPU, FunctionConfig(), default_session())
    with defining(job):
        blobs = [_feed(job, f"x{i}", x) for i, x in enumerate(arrays)]
        result = function(*blobs)
    values = evaluate(job.builder.build(), specs, {f"x{i}": x for i, x in enumerate(arrays)})
    found = values[result.value]
    assert (found.shape, as_dtype(found.dtype)) == (result.shape, result.dtype)
    return found


def _feed(job: JobBuild, name: str, x: Any) -> BlobDef:
    op = Op(name, "input", (), Attrs(), CPU)
    job.builder.add(op, (tensor_type(x.shape, as_dtype(x.dtype)),))
    return BlobDef(job, op.output())


CASES: dict[str, tuple[Callable[..., BlobDef], Callable[..., Any]]] = {
    "add": (m.add, lambda a, b: a + b),
    "number + blob": (lambda a, b: m.add(3, a), lambda a, b: 3 + a),
    "number - blob": (lambda a, b: m.subtract(3, a), lambda a, b: 3 - a),
    "blob - number": (lambda a, b: m.subtract(a, 2.5), lambda a, b: a - 2.5),
    "blob * number": (lambda a, b: m.multiply(a, 2), lambda a, b: a * 2),
    "divide": (m.divide, lambda a, b: a / b),
    "number / blob": (lambda a, b: m.divide(2, b), lambda a, b: 2 / b),
    "blob / 0": (lambda a, b: m.divide(a, 0), lambda a, b: a * 0),
    "operators": (lambda a, b: a / b + 1 - b * a, lambda a, b: a / b + 1 - b * a),
    "mod": (m.mod, np.mod),
    "floordiv": (m.floordiv, np.floor_divide),
    "pow": (m.pow, np.power),
    "blob ** number": (lambda a, b: m.pow(a, 2.5), lambda a, b: a**2.5),
    "number ** blob": (lambda a, b: m.pow(2.0, b), lambda a, b: 2**b),
    "maximum": (m.maximum, np.maximum),
    "minimum with a number": (lambda a, b: m.minimum(a, 1.0), lambda a, b: np.minimum(a, 1)),
    "greater": (m.greater, lambda a, b: (a > b).astype(np.int8)),
    "squared_difference": (m.squared_difference, lambda a, b: (a - b) ** 2),
    "add_n": (lambda a, b: m.add_n([a, a, a]), lambda a, b: 3 * a),
    "polyval": (lambda a, b: m.polyval([1.0, 2.0, 3.0], a), lambda a, b: a * a + 2 * a + 3),
    "polyval of nothing": (lambda a, b: m.polyval([], a), lambda a, b: a * 0),
    "clip": (lambda a, b: m.clip(a, 1.0, 1.5), lambda a, b: np.clip(a, 1, 1.5)),
    "clamp": (lambda a, b: m.clamp(a, min_value=1), lambda a, b: np.maximum(a, 1)),
    "where": (lambda a, b: m.where(m.greater(a, b), a, b), lambda a, b: np.where(a > b, a, b)),
    "masked_fill": (
        lambda a, b: m.masked_fill(a, m.greater(a, 1), 7), lambda a, b: np.where(a > 1, 7, a),
    ),
    "cast": (lambda a, b: m.cast(a, int32), lambda a, b: a.astype(np.int32)),
    "cast to itself": (lambda a, b: m.cast(a, float32), lambda a, b: a),
    "mean of all": (lambda a, b: m.reduce_mean(a), lambda a, b: a.mean().reshape(1)),
    "mean": (lambda a, b: m.reduce_mean(a, 1, True), lambda a, b: a.mean(1, keepdims=True)),
    "sum of no axes": (lambda a, b: m.reduce_sum(a, []), lambda a, b: a),
    "any of no axes": (lambda a, b: m.reduce_any(a, []), lambda a, b: (a != 0).astype(np.int8)),
    "variance": (lambda a, b: m.reduce_variance(a, [0]), lambda a, b: a.var(0)),
    "std of all": (lambda a, b: m.reduce_std(a), lambda a, b: a.std().reshape(1)),
    "std of no axes": (lambda a, b: m.reduce_std(a, []), lambda a, b: a * 0),
    "logsumexp": (
        lambda a, b: m.reduce_logsumexp(a, -1), lambda a, b: np.log(np.exp(a).sum(-1)),
    ),
    "logsumexp of large numbers": (
        lambda a, b: m.reduce_logsumexp(m.add(a, 1000.0)),
        lambda a, b: np.log(np.exp(a).sum()).reshape(1) + 1000,
    ),
    "euclidean norm": (
        lambda a, b: m.reduce_euclidean_norm(a, 0), lambda a, b: np.linalg.norm(a, axis=0),
    ),
    "two stages": (lambda a, b: m.two_stage_reduce_max(a, 1), lambda a, b: a.max(1)),
    "argmax": (lambda a, b: m.argmax(a, 0), lambda a, b: a.argmax(0)),
    "top_k": (lambda a, b: m.top_k(a, 0, 2), lambda a, b: np.argsort(-a, 0)[:2]),
    "l2_normalize": (
        lambda a, b: m.l2_normalize(a, 1),
        lambda a, b: a / np.linalg.norm(a, axis=1, keepdims=True),
    ),
    "tril": (lambda a, b: m.tril(a, 1, -5.0), lambda a, b: np.tril(a, 1) - 5 * np.triu(a > 0, 2)),
    "fused_scale_tril": (
        lambda a, b: m.fused_scale_tril(a, scale=2.0), lambda a, b: np.tril(a) * 2,
    ),
    "element count": (
        lambda a, b: m.reduced_shape_elem_cnt(a, [0]), lambda a, b: np.array([3]),
    ),
    "broadcast": (
        lambda a, b: m.broadcast_to_compatible_with(b, [a]),
        lambda a, b: np.broadcast_to(b, a.shape),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_floating_point_functions(case: str) -> None:
    function, expected = CASES[case]
    np.testing.assert_allclose(compute(function, A, B), expected(A, B), 2e-5, 1e-5)


def test_integer_functions_return_integers() -> None:
    np.testing.assert_array_equal(compute(lambda n: m.divide(n, -2), N), -(N // 2))
    np.testing.assert_array_equal(compute(lambda n: m.divide(9, n), N), 9 // N)
    np.testing.assert_array_equal(compute(lambda n: m.add(n, 2.9), N), N + 2)
    np.testing.assert_array_equal(compute(lambda n: m.reduce_mean(n, 0), N), N.sum(0) // 3)


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (lambda a, b: m.add(1, 2), InferenceError, "at least one blob"),
        (lambda a, b: m.add_n([]), InferenceError, "one or more"),
        (lambda a, b: m.add(a, m.cast(b, int32)), InferenceError, "flow.cast"),
        (lambda a, b: m.clip_by_value(a), InferenceError, "at least one limit"),
        (lambda a, b: m.where(a, b), InferenceError, "both of them"),
        (lambda a, b: m.reduce_sum(a, 2), InferenceError, "axes from -2 to 1"),
        (lambda a, b: m.l2_normalize(a), InferenceError, "axis None"),
        (lambda a, b: m.exp(m.cast(a, int32)), InferenceError, "float16"),
        (
            lambda a, b: m.polyval(3.0, a),  # type: ignore[arg-type]  # the error under test
            InferenceError,
            "list or tuple",
        ),
        (lambda a, b: m.pow(m.cast(a, int32), m.cast(a, int32)), InferenceError, "floating"),
    ],
)  # fmt: skip
def test_errors_name_the_line_of_the_user(function: Any, error: Any, words: str) -> None:
    with pytest.raises(error) as caught:
        compute(function, A, B)
    assert words in str(caught.value)
    assert "test_math.py" in str(caught.value)
