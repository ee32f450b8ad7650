"""The oracle on programs that are awkward to lay out, with kernels of numpy and of plugins."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from parallel_forms import RowByRow, emulated, make_job

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.config import Settings
from flow_core.frontend.session import session as sessions
from flow_core.observe import rounding
from flow_core.observe.feeds import draw_feeds
from flow_core.observe.oracle import Oracle, verify
from flow_core.observe.sensitivity import moved
from flow_core.observe.verdict import verdict_tables
from flow_core.plugins.host import load_plugins
from flow_core.plugins.specs import BindContext, KernelSpec

S = flow.distribute.split
INIT = flow.random_normal_initializer(stddev=0.1)
Labels = tp.Numpy.Placeholder


def gpus(devices: str = "0:0-3", hierarchy: Any = None) -> Any:
    return flow.scope.placement("gpu", devices, hierarchy)


def rate() -> Any:
    return flow.optimizer.PiecewiseConstantScheduler([], [0.05])


def dense(x: Any, units: int, name: str, **given: Any) -> Any:
    return flow.layers.dense(x, units, name=name, kernel_initializer=INIT, **given)


def weight(name: str, shape: tuple[int, ...], **given: Any) -> Any:
    return flow.get_variable(name, shape, initializer=INIT, **given)


def entropy(y: Any, logits: Any) -> Any:
    return flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)


def looked_up() -> Any:
    """Two tables, split by rows and by columns, and a batch that no number of devices divides."""

    @flow.global_function(type="train")
    def job(
        ids: tp.Numpy.Placeholder((13, 5), dtype=flow.int32),
        y: Labels((13,), dtype=flow.int32),
    ) -> tp.Numpy:
        with gpus():
            rows = flow.gather(weight("rows", (37, 6), distribute=S(0)), ids)
            columns = flow.gather(weight("columns", (31, 6), distribute=S(1)), ids)
            h = flow.reshape(flow.concat([rows, columns], axis=2), (13, 60))
            loss = entropy(y, dense(h, 7, "o"))
            flow.optimizer.Adam(rate()).minimize(loss)
        return loss

    return job


def normed() -> Any:
    """Dropout and layer normalization of rows on their own devices."""

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((11, 7, 10)), y: Labels((11,), dtype=flow.int32)) -> tp.Numpy:
        with gpus():
            h = flow.parallel_cast(x, distribute=S(0))
            h = flow.layers.layer_norm(h, begin_norm_axis=2, name="first")
            h = flow.reshape(flow.nn.dropout(h, rate=0.4), (11, 70))
            h = flow.layers.layer_norm(dense(h, 9, "d", activation=flow.math.gelu), name="second")
            loss = entropy(y, dense(flow.nn.dropout(h, rate=0.1), 5, "o"))
            flow.optimizer.SGD(rate(), momentum=0.9).minimize(loss)
        return loss

    return job


def uneven() -> Any:
    """Images that are fewer than twice the devices, statistics of the batch, norms of parts."""

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((5, 3, 9, 7)), y: Labels((5,), dtype=flow.int32)) -> tp.Numpy:
        with gpus():
            h = flow.layers.conv2d(
                flow.parallel_cast(x, distribute=S(0)), 6, 3, padding="SAME", name="c",
                kernel_initializer=INIT, activation=flow.nn.relu,
            )  # fmt: skip
            h = flow.layers.batch_normalization(h, axis=1, name="bn")
            h = flow.reshape(flow.nn.max_pool2d(h, 2, 2, "SAME"), (5, -1))
            logits = flow.matmul(h, weight("w", (h.shape[1], 6), distribute=S(0)))
            loss = entropy(y, logits.with_distribute(S(1)))
            flow.optimizer.LAMB(rate()).minimize(loss)
        return loss

    return job


def grid() -> Any:
    """Two by two devices: rows along one dimension, columns along the other."""

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((10, 6)), y: Labels((10,), dtype=flow.int32)) -> tp.Numpy:
        with gpus(hierarchy=(2, 2)):
            x = flow.hierarchical_parallel_cast(x, ["S(0)", "B"])
            up = weight("up", (6, 9), parallel_distribution=["B", "S(1)"])
            down = weight("down", (9, 5), parallel_distribution=["B", "S(0)"])
            out = flow.matmul(flow.nn.relu(flow.matmul(x, up)), down)
            loss = entropy(y, flow.hierarchical_parallel_cast(out, ["S(0)", "S(0)"]))
            flow.optimizer.Adam(rate()).minimize(loss)
        return loss

    return job


def everything() -> Any:
    """States in parts, three micro-batches, recomputed activations and a clipped gradient."""
    config = flow.function_config()
    config.train.num_gradient_accumulation_steps(3)
    config.train.optimizer_placement_optimization_mode("distributed_split")
    config.train.optimizer_placement_optimization_threshold(1)

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((18, 12)), y: Labels((18,), dtype=flow.int32)) -> tp.Numpy:
        with gpus():
            for i in range(3):
                with flow.experimental.scope.config(checkpointing=True):
                    x = flow.nn.dropout(dense(x, 14, f"l{i}", activation=flow.math.tanh), 0.2)
            loss = entropy(y, dense(x, 5, "o"))
            clip = flow.optimizer.grad_clipping.by_global_norm(0.5)
            flow.optimizer.Adam(rate(), grad_clipping=clip).minimize(loss)
        return loss

    return job


def halves() -> Any:
    """Two stages, the first by columns, in mixed precision and micro-batches."""
    config = flow.function_config()
    config.enable_auto_mixed_precision(True)
    config.train.num_gradient_accumulation_steps(2)

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((22, 12)), y: Labels((22,), dtype=flow.int32)) -> tp.Numpy:
        with gpus("0:0-1"):
            h = dense(x, 17, "a", activation=flow.nn.relu, model_distribute=S(0))
        with gpus("0:2-3"):
            loss = entropy(y, dense(flow.nn.dropout(h, rate=0.3), 5, "b"))
            flow.optimizer.SGD(rate(), momentum=0).minimize(loss)
        return loss

    return job


PROGRAMS = (looked_up, normed, uneven, grid, everything, halves)


@contextmanager
def with_all_plugins() -> Iterator[None]:
    """A default session with emulated devices and whatever kernels are installed."""
    flow.clear_default_session()
    settings = Settings(emulate_gpus=4)
    sessions._default[:] = [sessions.Session(load_plugins(settings), settings)]
    try:
        yield
    finally:
        flow.clear_default_session()
        sessions._default.clear()


@pytest.mark.slow
@pytest.mark.representative("everything", "it has what the others have")
@pytest.mark.arithmetic
@pytest.mark.parametrize("program", PROGRAMS)
def test_awkward_programs_equal_one_device(program: Callable[[], Any]) -> None:
    with emulated(4):
        found = verify(program())
    assert found.ok, str(found)
    assert found.drift == 0.0  # core's own passes change no bit
    assert all(np.isfinite(op.error) for op in found.ops)


@pytest.mark.representative("everything", "it has what the others have")
@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_passes_of_plugins_may_round_otherwise(program: Callable[[], Any]) -> None:
    with with_all_plugins():
        found = verify(program())
    assert found.ok, str(found)
    assert found.drift < 1e-2


def pictures() -> Any:
    """Convolutions and batch norms of two pictures per device, which some plugins fuse."""

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((4, 3, 6, 6))) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-1"):
            init = flow.random_normal_initializer(stddev=0.3)
            for i in range(3):
                x = flow.layers.conv2d(
                    x, 8, 3, padding="SAME", kernel_initializer=init, name=f"c{i}"
                )
                x = flow.math.relu(flow.layers.batch_normalization(x, axis=1, name=f"n{i}"))
            loss = flow.math.reduce_mean(flow.math.square(x))
            flow.optimizer.SGD(rate(), momentum=0.9).minimize(loss)
        return loss

    return job


@pytest.mark.exhaustive
def test_more_than_is_usual_may_be_rounding_that_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where single roundings of weights and inputs move results as far."""
    pytest.importorskip("flow_onednn")
    monkeypatch.setattr(rounding, "ALLOWED", {2: 0.0, 4: 0.0, 8: 0.0})
    with with_all_plugins():
        found = verify(pictures())
        if not found.drift:
            pytest.skip("no plugin has passes for this program here")
        assert found.drift <= rounding.MANY * found.moved
        assert found.ok, str(found)
        summary = dict(next(verdict_tables(found)).rows)
        assert "a few roundings of weights and inputs move results by" in summary
    monkeypatch.setattr(rounding, "MANY", 1e-9)
    with with_all_plugins():
        assert not verify(pictures()).ok


