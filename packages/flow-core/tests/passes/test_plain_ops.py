"""Means and recurrent layers on device types without a kernel for them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import plain_device
import pytest

from flow_core.base.dtypes import as_dtype
from flow_core.ir.graph import Attrs, GraphBuilder, Op, tensor_type
from flow_core.ir.text import parse_graph, print_graph
from flow_core.passes.plain_ops import PlainMeans, UnrollRecurrent
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import Sample
from flow_core.sharding.sbp import S
from flow_core.sharding.topology import Placement
from flow_core.testing.checks import as_tuple, query
from flow_core.testing.interpret import evaluate

TYPES = ("lstm", "lstm_grad", "gru", "gru_grad")
CASES = [
    pytest.param(type_, sample, id=f"{type_}-{i}")
    for type_ in TYPES
    for i, sample in enumerate(default_registry().ops[type_].samples(np.random.default_rng(0)))
]


def layer(type_: str, sample: Sample) -> str:
    """Return a graph of one op whose results are split over the batch, as text."""
    plain, builder, values = Placement.parse("plain", "0:0-1"), GraphBuilder(), []
    for i, x in enumerate(sample.inputs):
        kind = tensor_type(x.shape, as_dtype(x.dtype))
        attrs = Attrs({"batch_axis": None, "dtype": kind.dtype.name, "shape": kind.shape})
        values.append(builder.add(Op(f"x{i}", "input", (), attrs, plain), (kind,)).output())
    asked = query(default_registry().ops[type_], sample.inputs, sample.attrs)
    hints = ((S(0),),) * len(asked.outputs)
    op = Op("layer", type_, tuple(values), asked.attrs, plain, hints)
    builder.add(op, asked.outputs)
    builder.results = tuple(op.output(i) for i in range(len(asked.outputs)))
    return print_graph(builder.build())


@pytest.mark.parametrize(("type_", "sample"), CASES)
def test_the_ops_of_all_positions_give_the_results_of_the_layer(
    type_: str, sample: Sample, apply: Callable[..., str]
) -> None:
    kernels = plain_device.registry((*plain_device.COMBINED, *TYPES))
    graph = parse_graph(apply(UnrollRecurrent(), layer(type_, sample), kernels))
    assert not graph.of_type(type_)
    found = evaluate(graph, kernels.ops, {f"x{i}": x for i, x in enumerate(sample.inputs)})
    expected = as_tuple(kernels.ops[type_].reference(*sample.inputs, **sample.attrs))
    for value, wanted in zip(graph.results, expected, strict=True):
        assert graph.ops[value.op].sbp == ((S(0),),)
        np.testing.assert_allclose(found[value], wanted, rtol=1e-12, atol=1e-12)


def test_a_layer_with_a_kernel_stays_whole(apply: Callable[..., str]) -> None:
    text = layer("lstm", CASES[0].values[1])
    assert apply(UnrollRecurrent(), text, plain_device.registry()) == f"\n{text}"


def test_a_mean_without_a_kernel_becomes_a_sum_in_float32(apply: Callable[..., str]) -> None:
    before = """
graph
x = input() : float16[4,2] @plain[0:0] {'batch_axis': 0, 'dtype': 'float16', 'shape': (4, 2)}
y = input() : float16[4,2] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float16', 'shape': (4, 2)}
mean = reduce_mean(x:0) : float16[2] @plain[0:0] {'axis': (0,), 'count': 0, 'keepdims': False}
kept = reduce_mean(y:0) : float16[2] @cpu[0:0] {'axis': (0,), 'count': 0, 'keepdims': False}
return mean:0, kept:0
effects
"""
    after = """
graph
x = input() : float16[4,2] @plain[0:0] {'batch_axis': 0, 'dtype': 'float16', 'shape': (4, 2)}
y = input() : float16[4,2] @cpu[0:0] {'batch_axis': 0, 'dtype': 'float16', 'shape': (4, 2)}
mean/cast = cast(x:0) : float32[4,2] @plain[0:0] {'dtype': 'float32'}
mean/reduce_sum = reduce_sum(mean/cast:0) : float32[2] @plain[0:0] {'axis': (0,), 'keepdims': False}
mean/scalar_mul = scalar_mul(mean/reduce_sum:0) : float32[2] @plain[0:0] {'operand': 0.25}
mean = cast(mean/scalar_mul:0) : float16[2] @plain[0:0] {'dtype': 'float16'}
kept = reduce_mean(y:0) : float16[2] @cpu[0:0] {'axis': (0,), 'count': 0, 'keepdims': False}
return mean:0, kept:0
effects
"""
    kernels = plain_device.registry((*plain_device.COMBINED, "reduce_mean"))
    assert apply(PlainMeans(), before, kernels) == after
