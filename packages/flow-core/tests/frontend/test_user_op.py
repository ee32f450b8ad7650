"""Generic ops by type, and the rest of OneFlow's user-op API."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
from flow_core.base.errors import GraphError

X = flow.FixedTensorDef((2, 3))
LABEL = flow.FixedTensorDef((2,), dtype=flow.int32)
ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


def run(function: Any) -> Any:
    """Run a job of one parameter on `ARRAY` and return its result."""

    @flow.global_function()
    def job(x: X):  # type: ignore[no-untyped-def, valid-type]
        return function(x)

    result = job(ARRAY).get()
    return [r.numpy() for r in result] if isinstance(result, list | tuple) else result.numpy()


def built(x: Any, op_type: str, inputs: dict[str, Any], outputs: Any, **attrs: Any) -> Any:
    builder = flow.user_op_builder("mine").Op(op_type)
    for name, blobs in inputs.items():
        builder.Input(name, blobs)
    for name, count in outputs.items():
        builder.Output(name, count)
    for name, value in attrs.items():
        builder.Attr(name, value)
    return builder.Build().InferAndTryRun()


def test_an_op_by_its_type() -> None:
    def double(x: Any) -> Any:
        op = built(x, "cast", {"in": [x]}, {"out": 1}, dtype=flow.float64)
        assert op.SoleOutputBlob().name == "mine"
        return op.SoleOutputBlob()

    result = run(double)
    assert result.dtype == np.float64
    np.testing.assert_array_equal(result, ARRAY)


def test_inputs_are_bound_by_name_and_outputs_in_declared_order() -> None:
    def likes(x: Any) -> Any:
        parts = [x, x]
        op = built(
            x, "split_like", {"like": parts, "in": [flow.concat(parts, 0)]}, {"out": 2}, axis=0
        )
        assert list(op.RemoteBlobDict()) == ["out"]
        return op.RemoteBlobList()

    first, second = run(likes)
    np.testing.assert_array_equal(first, ARRAY)
    np.testing.assert_array_equal(second, ARRAY)


@pytest.mark.parametrize(
    ("inputs", "outputs", "found"),
    [
        ({"x": []}, {"y": 1}, "0 blobs for input 'x'"),
        ({"in": []}, {"y": 1}, "inputs ['in']"),
        ({}, {"y": 1}, "0 blobs for input 'x'"),
        ({"x": None}, {"y": 1}, "a list or tuple of blobs"),
    ],
)
def test_mistakes_are_reported(inputs: Any, outputs: Any, found: str) -> None:
    with pytest.raises(GraphError) as raised:
        run(lambda x: built(x, "square_sum", inputs, outputs))
    assert found in str(raised.value)
    assert __file__ in str(raised.value)


def test_unknown_type_and_unknown_output_are_rejected() -> None:
    with pytest.raises(GraphError, match=r"did you mean .*square_sum"):
        run(lambda x: built(x, "square_sums", {"x": [x]}, {"y": 1}))
    with pytest.raises(GraphError, match="outputs"):
        run(lambda x: built(x, "square_sum", {"x": [x]}, {"z": 1}))
    with pytest.raises(GraphError, match="2 blobs requested of output"):
        run(lambda x: built(x, "square_sum", {"x": [x]}, {"y": 2}))


class Add(flow.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.builder = flow.consistent_user_op_module_builder("add_n")
        self.builder.InputSize("in", 2).Output("out")
        self.builder.user_op_module.InitOpKernel()

    def forward(self, *args: Any) -> Any:
        self.builder.OpName(f"Add_{self.call_seq_no}").Input("in", list(args))
        return self.builder.Build().InferAndTryRun().SoleOutputBlob()


def test_module_builds_ops_in_sequence() -> None:
    def twice(x: Any) -> Any:
        add = flow.find_or_create_module("add", Add)
        assert flow.find_or_create_module("add", Add, reuse=True) is add
        y = add(x, x)
        z = add(y, x)
        assert (y.name, z.name) == ("Add_0", "Add_1")
        return z

    np.testing.assert_array_equal(run(twice), 3 * ARRAY)
    with pytest.raises(GraphError, match="making module 'add'"):
        run(lambda x: [flow.find_or_create_module("add", Add)(x, x) for _ in range(2)])


def test_assigned_value_persists_between_steps() -> None:
    @flow.global_function()
    def job(x: X):  # type: ignore[no-untyped-def, valid-type]
        total = flow.get_variable("total", (2, 3), initializer=flow.zeros_initializer())
        following = total + x
        flow.assign(total, following)
        return following

    for step in (1, 2, 3):
        np.testing.assert_array_equal(job(ARRAY).get().numpy(), step * ARRAY)


def test_counts_of_nonfinite_values() -> None:
    def counts(x: Any) -> Any:
        odd = flow.math.reciprocal(x * flow.math.relu(x - 1))
        return flow.count_not_finite(odd), flow.multi_count_not_finite([odd, x, odd])

    one, many = run(counts)
    assert (one.tolist(), many.tolist()) == ([2], [4])
    assert one.dtype == many.dtype == np.int64


def test_margin_applies_to_the_label_only() -> None:
    labels = np.array([2, 0], np.int32)
    cosines = np.array([[0.5, 1.0, -0.3], [0.8, -1.0, 0.1]], np.float32)
    seen: list[Any] = []

    @flow.global_function(type="train")
    def job(x: X, label: LABEL):  # type: ignore[no-untyped-def, valid-type]
        x = x + flow.get_variable("zero", (2, 3), initializer=flow.zeros_initializer())
        flow.watch_diff(x, seen.append)
        y = flow.combined_margin_loss(x, label, 1.35, 0.5, 0.1)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.0])).minimize(y)
        return y

    angles = np.arccos(cosines[[0, 1], labels])
    expected, slope = cosines.copy(), np.ones_like(cosines)
    expected[[0, 1], labels] = np.cos(1.35 * angles + 0.5) - 0.1
    slope[[0, 1], labels] = 1.35 * np.sin(1.35 * angles + 0.5) / np.sin(angles)
    np.testing.assert_allclose(job(cosines, labels).get().numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(seen[0].numpy(), slope, rtol=1e-4)
