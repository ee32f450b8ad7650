"""Passes create no op for which a device type has no kernel, unless the job asks for it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import plain_device
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import KernelNotFoundError
from flow_core.ir.graph import Graph
from flow_core.ops.training.summed_updates import SUMMED
from flow_core.plugins.specs import KernelQuery

WIDE = np.random.default_rng(0).normal(size=(8, 40)).astype(np.float32)
X = WIDE[:, :6]
Y = np.arange(8, dtype=np.int32) % 5
COMBINED = plain_device.COMBINED
ALIASES = ("reshape", "identity", "squeeze", "expand_dims", "parallel_cast", "flatten")


def losses(found: Any, device: str, ids: str) -> list[float]:
    with plain_device.session(found):
        job = plain_device.perceptron(device, ids)
        return [job(WIDE, Y).item() for _ in range(4)]


def task_types(job: Any) -> set[str]:
    return {task.type for task in job.compile().plan.tasks}


def graph_types(graph: Graph) -> set[str]:
    return {op.type for op in graph.ops.values()}


@pytest.mark.parametrize("ids", ["0:0", "0:0-1"])
def test_a_job_trains_on_single_kernels(ids: str) -> None:
    found = plain_device.registry((*COMBINED, *ALIASES))
    np.testing.assert_allclose(losses(found, "plain", ids), losses(found, "cpu", "0:0"), rtol=1e-5)


@pytest.mark.parametrize(
    ("without", "expected"),
    [
        ((), set(SUMMED.values())),
        (tuple(SUMMED.values()), {"matmul_onto"}),
        ((*SUMMED.values(), "matmul_onto"), {"matmul", "momentum_update"}),
    ],
)
def test_sums_in_place_use_the_kernels_that_exist(
    without: Collection[str], expected: set[str]
) -> None:
    with plain_device.session(plain_device.registry(without)):
        types = task_types(plain_device.perceptron("plain", "0:0-1"))
    assert expected & types
    assert not set(without) & types


def test_a_rejected_group_is_fused_in_parts() -> None:
    def accepts(query: KernelQuery) -> bool:
        members = [] if query.op != "fused" else [row[0] for row in query.attrs["body"]]
        return "exp" not in members

    def chain() -> Any:
        @flow.global_function()
        def job(x: tp.Numpy.Placeholder((8, 6))) -> tp.Numpy:
            with flow.scope.placement("plain", "0:0"):
                y = flow.math.tanh(flow.math.relu(x))
                y = flow.math.exp(y)
                return flow.math.sigmoid(flow.math.sqrt(y))

        return job

    with plain_device.session(plain_device.registry((), accepts)):
        job = chain()
        kinds = [task.type for task in job.compile().plan.tasks]
        expected = 1 / (1 + np.exp(-np.sqrt(np.exp(np.tanh(np.maximum(X, 0))))))
        np.testing.assert_allclose(job(X), expected, rtol=1e-6)
    assert [kind for kind in kinds if kind != "boxing"] == ["fused", "exp", "fused"]


@pytest.mark.parametrize("without", [(), ("literal",)])
def test_constants_are_folded_to_ops_with_a_kernel(without: Collection[str]) -> None:
    with plain_device.session(plain_device.registry(without)):

        @flow.global_function()
        def job(x: tp.Numpy.Placeholder((8, 6))) -> tp.Numpy:
            with flow.scope.placement("plain", "0:0"):
                row = flow.range(6, dtype=flow.float32)
                return x + row * 2.0

        types = graph_types(job.compile().optimized_logical)
        np.testing.assert_allclose(job(X), X + np.arange(6) * 2.0, rtol=1e-6)
    assert ("literal" in types) == (not without)


@pytest.mark.parametrize("without", [(), ("rsqrt",)])
def test_norms_stay_whole_without_kernels_of_their_parts(without: Collection[str]) -> None:
    def results(device: str, ids: str) -> tuple[set[str], Any]:
        @flow.global_function("train")
        def job(x: tp.Numpy.Placeholder((8, 6))) -> tp.Numpy:
            with flow.scope.placement(device, ids):
                y = flow.layers.batch_normalization(x, axis=1, name="norm")
                loss = flow.math.reduce_mean(flow.math.square(y - 0.3))
                rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
                flow.optimizer.SGD(rate, momentum=0).minimize(loss)
            return loss

        return graph_types(job.compile().optimized_logical), [job(X).item() for _ in range(3)]

    found = plain_device.registry((*COMBINED, *without))
    with plain_device.session(found):
        types, made = results("plain", "0:0-1")
    with plain_device.session(found):
        _, expected = results("cpu", "0:0")
    assert ("normalization" in types) == bool(without)
    np.testing.assert_allclose(made, expected, rtol=1e-5)


@pytest.mark.parametrize("without", [(), ("dim_gather",)])
def test_split_classes_are_gathered_without_kernels_of_the_parts(without: Collection[str]) -> None:
    def job() -> Any:
        @flow.global_function()
        def loss(
            x: tp.Numpy.Placeholder((8, 6)), y: tp.Numpy.Placeholder((8,), flow.int32)
        ) -> tp.Numpy:
            with flow.scope.placement("plain", "0:0-1"):
                split = flow.math.tanh(x).with_distribute(flow.distribute.split(1))
                return flow.nn.sparse_softmax_cross_entropy_with_logits(y, split)

        return loss

    with plain_device.session(plain_device.registry((*COMBINED, *without))):
        made = job()
        types = graph_types(made.compile().optimized_logical)
        logits = np.tanh(X)
        expected = np.log(np.exp(logits).sum(1)) - logits[np.arange(8), Y]
        np.testing.assert_allclose(made(X, Y), expected, rtol=1e-5)
    assert ("sparse_softmax_cross_entropy" in types) == bool(without)


def half(accepts: Callable[[KernelQuery], bool]) -> tuple[Any, Any]:
    config = flow.function_config()
    config.enable_auto_mixed_precision(True)
    found = plain_device.registry(COMBINED, accepts)
    return found, lambda: plain_device.perceptron("plain", "0:0", config)


def halves(query: KernelQuery) -> bool:
    return any(dtype.name in ("float16", "bfloat16") for dtype in query.dtypes)


KINDS = ("matmul", "tanh", "relu")


def test_mixed_precision_keeps_ops_without_a_half_kernel_wide() -> None:
    found, define = half(lambda q: q.op not in ("tanh", "tanh_grad", "relu") or not halves(q))
    with plain_device.session(found):
        job = define()
        graph = job.compile().graph
        assert np.isfinite(job(WIDE, Y))
    of = {type_: graph.types[graph.of_type(type_)[0].name][0].dtype.name for type_ in KINDS}
    assert of == {"matmul": "float16", "tanh": "float32", "relu": "float32"}


def test_mixed_precision_needs_half_products() -> None:
    found, define = half(lambda q: q.op != "matmul" or not halves(q))
    with plain_device.session(found):
        job = define()
        with pytest.raises(KernelNotFoundError, match="float16"):
            job.compile()


@pytest.mark.parametrize("dtype", [flow.float, flow.float16])
def test_means_without_a_kernel_are_sums(dtype: Any) -> None:
    x = np.random.default_rng(0).uniform(90, 110, (4, 2000)).astype(np.float32)
    with plain_device.session(plain_device.registry((*COMBINED, "reduce_mean"))):

        @flow.global_function()
        def job(x: tp.Numpy.Placeholder(x.shape)) -> tp.Numpy:
            with flow.scope.placement("plain", "0:0-1"):
                mean = flow.math.reduce_mean(flow.cast(x, dtype), axis=1)
                return flow.cast(mean, flow.float)

        np.testing.assert_allclose(job(x), x.mean(1), rtol=2e-3)
        assert "reduce_mean" not in task_types(job)
