"""Devices with one memory share what they have in common: the same bits, less work and memory."""

import gc
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from parallel_forms import BATCH, RowByRow, assert_same, batches, emulated, make_job, mlp, train

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import PlanError, UnsupportedError
from flow_core.builtin.in_process import InProcessComm
from flow_core.builtin.numpy_kernels.math import matmul as numpy_matmul
from flow_core.device import Comm
from flow_core.frontend.session.session import default_session
from flow_core.observe.oracle import verify
from flow_core.plan import Plan
from flow_core.runtime.executable import Executable
from flow_core.sharding.topology import Device


@pytest.fixture(autouse=True)
def devices() -> Iterator[None]:
    with emulated(4):
        yield


def config(shared: bool, mode: str | None = None, micro: int = 1) -> Any:
    settings = flow.function_config()
    settings.share_replicas(shared)
    if mode:
        settings.train.optimizer_placement_optimization_mode(mode)
        settings.train.optimizer_placement_optimization_threshold(1)
    if micro > 1:
        settings.train.num_gradient_accumulation_steps(micro)
    return settings


def dropped(x: Any) -> Any:
    """With statistics of the batch, random numbers and a weight that is split."""
    h = flow.layers.batch_normalization(mlp(x), axis=1, name="bn")
    split = flow.get_variable(
        "split", (5, 5), initializer=flow.ones_initializer(), distribute=flow.distribute.split(0)
    )
    return flow.matmul(flow.nn.dropout(h, rate=0.3, seed=3), split)


FORMS: dict[str, dict[str, Any]] = {
    "sgd": {"rule": "sgd"},
    "adam": {"rule": "adam"},
    "clipped": {"rule": "clipped"},
    "normalized": {"body": dropped},
    "grid": {"hierarchy": (2, 2)},
    "three": {"devices": "0:0-2", "rule": "adam"},
    "zero": {"rule": "adam", "mode": "distributed_split"},
    "owners": {"rule": "adam", "mode": "non_distributed"},
    "micro": {"micro": 2},
}


def job_of(form: str, shared: bool) -> Any:
    flow.clear_default_session()
    asked = {"devices": "0:0-3", **FORMS[form]}
    settings = config(shared, asked.pop("mode", None), asked.pop("micro", 1))
    return make_job(config=settings, **asked)


@pytest.mark.slow
@pytest.mark.representative(r"\[grid\]", "groups in two dimensions; the test below takes Adam")
@pytest.mark.parametrize("form", FORMS)
def test_sharing_changes_no_bit(form: str) -> None:
    apart = job_of(form, False)
    wanted, sent, plan = train(apart), apart.executable().sent(), apart.plan()
    assert not any(b.home for b in plan.buffers)
    job = job_of(form, True)
    assert_same(train(job), wanted)
    assert job.executable().sent() == sent
    assert job.plan().ledger == plan.ledger
    assert any(b.home for b in job.plan().buffers)
    assert len(job.plan().tasks) < len(plan.tasks)


@pytest.mark.representative(r"\[4\]", "a thread per device")
@pytest.mark.parametrize("threads", [2, 4])
def test_streams_on_threads_share_too(threads: int) -> None:
    wanted = train(job_of("adam", False))
    with emulated(4, threads):
        job = job_of("adam", True)
        assert job.plan().workers == threads
        assert_same(train(job), wanted)


@pytest.mark.slow
def test_the_oracle_finds_that_the_plan_computes_what_devices_apart_compute() -> None:
    verdict = verify(make_job("0:0-3", dropped, "adam"))
    assert verdict.ok, str(verdict)
    assert verdict.as_planned
    assert verdict.repeatable


def test_gradients_are_summed_where_they_arise() -> None:
    """The later devices add their products to the first one's, in the order of the sum."""
    plan = make_job("0:0-3", rule="lamb").plan()
    products = [t for t in plan.tasks if t.type.startswith("matmul") and "h-" in t.op]
    gradient = [t for t in products if plan.buffers[t.outputs[0]].type.shape == (16, 12)]
    assert [t.type for t in gradient] == ["matmul", *["matmul_onto"] * 3]
    assert [t.device for t in gradient] == [Device("gpu", 0, i) for i in range(4)]
    assert len({plan.buffers[t.outputs[0]].offset for t in gradient}) == 1
    assert any(t.attrs.get("summed") for t in plan.tasks if t.type == "boxing")


