"""Graphs and results with the pass."""

import numpy as np
from flow_square.passes import Square

import oneflow as flow
import oneflow.typing as tp
from flow_core.testing import assert_like_one_device


@flow.global_function()
def squares(x: tp.Numpy.Placeholder((6,)), y: tp.Numpy.Placeholder((6,))) -> tp.Numpy:
    return flow.math.reduce_sum(x * x + x * y)


@flow.global_function()
def alone(x: tp.Numpy.Placeholder((6,))) -> tp.Numpy:
    return x * x


def test_only_squares_are_replaced():
    traced = squares.compile().logical
    assert len(list(traced.of_type("broadcast_mul"))) == 2
    graph = Square().apply(traced, None)
    assert len(list(graph.of_type("broadcast_mul"))) == 1
    (square,) = graph.of_type("square")
    assert [value.op for value in square.inputs] == ["Input_x"]
    assert graph.lines[square.name].file == __file__


def test_jobs_run_it():
    assert [op.type for op in alone.compile().graph.ops.values()] == ["input", "square"]


def test_results_are_bit_identical():
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=6).astype(np.float32) for _ in range(2))
    np.testing.assert_array_equal(squares(x, y), np.add.reduce(x * x + x * y))


def test_all_ops_agree_with_a_plan_without_passes():
    assert_like_one_device(squares, devices=2)
