"""Small gradient all-reduces are bucketed, start early and have the same bits."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_core.base.dtypes import float32
from flow_core.comm.exchange import BOXING
from flow_core.ir.graph import Attrs, Graph, GraphBuilder, Op, Value, tensor_type, verify
from flow_core.ops.data_movement.boxing import boxing_attrs
from flow_core.passes.base import PassContext
from flow_core.passes.bucket_all_reduces import BucketAllReduces
from flow_core.plugins.host import load_plugins
from flow_core.plugins.registry import Registry
from flow_core.sharding.topology import Placement
from flow_core.testing.interpret import evaluate

GPUS = Placement.parse("gpu", "0:0-1")
EACH = [Placement("gpu", (device,)) for device in GPUS.devices]


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_plugins()


def graph_of(sizes: list[int], reads: list[int], late: list[int]) -> Graph:
    """Build backward passes of layers: op i computes gradient i of ``sizes[i]`` elements on both

    devices. All-reduces come at the end, before their readers, except those in ``late``, read
    by ops of the next layer; layer i reads layer ``reads[i]`` before it.
    """
    b = GraphBuilder()

    def add(
        name: str, type_: str, inputs: tuple[Value, ...], n: int, rank: int, **attrs: Any
    ) -> Value:
        t = tensor_type((n,), float32)
        return b.add(Op(name, type_, inputs, Attrs(attrs), EACH[rank]), (t,)).output()

    def reduce(i: int, parts: list[Value]) -> list[Value]:
        shapes = ((sizes[i],),) * 2
        attrs = Attrs(boxing_attrs("all_reduce", "float32", shapes))
        types = tuple(tensor_type(s, float32) for s in shapes)
        op = b.add(Op(f"reduce{i}", BOXING, tuple(parts), attrs, GPUS), types)
        return [op.output(0), op.output(1)]

    def layer(i: int, rank: int) -> Value:
        x = add(f"x{i}@{rank}", "literal", (), sizes[i], rank, shape=(sizes[i],), dtype="float32",
                data=tuple(float(i + rank + k) for k in range(sizes[i])))  # fmt: skip
        return add(f"grad{i}@{rank}", "negative", (x,), sizes[i], rank)

    made: dict[int, list[Value]] = {}
    for i in range(len(sizes)):
        made[i] = [layer(i, rank) for rank in range(2)]
        if i in late:
            made[i] = reduce(i, made[i])
            for rank in range(2):
                add(f"use{i}@{rank}", "negative", (made[i][rank],), sizes[i], rank)
    for i in range(len(sizes)):
        if i not in late:
            made[i] = reduce(i, made[i])
    b.results = tuple(
        add(f"update{i}@{rank}", "negative", (made[i][rank],), sizes[i], rank)
        for i in range(len(sizes))
        for rank in range(2)
    )
    return b.build()


def bucketed(graph: Graph, registry: Registry, **options: Any) -> Graph:
    result = BucketAllReduces(**options).apply(graph, PassContext(registry.ops))
    verify(result)
    return result


def reduces(graph: Graph) -> Iterator[Op]:
    yield from graph.of_type(BOXING)


def test_bucket_follows_its_last_gradient(registry: Registry) -> None:
    graph = bucketed(graph_of([3, 4, 5], [], []), registry)
    (op,) = reduces(graph)
    assert op.attrs["members"] == ("reduce0", "reduce1", "reduce2")
    names = list(graph.ops)
    assert names.index(op.name) == names.index("grad2@1") + 1


def test_all_reduce_starts_as_soon_as_its_gradient_exists(registry: Registry) -> None:
    graph = bucketed(graph_of([3, 4, 5], [], []), registry, max_ops=1)
    names = list(graph.ops)
    for i in range(3):
        assert names.index(f"reduce{i}") == names.index(f"grad{i}@1") + 1


def test_bucket_size_is_limited(registry: Registry) -> None:
    megabytes = 4 * 8 / (1 << 20)
    graph = bucketed(graph_of([4, 4, 4, 9, 2], [], []), registry, threshold_mb=megabytes)
    assert [op.attrs["members"] for op in reduces(graph)] == [
        ("reduce0", "reduce1"), (), (), ()
    ]  # fmt: skip
    graph = bucketed(graph_of([1] * 5, [], []), registry, max_ops=2)
    assert [len(op.attrs["members"]) for op in reduces(graph)] == [2, 2, 0]


def test_reader_of_one_gradient_does_not_wait_for_the_bucket(registry: Registry) -> None:
    graph = bucketed(graph_of([3, 4, 5], [], [0, 1]), registry)
    names = list(graph.ops)
    assert names.index("reduce0") < names.index("use0@0") < names.index("grad1@0")
    assert len(list(reduces(graph))) == 3


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    late=st.lists(st.integers(0, 5), max_size=3),
    limit=st.integers(0, 80),
    most=st.integers(0, 4),
)
def test_results_have_the_same_bits(
    sizes: list[int], late: list[int], limit: int, most: int, registry: Registry
) -> None:
    graph = graph_of(sizes, [], late)
    joined = bucketed(graph, registry, threshold_mb=limit / (1 << 20), max_ops=most)
    before, after = (evaluate(g, registry.ops, {}) for g in (graph, joined))
    for a, b in zip(graph.results, joined.results, strict=True):
        np.testing.assert_array_equal(before[a], after[b])
    together = sum(max(1, len(op.attrs["members"])) for op in reduces(joined))
    assert together == len(sizes)
