"""Loops and branches on device types without a kernel for them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import plain_device
import pytest

from flow_core.base.dtypes import as_dtype
from flow_core.ir.graph import Attrs, GraphBuilder, Op, tensor_type
from flow_core.ir.text import parse_graph, print_graph
from flow_core.passes.control.inline_bodies import InlineBodies
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import Sample
from flow_core.sharding.topology import Placement
from flow_core.testing.checks import as_tuple, query
from flow_core.testing.interpret import evaluate

TYPES = ("scan", "cond")
WITHOUT = (*plain_device.COMBINED, *TYPES, *(f"random_{type_}" for type_ in TYPES))
CASES = [
    pytest.param(type_, sample, id=f"{type_}-{i}")
    for type_ in TYPES
    for i, sample in enumerate(default_registry().ops[type_].samples(np.random.default_rng(0)))
]


def text_of(type_: str, sample: Sample, device: str = plain_device.TYPE) -> str:
    """Return a graph of one op as text."""
    place, builder, values = Placement.parse(device, "0:0"), GraphBuilder(), []
    for i, x in enumerate(sample.inputs):
        kind = tensor_type(x.shape, as_dtype(x.dtype))
        attrs = Attrs({"batch_axis": None, "dtype": kind.dtype.name, "shape": kind.shape})
        values.append(builder.add(Op(f"x{i}", "input", (), attrs, place), (kind,)).output())
    asked = query(default_registry().ops[type_], sample.inputs, sample.attrs)
    op = Op("op", type_, tuple(values), asked.attrs, place)
    builder.add(op, asked.outputs)
    builder.results = tuple(op.output(i) for i in range(len(asked.outputs)))
    return print_graph(builder.build())


@pytest.mark.parametrize(("type_", "sample"), CASES)
def test_the_ops_of_bodies_give_the_same_results(
    type_: str, sample: Sample, apply: Callable[..., str]
) -> None:
    kernels = plain_device.registry(WITHOUT)
    graph = parse_graph(apply(InlineBodies(), text_of(type_, sample), kernels))
    assert not graph.of_type(type_)
    found = evaluate(graph, kernels.ops, {f"x{i}": x for i, x in enumerate(sample.inputs)})
    attrs = {**kernels.ops[type_].attrs, **sample.attrs}
    expected = as_tuple(kernels.ops[type_].reference(*sample.inputs, **attrs))
    for value, wanted in zip(graph.results, expected, strict=True):
        np.testing.assert_array_equal(found[value], wanted)


def test_only_devices_without_a_kernel_lose_the_op(apply: Callable[..., str]) -> None:
    text = text_of("scan", CASES[0].values[1], "cpu")
    kernels = plain_device.registry(WITHOUT)
    assert apply(InlineBodies(), text, kernels) == f"\n{text}"
