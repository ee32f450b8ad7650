"""Joined updates of small variables have the bits of separate updates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.config import Settings
from flow_core.base.dtypes import float32, int64
from flow_core.frontend.session import session as sessions
from flow_core.ir.graph import Attrs, tensor_type
from flow_core.observe.text import plan_report
from flow_core.plugins import host
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import KernelQuery
from flow_core.testing.checks import run_kernel
from flow_onednn.native import compiler
from flow_onednn.passes import join
from flow_onednn.update_references import JOINED, MOST_ROWS, Joined

SIZES = (1, 17, 5000, 9, join.SMALL)
COMMON = {"scale": 0.5, "l1": 0.01, "l2": 0.02, "weight_decay": 0.1}
OWN = {
    "beta": 0.7, "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3, "momentum_beta": 0.6,
    "lars_coefficient": 0.2, "zero_ratio": 0.5, "decay_rate": 0.9,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _needs_a_compiler(onednn: None) -> None:
    if not compiler.available():
        pytest.skip(f"no C compiler: {compiler.state()}")


def launched(op: str, attrs: Any, arrays: list[Any]) -> None:
    """Run our kernel of an update."""
    kinds = {"f": float32, "i": int64}
    types = tuple(tensor_type(a.shape, kinds[a.dtype.kind]) for a in arrays)
    query = KernelQuery(op, Attrs(attrs), types, ())
    kernel = default_registry().find_kernel(query, "cpu")
    assert kernel.name == f"c.{op}"
    run_kernel(kernel, query, arrays)


def rows_of(row: Joined) -> list[list[Any]]:
    """Return variable, gradient, states and scalars of each variable."""
    rng = np.random.default_rng(0)

    def made(*shape: int) -> Any:
        return np.abs(rng.normal(0, 1, shape)).astype(np.float32)

    powers = [np.array(x, np.float32) for x in (0.6, 0.7)[: len(row.rule.numbers)]]
    return [
        [
            made(n),
            made(n) - 1,
            *(made(n) for _ in row.rule.states),
            *(p.copy() for p in powers),
        ]
        for n in SIZES
    ]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("row", JOINED, ids=lambda row: row.rule.type)
def test_joined_updates_have_the_bits_of_separate_updates(row: Joined, scaled: bool) -> None:
    attrs = {**COMMON, **{name: OWN[name] for name in row.rule.attrs}}
    rate, factor = np.array(0.1, np.float32), np.array(0.3, np.float32)
    step = [np.array(2)] if row.rule.step else []
    single, joined = rows_of(row), rows_of(row)
    for model, diff, *states in single:
        last = [factor] if scaled else []
        launched(row.rule.type, attrs, [model, diff, rate, *step, *states, *last])
    flat = [array for arrays in joined for array in arrays]
    head = [rate, factor if scaled else rate, *step]
    launched(row.type, {**attrs, "scaled": scaled}, [*head, *flat])
    for ours, theirs in zip(joined, single, strict=True):
        for have, want in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(have, want)
    assert not np.array_equal(joined[1][0], rows_of(row)[1][0]), "the update changes the variable"


def test_overwritten_inputs_are_listed_for_each_row() -> None:
    adam = next(row for row in JOINED if row.rule.type == "adam_update")
    assert adam.mutates[:6] == (2, 4, 5, 6, 8, 9)
    assert len(adam.mutates) == 3 * MOST_ROWS


RATE = [0.01]
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda rate: flow.optimizer.SGD(rate, momentum=0),
    "clipped": lambda rate: flow.optimizer.SGD(
        rate, momentum=0.9, grad_clipping=flow.optimizer.grad_clipping.by_global_norm(0.1)
    ),
    "adam": flow.optimizer.Adam,
    "lamb": flow.optimizer.LAMB,
    "lars": flow.optimizer.LARS,
}


def trained(
    optimizer: str, devices: int = 1, mode: str | None = None
) -> tuple[list[Any], list[str]]:
    """Return losses and final variables of a perceptron, and the types of its plan's tasks."""
    flow.clear_default_session()
    place = ("gpu", f"0:0-{devices - 1}") if devices > 1 else ("cpu", "0:0")

    config = flow.function_config()
    if mode is not None:
        config.optimizer_placement_optimization_mode(mode)
        config.optimizer_placement_optimization_threshold(100)  # weights, but no bias

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((16, 30))) -> tp.Numpy:  # type: ignore[valid-type]
        with flow.scope.placement(*place):
            x = flow.identity(x.with_distribute(flow.distribute.split(0)))
            draw = flow.random_normal_initializer(stddev=0.3)
            for i in range(4):
                x = flow.layers.dense(
                    x, 20, flow.math.tanh, kernel_initializer=draw, bias_initializer=draw,
                    name=f"d{i}",
                )  # fmt: skip
            loss = flow.math.reduce_mean(x * x)
            rate = flow.optimizer.PiecewiseConstantScheduler([], RATE)
            OPTIMIZERS[optimizer](rate).minimize(loss)
            return loss

    x = np.random.default_rng(0).normal(0, 1, (16, 30)).astype(np.float32)
    losses = [job(x) for _ in range(4)]
    names = [f"d{i}-{kind}" for i in range(4) for kind in ("weight", "bias")]
    values = [np.array(flow.get_all_variables()[name].numpy()) for name in names]
    return [*losses, *values], [task.type for task in job.plan().tasks]


