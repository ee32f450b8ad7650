"""Padding of convolutions and pools: by name, by number, and per axis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import FlowError

untyped: Any = flow
IMAGES = tp.Numpy.Placeholder((1, 3, 8, 8))


@pytest.mark.parametrize("same", [1, [1, 1], [(1, 1), (1, 1)], np.int64(1)])
@pytest.mark.parametrize("data_format", ["NCHW", "NHWC"])
def test_padding_of_spatial_axes(same: Any, data_format: str) -> None:
    whole = [(0, 0), (0, 0), (1, 1), (1, 1)]
    if data_format == "NHWC":
        whole = [(0, 0), (1, 1), (1, 1), (0, 0)]

    @flow.global_function()
    def job(x: IMAGES) -> tp.Tuple[tp.Numpy, tp.Numpy, tp.Numpy, tp.Numpy]:  # type: ignore[valid-type]
        pools = [flow.nn.max_pool2d(x, 3, 2, p, data_format=data_format) for p in (same, whole)]
        made = {"kernel_initializer": flow.ones_initializer(), "data_format": data_format}
        layers = [
            flow.layers.conv2d(x, 2, 3, padding=p, name=f"conv{i}", **made)
            for i, p in enumerate((same, whole))
        ]
        return pools[0], pools[1], layers[0], layers[1]

    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    one, other, first, second = job(x)
    assert np.array_equal(one, other)
    assert np.array_equal(first, second)


def test_the_two_axes_have_paddings_of_their_own() -> None:
    @flow.global_function()
    def job(x: IMAGES) -> tp.Numpy:  # type: ignore[valid-type]
        return untyped.layers.conv2d(x, 2, 3, padding=[(0, 1), 2])

    assert job(np.zeros((1, 3, 8, 8), np.float32)).shape == (1, 2, 7, 10)


@pytest.mark.parametrize("name", ["same", "SAME", "Valid"])
def test_padding_by_name_in_any_case(name: str) -> None:
    @flow.global_function()
    def job(x: IMAGES) -> tp.Numpy:  # type: ignore[valid-type]
        return untyped.layers.conv2d(x, 2, 3, padding=name)

    size = 8 if name.upper() == "SAME" else 6
    assert job(np.zeros((1, 3, 8, 8), np.float32)).shape == (1, 2, size, size)


@pytest.mark.parametrize("padding", [-1, 1.5, [1], [1, 2, 3], [(1, 2, 3), (1, 1)], ["a", "b"]])
def test_other_paddings_are_refused(padding: Any) -> None:
    @flow.global_function()
    def job(x: IMAGES) -> tp.Numpy:  # type: ignore[valid-type]
        return untyped.layers.conv2d(x, 2, 3, padding=padding)

    with pytest.raises(FlowError, match="2 numbers or pairs"):
        job(np.zeros((1, 3, 8, 8), np.float32))
