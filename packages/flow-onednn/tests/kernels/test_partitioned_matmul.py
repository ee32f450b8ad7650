"""Matrix products partitioned over threads, against numpy in float64."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.dtypes import float32
from flow_core.base.thread_pools import process_budget, set_budget
from flow_core.ir.graph import Attrs, tensor_type
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import BindContext, KernelQuery
from flow_onednn import threads
from flow_onednn.kernels import matmul, partitioned_matmul
from flow_onednn.kernels.partitioned_matmul import PartitionedMatmul, build
from flow_onednn.library import Library, state
from flow_onednn.native import compiler
from flow_onednn.recipes import problem

SUM, COLUMNS = (33, 1031, 257), (9, 300, 1037)


@pytest.fixture(autouse=True)
def _needs_threads_of_ours(onednn: None) -> None:
    found = state()
    if not (isinstance(found, Library) and found.shares_pool and compiler.available()):
        pytest.skip("the library's threads are not ours")


@contextlib.contextmanager
def pool_of(count: int) -> Iterator[None]:
    """Set the pool size for kernels looked up, bound and run in the context."""
    pool, before = threads.runtime(), threads.count()
    pool.omp_set_num_threads(count)
    try:
        yield
    finally:
        pool.omp_set_num_threads(before)


def query_of(
    sizes: tuple[int, int, int], transpose: bool, bias: bool, **how: Any
) -> tuple[KernelQuery, list[Any]]:
    m, k, n = sizes
    rng = np.random.default_rng(k)
    shapes = ((m, k), (n, k) if transpose else (k, n), *(((n,),) if bias else ()))
    arrays = [rng.normal(0, 1, shape).astype(np.float32) for shape in shapes]
    attrs = {"transpose_a": False, "transpose_b": transpose, "alpha": 1.0, "activation": "", **how}
    types = tuple(tensor_type(x.shape, float32) for x in arrays)
    return KernelQuery(
        "onednn_matmul", Attrs(attrs), types, (tensor_type((m, n), float32),)
    ), arrays


def run(made: Any, query: KernelQuery, arrays: list[Any]) -> Any:
    out = np.full(query.outputs[0].shape, np.nan, np.float32)
    workspace = np.full(made.workspace + 64, 0xFF, np.uint8)
    workspace = workspace[-workspace.ctypes.data % 64 :][: made.workspace]
    launches = made.bind(BindContext(query, tuple(arrays), (out,), workspace))
    for _ in range(2):  # the sum does not include previous contents
        for launch in launches:
            launch()
    return out


DEEP = (48, partitioned_matmul.MIN_DEPTH + 40, 24)


@pytest.mark.representative(
    r"\[(sizes0-False-False-how0-1|sizes6-True-True-how6-3)\]",
    "one thread without extras, and an uneven split with all of them",
)
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(
    ("sizes", "transpose", "bias", "how"),
    [
        (SUM, False, False, {}),
        (SUM, False, True, {"activation": "relu"}),
        (DEEP, False, True, {}),
        (DEEP, True, True, {"activation": "relu"}),
        (COLUMNS, True, False, {"alpha": 0.5}),
        (COLUMNS, True, True, {"activation": "relu"}),
        (COLUMNS, True, True, {"activation": "gelu"}),
    ],
)
def test_parts_compose_the_product(
    sizes: Any, transpose: bool, bias: bool, how: Any, count: int
) -> None:
    """The parts, and thus the bits, are the same for any number of threads."""
    query, arrays = query_of(sizes, transpose, bias, **how)
    reference = default_registry().ops["onednn_matmul"].reference
    assert reference is not None
    want = reference(*(x.astype(float) for x in arrays), **query.attrs)
    with pool_of(count):
        made = build(problem(query))
        assert isinstance(made, PartitionedMatmul)
        assert len(made.parts) == 4
        np.testing.assert_allclose(run(made, query, arrays), want, 1e-4, 1e-4)


@pytest.mark.parametrize(
    ("sizes", "transpose", "how"),
    [
        ((partitioned_matmul.MAX_ROWS + 1, 2048, 300), False, {}),
        ((400, 700, 300), False, {}),
        ((33, 500, 600), False, {}),
        ((33, 1031, 100), False, {}),
        ((33, 1031, 257), False, {"alpha": 0.5}),
        ((33, 1031, 257), False, {"activation": "gelu"}),
        ((200, 600, 2000), False, {}),
        ((100, 300, 1037), True, {}),
        ((9, 1031, 1037), True, {}),
    ],
)
def test_other_products_are_partitioned_by_the_library(
    sizes: Any, transpose: bool, how: Any
) -> None:
    query, _ = query_of(sizes, transpose, False, **how)
    with pool_of(2):
        made = build(problem(query))
    assert made is not None
    assert not isinstance(made, PartitionedMatmul)


SKINNY = [
    ((4, 2048, 32), "a"),
    ((2, 64, 30_000), "b"),
    ((64, 2048, 48), "a"),
    ((300, 3000, 40), ""),
]


@pytest.mark.parametrize(("sizes", "transposed"), SKINNY)
def test_primitives_have_the_bits_of_one_thread(
    sizes: tuple[int, int, int], transposed: str
) -> None:
    """The library divides sums if it has fewer results than threads."""
    query, arrays = query_of(sizes, transposed == "b", False)
    if transposed == "a":
        arrays[0] = np.ascontiguousarray(arrays[0].T)
        types = tuple(tensor_type(x.shape, float32) for x in arrays)
        attrs = Attrs({**query.attrs, "transpose_a": True})
        query = KernelQuery("onednn_matmul", attrs, types, query.outputs)
    found = set()
    for count in (1, 2, 3, 4, 16):
        with pool_of(count):
            made = matmul.build(problem(query))
            found.add(run(made, query, arrays).tobytes())
    assert len(found) == 1


def test_pool_of_one_thread_can_grow_again() -> None:
    before = threads.count()
    with threads.single_threaded():
        assert threads.count() == 1
    assert threads.count() == before


def test_library_without_openmp_does_not_use_the_pool() -> None:
    assert not threads.uses_pool("libm.so.6")
    assert not threads.uses_pool("there is no such library.so")


def losses() -> list[float]:
    """Return the losses of a perceptron whose two products are partitioned over two threads."""
    flow.clear_default_session()

    def dense(name: str, x: Any, inputs: int, outputs: int) -> Any:
        draw = flow.random_normal_initializer(stddev=0.05)
        return flow.matmul(x, flow.get_variable(name, (inputs, outputs), initializer=draw))

    @flow.global_function(type="train")
    def job(
        x: tp.Numpy.Placeholder((32, 784)),  # type: ignore[valid-type]
        y: tp.Numpy.Placeholder((32,), dtype=flow.int32),  # type: ignore[valid-type]
    ) -> tp.Numpy:
        h = flow.nn.relu(dense("a", x, 784, 640))
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, dense("b", h, 640, 300))
        rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
        flow.optimizer.SGD(rate, momentum=0).minimize(loss)
        return loss

    rng = np.random.default_rng(0)
    x, y = rng.uniform(-0.5, 0.5, (32, 784)), rng.integers(0, 300, 32)
    return [float(job(x.astype(np.float32), y.astype(np.int32)).mean()) for _ in range(3)]


def test_two_threads_train_like_one(monkeypatch: pytest.MonkeyPatch) -> None:
    before = process_budget()
    monkeypatch.setenv("ONEFLOW_CPU_THREADS", "1")
    one = losses()
    monkeypatch.setenv("ONEFLOW_CPU_THREADS", "2")
    assert losses() == one, "the order of the sums is fixed"
    set_budget(before)
    assert one[-1] < 0.95 * one[0]
