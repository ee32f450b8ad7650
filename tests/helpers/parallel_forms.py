"""What the tests of parallel training share: small networks, and jobs that train them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.config import Settings
from flow_core.frontend.session import session as sessions
from flow_core.plugins.batchable import rowwise_in_first
from flow_core.plugins.host import load_plugins
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec

BATCH = 24
INIT = flow.random_normal_initializer(stddev=0.3)


@contextmanager
def emulated(
    count: int = 4,
    threads: int | None = None,
    *plugins: Any,
    memory: int | None = None,
    plan_cache: int = 0,
    without: tuple[str, ...] = ("flow-onednn",),
) -> Iterator[None]:
    """A default session with emulated devices, for the length of a ``with`` block.

    It is without the passes of oneDNN, which put other ops in the place of those that tests name.
    """
    flow.clear_default_session()
    settings = Settings(
        emulate_gpus=count,
        emulate_gpu_memory=memory,
        plan_cache=plan_cache,
        stream_threads=threads,
        disabled_plugins=without,
    )
    sessions._default[:] = [sessions.Session(load_plugins(settings, plugins), settings)]
    try:
        yield
    finally:
        flow.clear_default_session()
        sessions._default.clear()  # later tests have all plugins
        sessions._default.clear()


class RowByRow:
    """Matrix products of one row at a time: equal bits however many rows, on every processor.

    Whether a BLAS rounds rows alike depends on the processor, and so does which products of numpy
    are made for all devices at once.
    """

    FLOW_PLUGIN_API = "1.0"

    @staticmethod
    def flow_register_kernels() -> list[KernelSpec]:
        def accepts(query: KernelQuery) -> bool:
            return not query.attrs["transpose_a"] and query.attrs["alpha"] == 1

        def bind(ctx: BindContext) -> Callable[[], None]:
            (a, b), (out,) = ctx.inputs, ctx.outputs
            right = b.T if ctx.attrs["transpose_b"] else b

            def launch() -> None:
                for i in range(len(a)):
                    np.matmul(a[i : i + 1], right, out=out[i : i + 1])

            return launch

        return [KernelSpec("matmul", "cpu", bind, accepts, 5, None, "row by row", rowwise_in_first)]


def dense(x: Any, units: int, name: str, **hint: Any) -> Any:
    return flow.layers.dense(x, units, kernel_initializer=INIT, name=name, **hint)


def mlp(x: Any, **hint: Any) -> Any:
    """A perceptron with 12 inputs and 5 outputs."""
    h = flow.nn.relu(dense(x, 16, "h", **hint))
    return dense(h, 5, "o")


def batches(steps: int = 4, batch: int = BATCH) -> list[tuple[Any, Any]]:
    rng = np.random.RandomState(0)
    return [
        (rng.rand(batch, 12).astype("f4"), rng.randint(0, 5, batch).astype("i4"))
        for _ in range(steps)
    ]


def optimizer(kind: str) -> Any:
    rate = flow.optimizer.PiecewiseConstantScheduler([], [0.05])
    make = {
        "sgd": lambda: flow.optimizer.SGD(rate, momentum=0),
        "momentum": lambda: flow.optimizer.SGD(rate, momentum=0.9),
        "adam": lambda: flow.optimizer.Adam(rate, do_bias_correction=True),
        "lamb": lambda: flow.optimizer.LAMB(rate),
        "clipped": lambda: flow.optimizer.SGD(
            rate, momentum=0.9, grad_clipping=flow.optimizer.grad_clipping.by_global_norm(0.1)
        ),
    }
    return make[kind]()


def make_job(
    devices: str,
    body: Callable[[Any], Any] = mlp,
    rule: str = "momentum",
    config: Any = None,
    hierarchy: tuple[int, ...] | None = None,
    batch: int = BATCH,
) -> Any:
    """A train job of a network on some devices, which gives the loss per sample."""

    @flow.global_function(type="train", function_config=config)
    def job(
        x: tp.Numpy.Placeholder((batch, 12)), y: tp.Numpy.Placeholder((batch,), dtype=flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement("gpu", devices, hierarchy):
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, body(x))
            optimizer(rule).minimize(flow.math.reduce_mean(loss))
        return loss

    return job


def train(job: Any, steps: int = 4, batch: int = BATCH) -> tuple[Any, dict[str, Any]]:
    """The losses of some steps, and all variables after them."""
    losses = np.array([job(*feeds) for feeds in batches(steps, batch)])
    session = sessions.default_session()
    return losses, {name: stored.numpy() for name, stored in session.stored().items()}


def trained(*args: Any, steps: int = 4, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
    """`train` of a new job in a cleared session."""
    flow.clear_default_session()
    return train(make_job(*args, **kwargs), steps)


def assert_close(many: Any, one: Any) -> None:
    """Equal losses and variables, but for the order of additions."""
    np.testing.assert_allclose(many[0], one[0], rtol=3e-5, atol=3e-6)
    assert many[1].keys() == one[1].keys()
    for name, value in one[1].items():
        np.testing.assert_allclose(many[1][name], value, rtol=2e-4, atol=2e-5, err_msg=name)


def assert_same(again: Any, first: Any) -> None:
    """Equal losses and variables, bit for bit."""
    np.testing.assert_array_equal(again[0], first[0])
    assert again[1].keys() == first[1].keys()
    for name, value in first[1].items():
        np.testing.assert_array_equal(again[1][name], value, err_msg=name)
