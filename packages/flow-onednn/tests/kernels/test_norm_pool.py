"""Ops with outputs in the library's layout, forward and backward together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flow_core.base.dtypes import float32, uint8
from flow_core.ir.graph import Attrs, TensorType, tensor_type
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import KernelQuery
from flow_core.testing.checks import run_kernel
from flow_onednn.kernels.norm import mask_bytes
from flow_onednn.kernels.pool import places_bytes
from flow_onednn.recipes import Problem

pytestmark = pytest.mark.usefixtures("onednn")


def run(op: str, attrs: dict[str, Any], arrays: list[Any], outputs: list[TensorType]) -> Any:
    """Launch our kernel of an op once."""
    types = tuple(tensor_type(a.shape, uint8 if a.dtype == np.uint8 else float32) for a in arrays)
    query = KernelQuery(op, Attrs(attrs), types, tuple(outputs))
    kernel = default_registry().find_kernel(query, "cpu")
    assert kernel.name in (f"onednn.{op}", f"c.{op}")
    return run_kernel(kernel, query, arrays)


def reference(op: str) -> Callable[..., Any]:
    found = default_registry().ops[op].reference
    assert found is not None
    return found


def random(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


POOLS = [
    ((2, 8, 8, 3), (2, 2), (2, 2), "valid", None),
    ((3, 7, 9, 16), (3, 3), (2, 2), "same", None),
    ((1, 11, 6, 5), (3, 2), (1, 2), "customized", ((1, 0), (1, 0))),
]


def with_special_values(x: Any) -> Any:
    """Return x with NaN, infinities and zeros among its elements and a first image of -inf."""
    rng = np.random.default_rng(8)
    values = np.float32([np.nan, -np.nan, np.inf, -np.inf, 0, -0.0])
    x = np.where(rng.random(x.shape) < 0.2, rng.choice(values, x.shape), x)
    x[0] = -np.inf
    return x.astype(np.float32)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(("shape", "size", "strides", "padding", "edges"), POOLS)
def test_max_pooling_with_indices(
    shape: Any, size: Any, strides: Any, padding: str, edges: Any, special: bool
) -> None:
    before, after = edges or (None, None)
    attrs = {
        "padding": padding, "padding_before": before, "padding_after": after,
        "pool_size": size, "strides": strides, "ceil_mode": False,
        "data_format": "channels_last",
    }  # fmt: skip
    x = with_special_values(random(1, *shape)) if special else random(1, *shape)
    wanted = reference("max_pool_2d")(x, **attrs)
    count = places_bytes(attrs, x.shape, wanted.shape)
    assert count is not None
    types = [tensor_type(wanted.shape, float32), tensor_type((count,), uint8)]
    y, places = run(
        "onednn_max_pool", {**attrs, "space": wanted.shape[1:3], "places": count}, [x], types
    )
    np.testing.assert_array_equal(y, wanted)
    dy = random(2, *wanted.shape)
    back = {**attrs, "space": x.shape[1:3]}
    (dx,) = run("onednn_max_pool_grad", back, [dy, places], [tensor_type(x.shape, float32)])
    expected = reference("max_pool_2d_grad")(x, wanted, dy, **attrs)
    np.testing.assert_allclose(dx, expected, 1e-6, 1e-6)


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", [0, 3, 4])
def test_batch_normalization_with_relu_propagates_nan(which: int, value: float) -> None:
    x = random(3, 4, 5, 3, 16)
    arrays = [x, *(np.ones(16, np.float32) for _ in range(4))]
    arrays[which].reshape(-1)[5] = value
    vector, image = tensor_type((16,), float32), tensor_type(x.shape, float32)
    attrs: dict[str, Any] = {"epsilon": 1e-3, "momentum": 0.9}
    size = mask_bytes(Problem("onednn_norm_relu", (image,), (image,), tuple(attrs.items())))
    assert size is not None
    outputs = [image, vector, vector, tensor_type((size,), uint8)]
    y, *_ = run("onednn_norm_relu", {**attrs, "mask": size}, arrays, outputs)
    with np.errstate(invalid="ignore"):
        plain, *_ = reference("normalization")(
            *(a.astype(float) for a in arrays), axis=-1, training=True, **attrs
        )
        np.testing.assert_allclose(y, np.maximum(plain, 0), 2e-5, 2e-5)


@pytest.mark.parametrize("shape", [(4, 5, 3, 16), (2, 7, 7, 5), (6, 9)])
def test_batch_normalization_with_relu(shape: tuple[int, ...]) -> None:
    channels, x, dy = shape[-1], random(3, *shape), random(4, *shape)
    gamma, beta = 1 + random(5, channels) / 4, random(6, channels)
    moving = random(7, channels), np.ones(channels, np.float32)
    vector = tensor_type((channels,), float32)
    image = tensor_type(shape, float32)
    attrs: dict[str, Any] = {"epsilon": 1e-3, "momentum": 0.9}
    size = mask_bytes(Problem("onednn_norm_relu", (image,), (image,), tuple(attrs.items())))
    assert size is not None
    inputs = [x, *(m.copy() for m in moving), gamma, beta]
    outputs = [image, vector, vector, tensor_type((size,), uint8)]
    y, mean, inverse, mask = run("onednn_norm_relu", {**attrs, "mask": size}, inputs, outputs)
    plain, *statistics, new_mean, new_variance = reference("normalization")(
        x.astype(float), *moving, gamma, beta, axis=-1, training=True, **attrs
    )
    np.testing.assert_allclose(y, np.maximum(plain, 0), 2e-5, 2e-5)
    np.testing.assert_allclose((mean, inverse), statistics, 2e-5, 2e-5)
    np.testing.assert_allclose(inputs[1:3], (new_mean, new_variance), 2e-5, 2e-5)
    grads = run(
        "onednn_norm_relu_grad", {"epsilon": 1e-3}, [x, dy, mean, inverse, gamma, mask],
        [image, vector, vector],
    )  # fmt: skip
    expected = reference("normalization_grad")(
        x.astype(float), dy * (plain > 0), *statistics, gamma,
        axis=-1, epsilon=1e-3, training=True,
    )  # fmt: skip
    for have, want in zip(grads, expected, strict=True):
        np.testing.assert_allclose(have, want, 5e-5, 5e-5)
