"""Residual blocks: the last normalization, the addition and relu are one op."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp

pytestmark = pytest.mark.usefixtures("onednn")

SHAPE = (4, 3, 7, 5)


def branch(x: Any, name: str, filters: int) -> Any:
    draw = flow.random_normal_initializer(stddev=0.3)
    x = flow.layers.conv2d(x, filters, 1, kernel_initializer=draw, use_bias=False, name=name)
    return flow.layers.batch_normalization(x, axis=1, name=f"{name}_bn")


def trained(
    sum_is_read: bool, projected: bool, mixed: bool = False
) -> tuple[list[float], Any, list[str]]:
    """Return losses, statistics and the plan's ops; a sum with other readers is not joined."""
    flow.clear_default_session()
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(mixed)

    @flow.global_function(type="train", function_config=config)
    def job(
        x: tp.Numpy.Placeholder(SHAPE),  # type: ignore[valid-type]
    ) -> tuple[tp.Numpy, tp.Numpy]:
        added = branch(x, "a", 3) + (branch(x, "b", 3) if projected else x)
        y = flow.nn.relu(added)
        draw = flow.random_normal_initializer(stddev=0.3)
        y = flow.layers.conv2d(y, 2, 1, kernel_initializer=draw, name="head") if mixed else y
        loss = flow.math.reduce_mean(flow.math.square(y - 0.5))
        rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
        flow.optimizer.SGD(rate, momentum=0).minimize(loss)
        return loss, added if sum_is_read else y

    x = np.random.default_rng(0).normal(0.5, 2, SHAPE).astype(np.float32)
    losses = [float(job(x)[0].item()) for _ in range(3)]
    moving = flow.get_all_variables()["a_bn-moving_variance"].numpy()
    return losses, moving, [task.type for task in job.plan().tasks]


@pytest.mark.slow
@pytest.mark.parametrize("projected", [False, True])
def test_joined_and_separate_ops_train_identically(projected: bool) -> None:
    apart, moving_apart, types = trained(True, projected)
    assert "onednn_norm_add_relu" not in types
    joined, moving, types = trained(False, projected)
    assert types.count("onednn_norm_add_relu") == 1
    np.testing.assert_allclose(joined, apart, 1e-5)
    np.testing.assert_allclose(moving, moving_apart, 1e-5)


@pytest.mark.slow
def test_joined_ops_in_bfloat16_train_like_separate_ones() -> None:
    """The separate ops round twice more; the head makes the sum an op between products."""
    apart, moving_apart, types = trained(True, True, mixed=True)
    assert "onednn_norm_add_relu" not in types
    joined, moving, types = trained(False, True, mixed=True)
    assert types.count("onednn_norm_add_relu") == 1
    np.testing.assert_allclose(joined, apart, 1e-2)
    np.testing.assert_allclose(moving, moving_apart, 1e-2)