def test_what_a_chaotic_program_makes_of_a_rounding() -> None:
    def steps(rounds: int) -> Any:
        @flow.global_function()
        def job(x: tp.Numpy.Placeholder((16,))) -> tp.Numpy:
            with gpus("0:0"):
                x = flow.math.sigmoid(x)
                for _ in range(rounds):
                    x = 3.9 * x * (1.0 - x)
            return x

        return job

    def of(job: Any) -> float:
        oracle = Oracle.of(job, 4, 0, None)
        feeds = [draw_feeds(oracle.graph, oracle.inputs, oracle.rng)]
        return moved(oracle.observed, oracle.values, feeds, job.compile().physical.graph.results)

    with emulated(4):
        assert 0 < of(steps(0)) < 1e-6
        assert 1e-4 < of(steps(30)) <= 1


class Liar:
    """A kernel whose rows depend on how many there are, though it says that they do not."""

    FLOW_PLUGIN_API = "1.0"

    @staticmethod
    def flow_register_kernels() -> list[KernelSpec]:
        def bind(ctx: BindContext) -> Callable[[], None]:
            (x,), (y,) = ctx.inputs, ctx.outputs
            more = np.float32(1 + 1e-6 * len(x))

            def launch() -> None:
                np.maximum(x, 0, out=y)
                np.multiply(y, more, out=y)

            return launch

        return [KernelSpec("relu", "cpu", bind, None, 5, None, "liar", lambda *_: True)]


@pytest.mark.slow
def test_rows_of_several_devices_that_are_other_bits_are_told() -> None:
    with emulated(4, None, Liar(), RowByRow()):
        found = verify(make_job("0:0-3", rule="sgd"))
    assert not found.as_planned
    assert not found.ok
    with emulated(4, None, RowByRow()):
        assert verify(make_job("0:0-3", rule="sgd")).as_planned
