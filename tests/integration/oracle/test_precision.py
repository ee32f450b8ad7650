"""``flow verify --precision``: errors of mixed precision, and which ops to keep in float32."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import oneflow as flow
import oneflow.typing as tp
from flow_core.base import planning
from flow_core.cli.app import cli
from flow_core.observe.precision.check import _Check, verify_precision
from flow_core.observe.precision.search import smallest_set

INIT = flow.random_normal_initializer(0.0, 0.3)


def dense(x: Any, units: int, name: str, activation: Any = None) -> Any:
    return flow.layers.dense(
        x, units, activation, kernel_initializer=INIT, use_bias=False, name=name
    )


def classified(x: Any, y: Any) -> Any:
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, x)
    flow.optimizer.SGD(0.1, momentum=0).minimize(loss)
    return loss


def perceptron(
    x: tp.Numpy.Placeholder((8, 16)), y: tp.Numpy.Placeholder((8,), flow.int32)
) -> tp.Numpy:
    return classified(dense(dense(x, 12, "first", flow.math.tanh), 4, "last"), y)


def deep(x: tp.Numpy.Placeholder((8, 16)), y: tp.Numpy.Placeholder((8,), flow.int32)) -> tp.Numpy:
    for i in range(3):
        x = dense(x, 12, f"layer{i}", flow.nn.relu)
    return classified(dense(x, 4, "last"), y)


def residual(
    x: tp.Numpy.Placeholder((8, 16)), y: tp.Numpy.Placeholder((8,), flow.int32)
) -> tp.Numpy:
    x = x + dense(flow.nn.dropout(x, rate=0.2), 16, "first", flow.math.gelu)
    return classified(dense(x, 4, "last"), y)


def convolved(
    x: tp.Numpy.Placeholder((4, 3, 6, 6)), y: tp.Numpy.Placeholder((4,), flow.int32)
) -> tp.Numpy:
    x = flow.layers.conv2d(x, 4, 3, kernel_initializer=INIT, use_bias=False, name="conv")
    return classified(dense(flow.flatten(flow.nn.relu(x), 1), 4, "last"), y)


def attention(x: tp.Numpy.Placeholder((2, 6, 8))) -> tp.Numpy:
    q, k, v = (dense(x, 8, name) for name in "qkv")
    scores = flow.nn.softmax(flow.matmul(q, k, transpose_b=True) * 0.35)
    return flow.matmul(scores, v)


NETWORKS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (perceptron, deep, residual, convolved, attention)
}


def job_of(network: str, *kept: str, half: object = None) -> Any:
    config = flow.function_config()
    if kept:
        config.mixed_precision_float32_ops(kept)
    if half is not None:
        config.enable_auto_mixed_precision(True)
        config.mixed_precision_data_type(half)
    kind = "predict" if network == "attention" else "train"
    return flow.global_function(kind, config)(NETWORKS[network])


# -------------------------------------------------------------------------------------- search


@pytest.mark.parametrize("seed", range(20))
def test_the_search_finds_the_smallest_set_even_if_errors_cancel(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"op{i}" for i in range(rng.randint(3, 9))]
    single = {name: rng.random() for name in names}
    pairs = {pair: rng.uniform(-0.6, 0.6) for pair in combinations(names, 2)}

    def error(kept: frozenset[str]) -> float:
        half = [name for name in names if name not in kept]
        both = sum(pairs[pair] for pair in combinations(half, 2))
        return abs(sum(single[name] for name in half) + both) / 0.4

    found = smallest_set(names, error, 2 ** len(names))
    best = next(
        size
        for size in range(len(names) + 1)
        if any(error(frozenset(row)) <= 1 for row in combinations(names, size))
    )
    assert found is not None
    assert found.smallest
    assert len(found.ops) == best
    assert found.error == error(frozenset(found.ops)) <= 1


def test_without_a_budget_the_report_says_what_was_tried() -> None:
    names = "abcdefgh"
    found = smallest_set(names, lambda kept: 8 - len(kept) - 2, 8)
    assert found is not None
    assert len(found.ops) == 5
    assert found.tried_below == 2
    assert not found.smallest


def by_all_sets(check: _Check, tolerance: float) -> int:
    """Return the size of the smallest set that holds a tolerance, by trial of all sets."""
    names, limited = check.candidates, {}
    for out in check.outputs:
        limited[out.kind, out.name] = out.single <= tolerance
    for size in range(len(names) + 1):
        for row in map(frozenset, combinations(names, size)):
            found = check._errors(*check._trial(row))
            if all(error <= tolerance for key, error in found.items() if limited[key]):
                return size
    raise AssertionError("float32 does not hold the tolerance")


@pytest.mark.slow
@pytest.mark.representative(r"perceptron-bfloat16-0\.5", "the other cases search among more ops")
@pytest.mark.parametrize("part", [0.9, 0.5, 0.25])
@pytest.mark.parametrize("half", ["bfloat16", "float16"])
@pytest.mark.parametrize("network", NETWORKS)
def test_the_smallest_set_is_that_of_a_trial_of_all_sets(
    network: str, half: str, part: float
) -> None:
    check = _Check(job_of(network), half, 1, 0)
    assert 3 <= len(check.candidates) <= 12
    tolerance = part * max(out.error for out in check.outputs)
    found = check.report(tolerance, lambda _: None).kept
    assert found is not None
    assert found.ops
    assert found.smallest
    assert len(found.ops) == by_all_sets(check, tolerance)


# -------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("network", NETWORKS)
def test_op_by_op_computes_what_the_job_computes(network: str) -> None:
    kept = ("q-matmul" if network == "attention" else "last-matmul",)
    job = job_of(network, *kept, half=flow.bfloat16)
    check = _Check(job, "bfloat16", 1, 0)
    _, (step,) = check._trial(frozenset())
    job.executable()
    job.active_session().assign(check.variables)
    (found,) = job.executable().run([check.feeds[0][name] for name in check.inputs])
    graph = check.rewritten(frozenset())
    wanted = step.values[graph.results[0]]
    assert np.abs(found - wanted).max() <= 2**-7 * np.abs(wanted).max()  # of fused ops
    assert graph.types[kept[0]] == check.graph.types[kept[0]]


def test_an_op_is_not_blamed_for_the_errors_of_its_inputs() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 64))) -> tp.Numpy:
        plus = flow.matmul(x, flow.constant(1.0, flow.float32, (64, 8)), name="large")
        minus = flow.matmul(x, flow.constant(-0.999, flow.float32, (64, 8)), name="minus")
        small = flow.math.add(plus, minus, name="cancels")
        return flow.matmul(small, flow.constant(1.0, flow.float32, (8, 4)), name="after")

    found = {op.op: op for op in verify_precision(job, "bfloat16", tolerance=0.01).ops}
    assert found["after"].own <= 2**-7
    assert found["after"].error > 0.1
    assert found["cancels"].own > 0.1


def test_gradients_that_float32_does_not_determine_are_left_out() -> None:
    @flow.global_function("train")
    def job(
        x: tp.Numpy.Placeholder((8, 16)), y: tp.Numpy.Placeholder((8,), flow.int32)
    ) -> tp.Numpy:
        shift = flow.get_variable("shift", (16, 1), initializer=INIT)
        same = flow.matmul(shift, flow.constant(1.0, flow.float32, (1, 4)))  # for all classes
        return classified(dense(x, 4, "last") + flow.matmul(x, same, name="shifted"), y)

    found = verify_precision(job, "bfloat16", tolerance=0.02)
    assert [(out.kind, out.name) for out in found.undetermined] == [("gradient", "shift")]
    assert found.kept is not None


# ------------------------------------------------------------------------------------- command

PROGRAM = """
import oneflow as flow
import oneflow.typing as tp