@pytest.mark.slow
@pytest.mark.representative("adam", "the others differ in the optimizer")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_job_trains_as_without_joining(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, types = trained(optimizer)
    joined = [t for t in types if t in {row.type for row in JOINED}]
    assert len(joined) == 1
    assert not {row.rule.type for row in JOINED} & set(types)
    monkeypatch.setattr(join, "SMALL", 0)
    apart, types = trained(optimizer)
    assert joined[0] not in types
    for have, want in zip(ours, apart, strict=True):
        np.testing.assert_array_equal(have, want)


@pytest.fixture
def four_devices() -> Iterator[None]:
    before = list(sessions._default)
    settings = Settings(emulate_gpus=4)
    sessions._default[:] = [sessions.Session(host.load_plugins(settings, ()), settings)]
    yield
    flow.clear_default_session()
    sessions._default[:] = before


@pytest.mark.slow
@pytest.mark.usefixtures("four_devices")
def test_devices_that_share_variables_join_their_updates_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, types = trained("adam", 4)
    assert types.count("onednn_adam_updates") == 1
    assert "adam_update" not in types
    monkeypatch.setattr(join, "SMALL", 0)
    apart, types = trained("adam", 4)
    assert sum(name.endswith("adam_update") for name in types) == 8
    for have, want in zip(ours, apart, strict=True):
        np.testing.assert_array_equal(have, want)


@pytest.mark.slow
@pytest.mark.representative("distributed_split", "the others differ in the optimizer")
@pytest.mark.usefixtures("four_devices")
@pytest.mark.parametrize("mode", ["non_distributed", "distributed_split"])
def test_devices_with_different_states_join_their_own(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device has one row per variable."""
    monkeypatch.setattr(join, "SMALL", 500)  # three of four weights, and all biases
    ours, types = trained("sgd", 4, mode)
    assert "onednn_sgd_updates" in types
    monkeypatch.setattr(join, "SMALL", 0)
    for have, want in zip(ours, trained("sgd", 4, mode)[0], strict=True):
        np.testing.assert_array_equal(have, want)


def test_variables_overwritten_by_another_op_are_not_joined() -> None:
    flow.clear_default_session()

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((4, 6))) -> tp.Numpy:  # type: ignore[valid-type]
        ones = flow.ones_initializer()
        names = ("a", "b", "c")
        kept = [flow.get_variable(name, (6,), initializer=ones) for name in names]
        flow.assign(kept[1], kept[1] * 0.5)
        loss = flow.math.reduce_mean(x * kept[0] * kept[1] * kept[2])
        rate = flow.optimizer.PiecewiseConstantScheduler([], RATE)
        flow.optimizer.SGD(rate, momentum=0).minimize(loss)
        return loss

    tasks = job.plan().tasks
    (joined,) = [t for t in tasks if t.type == "onednn_sgd_updates"]
    assert len(joined.inputs) == 2 + 2 * 2, "a and c"
    assert [t.type for t in tasks].count("sgd_update") == 1


def test_plan_shows_the_first_of_many_variables() -> None:
    flow.clear_default_session()

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((4, 6))) -> tp.Numpy:  # type: ignore[valid-type]
        for i in range(9):
            x = x * flow.get_variable(f"v{i}", (6,), initializer=flow.ones_initializer())
        loss = flow.math.reduce_mean(x)
        rate = flow.optimizer.PiecewiseConstantScheduler([], RATE)
        flow.optimizer.SGD(rate, momentum=0).minimize(loss)
        return loss

    report = plan_report(job)
    (row,) = [line for line in report.splitlines() if "c.onednn_sgd_updates" in line]
    assert "v0:0" in row
    assert "and 8 more" in row, "of a rate, itself as the factor, and nine pairs"
