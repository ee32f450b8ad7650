"""Softmax and the losses beyond the kernel kit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flow_core.base.errors import DataError
from flow_core.builtin.numpy_kernels.nn.softmax import KERNELS
from flow_core.ops.nn.softmax import OPS
from flow_core.testing.checks import query, run_kernel

SPECS = {spec.type: spec for spec in OPS}
BY_OP = {kernel.op: kernel for kernel in KERNELS}


def run(op: str, *arrays: Any, **attrs: Any) -> tuple[Any, ...]:
    return run_kernel(BY_OP[op], query(SPECS[op], arrays, attrs), arrays)


SPARSE = [op for op in SPECS if op.startswith("sparse")]


@pytest.mark.parametrize("op", SPARSE)
@pytest.mark.parametrize(
    ("dtype", "bad"), [("int32", 3), ("int64", -1), ("int8", -1), ("uint8", 3)]
)
def test_labels_outside_the_classes_are_rejected(op: str, dtype: str, bad: int) -> None:
    arrays = [np.full((4, 3), 1 / 3, np.float32), np.array([0, 2, bad, 1], dtype)]
    if op.endswith("_grad"):
        arrays.append(np.ones(4, np.float32))
    with pytest.raises(DataError, match=rf"{op}\n.*1 of 4 labels.*such as {bad}\n.*label < 3"):
        run(op, *arrays, depth=3)


def test_negative_int8_labels_are_rejected_with_many_classes() -> None:
    with pytest.raises(DataError, match="such as -1"):
        run("sparse_cross_entropy", np.ones((1, 300)), np.array([-1], np.int8), depth=300)


def test_large_logits_neither_overflow_nor_underflow() -> None:
    x = np.array([[1e4, 0.0, -1e4]], np.float32)
    prob, loss = run("sparse_softmax_cross_entropy", x, np.array([1], np.int32), depth=3)
    np.testing.assert_array_equal(prob, [[1, 0, 0]])
    np.testing.assert_array_equal(loss, [1e4])
    np.testing.assert_array_equal(run("log_softmax", x)[0], [[0, -1e4, -2e4]])


def test_masked_classes_with_label_zero_have_no_loss() -> None:
    x = np.array([[0.0, 0.0, -np.inf]], np.float32)
    _, loss = run("softmax_cross_entropy", x, np.array([[0.5, 0.5, 0.0]], np.float32))
    np.testing.assert_allclose(loss, np.log(2), rtol=1e-6)


def test_gradient_of_a_label_that_is_not_a_distribution() -> None:
    prob, dy = np.array([[0.25, 0.75]]), np.ones(1)
    (found,) = run("softmax_cross_entropy_grad", prob, np.array([[0.5, 1.0]]), dy)
    np.testing.assert_array_equal(found, [[-0.25, -0.25]])  # as in OneFlow and TensorFlow