def joined(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Shapes of what ops make for all devices at once, by op."""
    tasks = [t for t in plan.tasks if t.outputs and t.type != "boxing"]
    logical = {t.op: plan.buffers[t.outputs[0]].type.shape for t in tasks}
    return {op: shape for op, shape in logical.items() if shape[:1] == (BATCH,)}


def test_rows_of_all_devices_are_one_array() -> None:
    """What is done row by row is done for all devices at once, by the first."""
    with emulated(4, None, RowByRow()):
        plan = make_job("0:0-3").plan()
    found = joined(plan)
    assert len(found) >= 4
    assert all(op.endswith("@0") for op in found)
    feeds = [plan.buffers[i] for i in plan.feeds[:4]]
    ends = [b.offset + b.type.nbytes for b in feeds]
    assert [b.offset for b in feeds[1:]] == ends[:-1]
    assert {b.memory for b in feeds} == {Device("gpu", 0, 0)}
    assert [b.device for b in feeds] == [Device("gpu", 0, i) for i in range(4)]
    with emulated(4, None, RowByRow()):
        assert not joined(job_of("sgd", False).plan())


@pytest.mark.parametrize("alike", [True, False])
def test_products_are_joined_where_the_bits_of_their_rows_are_alike(
    alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is the processor's secret; a plan takes the answer of the trial, whatever it is."""
    monkeypatch.setattr(numpy_matmul, "_same_rows", lambda *_: alike)
    assert bool(joined(make_job("0:0-3").plan())) == alike


@pytest.mark.representative(
    r"\[row by row-0:0-1-5\]", "a kernel that takes single rows, and parts of 3 and 2 rows"
)
@pytest.mark.parametrize("batch", [5, 33])
@pytest.mark.parametrize("ids", ["0:0-1", "0:0-3"])
@pytest.mark.parametrize("plugins", [(), (RowByRow(),)], ids=["numpy", "row by row"])
def test_rows_of_uneven_parts_have_the_bits_of_devices_apart(
    ids: str, batch: int, plugins: tuple[Any, ...]
) -> None:
    found = []
    for shared in (False, True):
        with emulated(4, None, *plugins):
            job = make_job(ids, config=config(shared), batch=batch)
            found.append(train(job, batch=batch))
    assert_same(*found)


@pytest.mark.parametrize("rule", ["sgd", "adam", "momentum"])
def test_a_gradient_that_an_update_alone_reads_is_made_by_the_update(rule: str) -> None:
    """The weight is all of its size that goes through memory; what devices send is counted."""
    plan = make_job("0:0-3", rule=rule, batch=4).plan()
    weights = [t for t in plan.tasks if t.type.startswith("summed_")]
    names = [plan.buffers[t.inputs[0]].name for t in weights]
    assert names == ["h-weight@0:0"]
    for task in weights:
        assert task.attrs["parts"] == 4
        operands = [plan.buffers[i] for i in task.inputs[-8:]]
        assert [b.device for b in operands[::2]] == [Device("gpu", 0, i) for i in range(4)]
    products = [t for t in plan.tasks if t.type == "matmul" and t.attrs["transpose_a"]]
    assert not any("h-" in t.op for t in products)
    reduced = [t for t in plan.tasks if t.attrs.get("summed")]
    assert reduced


def test_no_update_holds_more_than_its_gradient() -> None:
    """It waits for a bucket of gradients, and what products of many rows read is large."""
    plan = make_job("0:0-3", rule="sgd", batch=64).plan()
    assert not any(t.type.startswith("summed_") for t in plan.tasks)


def onto(plan: Plan) -> set[str]:
    added = [t for t in plan.tasks if t.type.startswith(("matmul_onto", "summed_"))]
    return {plan.buffers[t.inputs[0]].name for t in added}


def test_threads_do_not_wait_for_one_another_to_add() -> None:
    with emulated(4, threads=2):
        assert not onto(make_job("0:0-3").plan())


def test_a_partial_result_that_is_read_stays() -> None:
    """As an op of the mirrored view reads it, beside the sum."""

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((8, 6))) -> tuple[tp.Numpy, tp.Numpy]:
        with flow.scope.placement("gpu", "0:0-3"):
            x = flow.parallel_cast(x, distribute=flow.distribute.split(1))
            w = flow.get_variable(
                "w", (6, 5), initializer=flow.ones_initializer(),
                distribute=flow.distribute.split(0),
            )  # fmt: skip
            y = flow.matmul(x, w)
            whole = flow.parallel_cast(y, distribute=flow.distribute.broadcast())
            return flow.math.relu(whole), y * 2

    x = np.arange(48, dtype=np.float32).reshape(8, 6)
    for result, factor in zip(job(x), (1, 2), strict=True):
        np.testing.assert_allclose(result, factor * x.sum(1, keepdims=True).repeat(5, 1))


