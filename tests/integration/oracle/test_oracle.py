"""The oracle finds what is wrong, names it, and does not mistake rounding for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import JobError
from flow_core.compiler.reshard.planner import TensorLayout
from flow_core.frontend.job.function import JobFunction
from flow_core.frontend.session import session as sessions
from flow_core.frontend.session.session import Session
from flow_core.observe.feeds import draw_feeds, index_bounds
from flow_core.observe.isolated_run import IsolatedRun
from flow_core.observe.oracle import Oracle, verify
from flow_core.observe.parts import assemble, take_apart
from flow_core.observe.rounding import difference
from flow_core.observe.verdict import EQUAL, INHERITED, ROUNDING, WRONG_BOXING, WRONG_RULE
from flow_core.plugins.host import default_registry
from flow_core.sharding.sbp import B, P, S, Signature
from flow_core.sharding.topology import Placement
from flow_core.testing import assert_like_one_device

HERE = Path(__file__).name
DEVICES = "0:0-3"
SPLIT_LAST = flow.distribute.split(1)


def job_of(
    body: Callable[[Any], Any],
    devices: str = DEVICES,
    rules: Mapping[str, Signature] | None = None,
) -> Any:
    """A predict job on an (8, 8) input; ops may be given other SBP rules."""

    def job(x: tp.Numpy.Placeholder((8, 8))) -> tp.Numpy:
        with flow.scope.placement("cpu", devices):
            return body(x)

    registry = default_registry()
    ops = dict(registry.ops)
    for op, rule in (rules or {}).items():
        ops[op] = replace(ops[op], sbp=lambda context, rule=rule: (rule,))
    return JobFunction(job, "predict", session=Session(replace(registry, ops=ops)))


def weight(name: str, shape: tuple[int, ...], **hint: Any) -> Any:
    return flow.get_variable(name, shape, initializer=flow.random_normal_initializer(), **hint)


def contracted(x: Any) -> Any:
    """A matrix product whose inner axis is split: partial sums."""
    w = weight("w", (8, 8), distribute=flow.distribute.split(0))
    return flow.matmul(x.with_distribute(SPLIT_LAST), w)


# ------------------------------------------------------------------------------ what is right


def test_partial_sums_are_rounding() -> None:
    found = assert_like_one_device(job_of(lambda x: flow.math.tanh(contracted(x))))
    verdicts = {op.type: op for op in found.ops}
    assert verdicts["matmul"].verdict == ROUNDING
    assert 0 < verdicts["matmul"].own <= 1
    assert verdicts["tanh"].own < 0.5  # it differs because of what it was given
    assert found.first is verdicts["matmul"]


def test_equal_bits() -> None:
    found = assert_like_one_device(job_of(flow.math.exp), steps=1)
    assert [op.verdict for op in found.ops] == [EQUAL]
    assert found.first is None


def test_dropout_and_updates_are_compared() -> None:
    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((8, 6))) -> tp.Numpy:
        with flow.scope.placement("cpu", DEVICES):
            y = flow.nn.dropout(flow.layers.dense(x, 8, name="fc"), rate=0.5)
            loss = flow.math.reduce_mean(flow.math.square(y))
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.Adam(rate).minimize(loss)
        return loss

    found = assert_like_one_device(job, steps=3)
    kinds = {op.type for op in found.ops}
    assert {"adam_update", "advance_step", "random_mask_like"} <= kinds
    job(np.ones((8, 6), np.float32))
    assert flow.get_all_variables()["System-Train-TrainStep-job"].numpy() == 1


def test_a_job_on_one_device_must_be_spread() -> None:
    job = job_of(flow.math.exp, devices="0:0")
    with pytest.raises(JobError, match="a job on one device"):
        verify(job)
    found = verify(job, 3)
    assert found.ok
    assert found.spread
    assert found.devices == ("cpu[0:0-2]",)


# ------------------------------------------------------------------------------ what is wrong


WRONG_RULES = {
    "a nonlinear function of partial sums": (
        "relu", Signature((P,), (P,)), lambda x: flow.nn.relu(contracted(x)),
    ),
    "a sum that is not complete": (
        "reduce_sum", Signature((S(0),), (B,)), lambda x: flow.math.reduce_sum(x, axis=0),
    ),
    "an axis along which there is a maximum": (
        "softmax", Signature((S(1),), (S(1),)),
        lambda x: flow.nn.softmax(x.with_distribute(SPLIT_LAST)),
    ),
    "a bias that is added by every device": (
        "bias_add", Signature((P, B), (P,)),
        lambda x: flow.nn.bias_add(contracted(x), weight("b", (8,))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_RULES)
def test_a_wrong_rule_is_told_from_rounding(name: str) -> None:
    op, rule, body = WRONG_RULES[name]
    found = verify(job_of(body, rules={op: rule}))
    assert [wrong.type for wrong in found.wrong] == [op]
    (wrong,) = found.wrong
    assert wrong.verdict == WRONG_RULE
    assert wrong.own > 1000
    assert HERE in wrong.line
    assert wrong.note
    assert not found.ok


def test_an_error_is_not_blamed_on_what_follows() -> None:
    rules = {"relu": Signature((P,), (P,))}
    found = verify(job_of(lambda x: flow.math.tanh(flow.nn.relu(contracted(x))), rules=rules))
    verdicts = {op.type: op.verdict for op in found.ops}
    assert verdicts["relu"] == WRONG_RULE
    assert verdicts["tanh"] in (INHERITED, ROUNDING)
    assert verdicts["matmul"] == ROUNDING


def test_the_kit_raises_with_the_report() -> None:
    job = job_of(
        lambda x: flow.math.reduce_sum(x, axis=0), rules={"reduce_sum": Signature((S(0),), (B,))}
    )
    with pytest.raises(AssertionError, match="wrong rule") as caught:
        assert_like_one_device(job)
    assert HERE in str(caught.value)


def test_small_errors_of_a_rule_are_found() -> None:
    """An error of a thousandth, far above rounding, but no glaring one."""
    rules = {"scalar_add": Signature((P,), (P,))}
    found = verify(job_of(lambda x: contracted(x) + 1e-3, rules=rules))
    assert [wrong.type for wrong in found.wrong] == ["scalar_add"]


def test_parts_at_the_wrong_place_are_told_from_a_wrong_rule() -> None:
    """Two devices compute with each other's rows."""
    job = job_of(lambda x: flow.math.tanh(flow.math.exp(x)))
    compiled = job.compile()
    graph = compiled.physical.graph
    a, b = graph.ops["tanh@0"], graph.ops["tanh@1"]
    swapped = {**graph.ops, a.name: a.with_inputs(b.inputs), b.name: b.with_inputs(a.inputs)}
    order = sorted(swapped, key=lambda name: name.startswith("tanh"))
    compiled.physical.graph = replace(graph, ops={name: swapped[name] for name in order})
    found = verify(job)
    (wrong,) = found.wrong
    assert (wrong.type, wrong.verdict) == ("tanh", WRONG_BOXING)
    assert not found.ok