init = flow.random_normal_initializer(0.0, 0.3)
config = flow.function_config()
{line}


@flow.global_function("train", config)
def train(x: tp.Numpy.Placeholder((8, 16))) -> tp.Numpy:
    for i in range(3):
        x = flow.layers.dense(x, 8, flow.math.tanh, kernel_initializer=init, name=str(i))
    loss = flow.math.square(x)
    flow.optimizer.SGD(0.1, momentum=0).minimize(loss)
    return loss
"""


def run(script: Path, *options: str) -> Any:
    flow.clear_default_session()
    arguments = ["verify", "--precision", "bfloat16", "--tolerance", "0.008", *options]
    return CliRunner().invoke(cli, [*arguments, str(script)])


@pytest.mark.slow
def test_the_line_that_the_command_prints_makes_it_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "_active", [])
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    script = tmp_path / "job.py"
    script.write_text(PROGRAM.format(line=""))
    failed = run(script)
    assert failed.exit_code == 1, failed.output
    assert "TOO FAR" in failed.output
    found = json.loads(run(script, "--json").output)
    assert not found["ok"]
    assert found["smallest"]
    assert found["code"] in failed.output
    assert f"{script}:" in failed.output
    script.write_text(PROGRAM.format(line=found["code"]))
    passed = run(script)
    assert passed.exit_code == 0, passed.output
    assert "the tolerance holds" in passed.output
