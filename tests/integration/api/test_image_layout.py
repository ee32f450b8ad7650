"""``flow.layers.conv2d`` takes images in both layouts, and tells of the wrong one."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import LayoutWarning

IMAGES = np.random.default_rng(0).normal(size=(2, 8, 10, 3)).astype(np.float32)


def convolved(shape: tuple[int, ...], data_format: str) -> Any:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(shape)) -> tp.Numpy:
        ones = flow.ones_initializer()
        return flow.layers.conv2d(
            x, 4, 3, data_format=data_format, kernel_initializer=ones, name=data_format
        )

    return job


def test_both_layouts_give_the_same() -> None:
    last = convolved(IMAGES.shape, "NHWC")(IMAGES)
    first = convolved((2, 3, 8, 10), "NCHW")(np.ascontiguousarray(IMAGES.transpose(0, 3, 1, 2)))
    np.testing.assert_allclose(last.transpose(0, 3, 1, 2), first, rtol=1e-5, atol=1e-5)


def test_images_with_the_channels_last_are_noticed_at_the_user_s_line() -> None:
    with pytest.warns(LayoutWarning, match="NHWC") as caught:
        convolved(IMAGES.shape, "NCHW")(IMAGES)
    assert len(caught) == 1
    assert caught[0].filename == __file__


@pytest.mark.parametrize("shape", [(2, 3, 8, 10), (2, 64, 3, 3), (2, 3, 3, 3), (2, 16, 4, 3)])
def test_other_shapes_are_not_noticed(shape: tuple[int, ...]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convolved(shape, "NCHW")(np.zeros(shape, np.float32))