def test_updates_run_once_on_weights_that_are_there_once() -> None:
    job = make_job("0:0-3", rule="adam", batch=8)
    plan = job.plan()
    updates = [t for t in plan.tasks if t.type.endswith("adam_update")]
    assert {t.device for t in updates} == {Device("gpu", 0, 0)}
    assert len(updates) == 4
    train(job, batch=8)
    parts = default_session().stored()["h-weight"].parts
    assert list(parts) == [Device("gpu", 0, 0)]
    flow.clear_default_session()
    apart = make_job("0:0-3", rule="adam", config=config(False), batch=8).plan()
    assert sum(a.nbytes for a in plan.arenas) < sum(a.nbytes for a in apart.arenas)


def test_an_all_reduce_is_done_in_place() -> None:
    plan = make_job("0:0-3", rule="sgd").plan()
    reduced = [t for t in plan.tasks if t.kernel == "all_reduce"]
    assert reduced
    for task in reduced:
        for first in range(0, len(task.inputs), 4):
            member = [plan.buffers[i] for i in task.outputs[first : first + 4]]
            own = plan.buffers[task.inputs[first]]
            assert {(b.memory, b.offset) for b in member} == {(Device("gpu", 0, 0), own.offset)}
            assert [b.device for b in member] == [Device("gpu", 0, r) for r in range(4)]


def test_a_plan_that_shares_goes_through_json() -> None:
    plan = make_job("0:0-3").plan()
    assert Plan.from_json(plan.to_json()) == plan


def test_state_is_saved_and_assigned_once_for_all_devices() -> None:
    job = make_job("0:0-3", rule="adam")
    train(job, steps=2)
    saved = {name: v.numpy() for name, v in flow.get_all_variables().items()}
    wanted = train(job, steps=2)
    default_session().assign(saved)
    assert_same(train(job, steps=2), wanted)


@pytest.mark.slow
def test_steps_on_several_devices_allocate_nothing() -> None:
    job, feeds = make_job("0:0-3", rule="adam"), batches(1)[0]
    for _ in range(10):
        job(*feeds)
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(20):
            job(*feeds)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        for _ in range(20):
            job(*feeds)
        gc.collect()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 4096  # the interpreter's own small objects
    assert peak - before < 65536  # numpy's iterators, for the length of a call


def predict(shared: bool = True, devices: str = "0:0-3") -> Any:
    @flow.global_function(function_config=config(shared))
    def look(x: tp.Numpy.Placeholder((24, 12))) -> tp.Numpy:
        with flow.scope.placement("gpu", devices):
            return mlp(x)

    return look


@pytest.mark.representative(
    r"\[True-False\]", "compiled before the job that trains, and without sharing"
)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_other_jobs_see_the_updates(shared: bool, first: bool) -> None:
    """A job that reads the weights, compiled before or after the one that trains them."""
    look, job = predict(shared), make_job("0:0-3", rule="sgd")
    x = batches(1)[0][0]
    if first:
        look(x)
    train(job)
    stored = {name: v.numpy() for name, v in default_session().stored().items()}
    hidden = np.maximum(x @ stored["h-weight"].T + stored["h-bias"], 0)
    wanted = hidden @ stored["o-weight"].T + stored["o-bias"]
    np.testing.assert_allclose(look(x), wanted, rtol=1e-4, atol=1e-5)


