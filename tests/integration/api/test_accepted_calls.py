"""Calls that OneFlow 0.3.4 or an older release accepts without documenting it."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import CompatibilityWarning, ConfigError, InferenceError

IMAGES = np.arange(72, dtype=np.float32).reshape(1, 2, 6, 6)
FILTERS = np.arange(54, dtype=np.float32).reshape(3, 2, 3, 3)


def run(body: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """Return the result of a job of a body whose arguments are blobs."""

    @flow.global_function()
    def job(a: tp.Numpy.Placeholder(IMAGES.shape), b: tp.Numpy.Placeholder(FILTERS.shape)):
        return body(a, b)

    return job(*(arrays or (IMAGES, FILTERS))).get().numpy()


@pytest.mark.parametrize(
    ("body", "plain"),
    [
        pytest.param(
            lambda x, w: flow.nn.conv2d(x, w, (np.int64(2), np.int32(1)), "VALID"),
            lambda x, w: flow.nn.conv2d(x, w, (2, 1), "VALID"),
            id="strides of numpy",
        ),
        pytest.param(
            lambda x, w: flow.nn.conv2d(x, w, 1, (0, 0, np.int64(1), np.int64(1))),
            lambda x, w: flow.nn.conv2d(x, w, 1, (0, 0, 1, 1)),
            id="padding of numpy",
        ),
        pytest.param(
            lambda x, w: flow.nn.max_pool2d(x, np.int64(2), np.int64(2), "VALID"),
            lambda x, w: flow.nn.max_pool2d(x, 2, 2, "VALID"),
            id="windows of numpy",
        ),
        pytest.param(
            lambda x, w: flow.nn.max_pool2d(x, None, 2, "VALID"),
            lambda x, w: flow.nn.max_pool2d(x, 1, 2, "VALID"),
            id="windows of one element",
        ),
    ],
)
def test_the_same_result(body: Callable[..., Any], plain: Callable[..., Any]) -> None:
    np.testing.assert_array_equal(run(body), run(plain))


def transposed(channels: int) -> Callable[..., Any]:
    """Return a body of a transposed convolution whose output shape has the given channels."""
    return lambda x, w: flow.nn.conv2d_transpose(
        flow.pad(x, [(0, 0), (0, 1), (0, 0), (0, 0)]), w, (1, channels, 8, 8), 1, "VALID"
    )


def test_an_output_shape_with_the_channels_of_the_input() -> None:
    with pytest.warns(CompatibilityWarning, match="channels of the input") as caught:
        found = run(transposed(3))
    assert [w.filename for w in caught] == [__file__]
    np.testing.assert_array_equal(found, run(transposed(2)))
    with pytest.raises(InferenceError, match="2 channels"):
        run(transposed(4))


@pytest.mark.parametrize("value", [1, 0, np.bool_(True), np.int64(0)])
def test_switches_as_numbers(value: Any) -> None:
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(value)
    assert config.get("enable_auto_mixed_precision") is bool(value)
    with pytest.raises(ConfigError, match="True or False"):
        config.enable_auto_mixed_precision(2)


def test_numbers_of_numpy_in_settings() -> None:
    config = flow.FunctionConfig()
    config.concurrency_width(np.int32(2))
    config.train.primary_lr(np.float32(0.5))
    assert config.get("concurrency_width") == 2
    assert config.get("train.primary_lr") == 0.5


def test_a_buffer_for_fused_all_reduces() -> None:
    flow.config.collective_boxing.nccl_fusion_all_reduce_use_buffer(True)


@pytest.mark.parametrize(("value", "whole"), [(1.5, 1), (-1.5, -1), (2.0, 2)])
def test_fractions_of_integer_constants(value: float, whole: int) -> None:
    @flow.global_function()
    def job() -> tp.Numpy:
        return flow.constant(value, flow.int32)  # type: ignore[return-value]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert job() == [whole]
    texts = [str(w.message) for w in caught if w.category is CompatibilityWarning]
    dropped = f"flow.constant: {value} for int32 is {whole}, as in OneFlow: fractions are dropped"
    assert texts == ([] if value == whole else [dropped])
    assert all(w.filename == __file__ for w in caught)