# ------------------------------------------------------------------------------------- inputs


def test_indices_stay_in_their_range() -> None:
    @flow.global_function()
    def job(
        ids: tp.Numpy.Placeholder((500,), dtype=flow.int32),
        labels: tp.Numpy.Placeholder((500,), dtype=flow.int32),
        x: tp.Numpy.Placeholder((500, 3)),
    ) -> tp.Numpy:
        rows = flow.gather(weight("table", (5, 3)), flow.reshape(ids, (500,)))
        return flow.nn.sparse_softmax_cross_entropy_with_logits(labels, x + rows)

    graph, names = job.compile().logical, job.prepare().inputs
    assert index_bounds(graph) == {"Input_ids": 5, "Input_labels": 3}
    ids, labels, x = draw_feeds(graph, names, np.random.default_rng(0))
    assert (set(ids), set(labels)) == ({0, 1, 2, 3, 4}, {0, 1, 2})
    assert x.dtype == np.float32
    assert 0 <= x.min() < x.max() < 1


# -------------------------------------------------------------------------------------- parts


@pytest.mark.parametrize("sbp", [(S(0), S(0)), (S(1), B), (B, P), (P, S(0)), (P, P), (B, B)])
def test_parts_make_up_the_whole(sbp: tuple[Any, ...]) -> None:
    layout = TensorLayout(Placement.parse("cpu", "0:0-5", (2, 3)), sbp)
    array = np.arange(7 * 5).reshape(7, 5)
    whole = assemble(layout, array.shape, take_apart(layout, array, np.random.default_rng(0)))
    np.testing.assert_array_equal(whole.array, array)
    assert whole.disagreeing is None