def normalized(x: Any) -> Any:
    return flow.layers.batch_normalization(mlp(x), axis=1, momentum=0.5, name="bn")


@pytest.mark.representative(
    r"\[True-False\]", "compiled before the job that trains, and without sharing"
)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_a_job_that_only_reads_statistics_agrees_with_the_one_that_moves_them(
    shared: bool, first: bool
) -> None:
    def outputs(devices: str) -> Any:
        flow.clear_default_session()

        @flow.global_function("predict", config(shared))
        def look(x: tp.Numpy.Placeholder((BATCH, 12))) -> tp.Numpy:
            with flow.scope.placement("gpu", devices):
                return normalized(x)

        job, x = make_job(devices, normalized, config=config(shared)), batches(1)[0][0]
        before = look(x) if first else None
        train(job)
        after = look(x)
        assert before is None or not np.allclose(before, after, atol=1e-3)
        return after

    np.testing.assert_allclose(outputs("0:0-3"), outputs("0:0"), rtol=1e-4, atol=1e-5)


def mirrored(shared: bool = True) -> Any:
    settings = config(shared)
    settings.default_logical_view(flow.scope.mirrored_view())
    settings.default_placement_scope(flow.scope.placement("gpu", "0:0-1"))

    @flow.global_function(type="train", function_config=settings)
    def normalize(x: tp.ListNumpy.Placeholder((4, 3))) -> tp.ListNumpy:
        w = flow.get_variable("w", (3,), initializer=flow.ones_initializer())
        y = flow.layers.batch_normalization(x * w, axis=1, momentum=0.5, name="bn")
        rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
        flow.optimizer.SGD(rate, momentum=0).minimize(y)
        return y

    return normalize


def test_what_devices_update_apart_stays_apart() -> None:
    job = mirrored()
    rng = np.random.default_rng(0)
    job([rng.normal(size=(4, 3)).astype("f4") + i for i in range(2)])
    stored = default_session().stored()
    means = [part.array for part in stored["bn-moving_mean"].parts.values()]
    assert len(means) == 2
    assert not np.array_equal(*means)
    assert len(stored["w"].parts) == 1  # the gradient is that of all devices


def test_jobs_agree_on_what_is_shared() -> None:
    make_job("0:0-3", rule="sgd").plan()

    @flow.global_function(type="train", function_config=config(False))
    def other(x: tp.Numpy.Placeholder((24, 12))) -> tp.Numpy:
        with flow.scope.placement("gpu", "0:0-3"):
            loss = flow.math.reduce_mean(mlp(x))
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(rate, momentum=0).minimize(loss)
            return loss

    with pytest.raises(UnsupportedError, match=r"compiling job 'other'[\s\S]*share_replicas"):
        other.plan()


class _Part(InProcessComm):
    """A comm of a process that has one of the devices."""

    def __init__(self, devices: Any) -> None:
        super().__init__(devices)
        self.local = (Device("gpu", 0, 1),)


def test_a_process_with_some_devices_only_refuses_a_plan_that_shares() -> None:
    session, plan = default_session(), make_job("0:0-3").plan()

    def comm(devices: Any) -> Comm:
        return _Part(devices)

    with pytest.raises(PlanError, match=r"in the memory of gpu:0:0[\s\S]*share_replicas"):
        Executable(plan, session.registry, session.driver, session.variable, comm=comm)


def test_what_follows_a_sum_and_only_one_device_has_to_give_is_done_once() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((BATCH, 3))) -> tp.Numpy:
        with flow.scope.placement("gpu", "0:0-3"):
            x = flow.math.tanh(x.with_distribute(flow.distribute.split(0)))
            total = flow.math.reduce_sum(x)
            total = flow.parallel_cast(total, distribute=flow.distribute.broadcast())
            return 1 - flow.math.exp(total * 0.5)

    x = np.linspace(-1, 1, BATCH * 3, dtype=np.float32).reshape(BATCH, 3) ** 2
    np.testing.assert_allclose(job(x), [1 - np.exp(np.tanh(x).sum() / 2)], rtol=1e-5)
    assert sum(task.type == "fused" for task in job.plan().tasks) == 1