def test_copies_that_disagree_are_named() -> None:
    layout = TensorLayout(Placement.parse("cpu", "0:0-2"), (B,))
    parts = [np.ones(2), np.ones(2), np.array([1.0, 2.0])]
    assert assemble(layout, (2,), parts).disagreeing == (0, 2)


def test_differences() -> None:
    nan, inf = np.nan, np.inf
    a, b = np.array([1.0, nan, inf, inf, 1.0]), np.array([1.5, nan, inf, -inf, nan])
    assert difference(a, b).tolist() == [0.5, 0, 0, inf, inf]


# -------------------------------------------------------------------- found by the oracle once


def test_split_variables_start_as_whole_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unwritten memory is not mistaken for the first value of other parts."""
    empty = np.empty

    def poisoned(*args: Any, **options: Any) -> Any:
        array = empty(*args, **options)
        array[...] = 77
        return array

    def values(devices: str) -> Any:
        flow.clear_default_session()
        hint = flow.distribute.split(0)
        job = job_of(lambda x: flow.matmul(x, weight("w", (8, 8), distribute=hint)), devices)
        monkeypatch.setattr(sessions.np, "empty", poisoned)
        job.executable()
        monkeypatch.undo()
        return job.session.stored()["w"].numpy()

    np.testing.assert_array_equal(values("0:0-2"), values("0:0"))


def test_groups_overwrite_inputs_only_where_their_members_may() -> None:
    """Dropout reads its input after it has begun to write."""
    rng = np.random.default_rng(0)
    x = rng.random((64, 8), np.float32)

    def run(inplace: bool) -> Any:
        flow.clear_default_session()
        config = flow.function_config()
        config.enable_inplace(inplace)

        @flow.global_function(type="train", function_config=config)
        def job(x: tp.Numpy.Placeholder((64, 8))) -> tp.Numpy:
            y = flow.nn.dropout(flow.matmul(x, weight("w", (8, 8))), rate=0.5)
            loss = flow.math.square(y)
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(rate, momentum=0).minimize(loss)
            return loss

        assert any(task.type == "fused" for task in job.plan().tasks)
        job(x)
        return flow.get_all_variables()["w"].numpy()

    np.testing.assert_array_equal(run(True), run(False))


def normalized() -> Any:
    """A job in the mirrored view: every device notes statistics of its own part of the batch."""
    config = flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view())
    config.default_placement_scope(flow.scope.placement("cpu", "0:0-1"))

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.ListNumpy.Placeholder((4, 3))) -> tp.ListNumpy:
        w = flow.get_variable("w", (3,), initializer=flow.ones_initializer())
        y = flow.layers.batch_normalization(x * w, axis=1, momentum=0.5, name="bn")
        rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
        flow.optimizer.SGD(rate, momentum=0.9).minimize(y)
        return y

    return job


def test_statistics_that_mirrored_devices_keep_are_compared() -> None:
    found = verify(normalized(), steps=3)
    assert found.ok, str(found)
    assert found.as_planned
    assert {op.verdict for op in found.ops if op.type == "normalization"} == {EQUAL}
    assert sum(op.type == "normalization" for op in found.ops) == 2


def test_statistics_of_one_device_that_are_wrong_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = Oracle.held

    def wrong(oracle: Oracle, many: IsolatedRun) -> dict[str, Any]:
        states = held(oracle, many)
        states["bn-moving_mean of cpu:0:1"] += 1
        return states

    monkeypatch.setattr(Oracle, "held", wrong)
    found = {op.op: op.verdict for op in verify(normalized()).ops}
    assert found["bn#0"] == EQUAL
    assert found["bn#1"] in (WRONG_RULE, WRONG_BOXING)


def test_variables_overwritten_by_a_mirrored_job() -> None:
    config = flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view())
    config.default_placement_scope(flow.scope.placement("cpu", "0:0-2"))

    @flow.global_function(function_config=config)
    def count(x: tp.ListNumpy.Placeholder((3,))) -> tp.ListNumpy:
        seen = flow.get_variable("seen", (3,), initializer=flow.zeros_initializer())
        flow.assign(seen, seen + x)
        return x

    assert verify(count, steps=3).ok
