"""Functions of OneFlow 0.5's lazy API whose order of parameters differs from that in 0.3.4.

Programs import this API as ``oneflow.compatible.single_client``.
"""

from __future__ import annotations

from flow_core.api.math import linalg
from flow_core.api.nn import conv, layers, quantization
from flow_core.api.nn.basic import bias_add
from flow_core.api.nn.common import check
from flow_core.frontend.trace.blob import Blob, BlobDef

__all__ = ["conv2d", "fake_quantization", "matmul", "min_max_observer", "upsample_2d"]

OLDER = "that is the order of OneFlow 0.3.4, which `import oneflow as flow` has"


def conv2d(
    input: Blob,
    filters: Blob,
    strides: conv.Ints,
    padding: conv.Padding,
    bias: Blob | None = None,
    data_format: str = "NCHW",
    dilations: conv.Ints | None = None,
    groups: int = 1,
    name: str | None = None,
) -> BlobDef:
    """Convolve over two spatial axes, and add a bias.

    Args:
        bias: one number per output channel; None for no bias.
        input, filters, strides, padding, data_format, dilations, groups, name: see
            `flow_core.api.nn.conv.conv2d`.
    """
    allowed = "a blob or None, before data_format"
    fits = bias is None or isinstance(bias, BlobDef)
    check(fits, "conv2d", f"bias={bias!r:.60}", allowed, OLDER)
    y = conv.conv2d(input, filters, strides, padding, data_format, dilations, groups, name)
    return y if bias is None else bias_add(y, bias, data_format)


def upsample_2d(
    x: Blob,
    size: conv.Ints = (2, 2),
    align_corners: bool = False,
    data_format: str = "NCHW",
    interpolation: str = "nearest",
    name: str = "Upsample2D",
) -> BlobDef:
    """Upsample height and width of images.

    Args:
        align_corners: must be False.
        x, size, data_format, interpolation, name: see `flow_core.api.nn.layers.upsample_2d`.
    """
    found = f"align_corners={align_corners!r}"
    check(align_corners is False, "layers.upsample_2d", found, "False", OLDER)
    return layers.upsample_2d(x, size, data_format, interpolation, name)


def matmul(
    a: Blob,
    b: Blob,
    transpose_a: bool = False,
    transpose_b: bool = False,
    alpha: float = 1.0,
    name: str | None = None,
) -> BlobDef:
    """Multiply matrices; see `flow_core.api.math.linalg.matmul`."""
    return linalg.matmul(a, b, transpose_a, transpose_b, name, alpha)


def min_max_observer(
    input: Blob,
    quantization_bit: int = 8,
    quantization_scheme: str = "symmetric",
    quantization_formula: str = "google",
    per_layer_quantization: bool = True,
    name: str | None = None,
) -> tuple[BlobDef, BlobDef]:
    """Return the grid of a tensor; see `flow_core.api.nn.quantization.min_max_observer`.

    Args:
        quantization_formula: must be "google".
        input, quantization_bit, quantization_scheme, per_layer_quantization, name: see there.
    """
    _check_formula("min_max_observer", quantization_formula)
    return quantization.min_max_observer(
        input, quantization_bit, quantization_scheme, per_layer_quantization, name
    )


def fake_quantization(
    input: Blob,
    scale: Blob,
    zero_point: Blob,
    quantization_bit: int = 8,
    quantization_scheme: str = "symmetric",
    quantization_formula: str = "google",
    name: str | None = None,
) -> BlobDef:
    """Round to a grid; see `flow_core.api.nn.quantization.fake_quantization`.

    Args:
        quantization_formula: must be "google".
        input, scale, zero_point, quantization_bit, quantization_scheme, name: see there.
    """
    _check_formula("fake_quantization", quantization_formula)
    return quantization.fake_quantization(
        input, scale, zero_point, quantization_bit, quantization_scheme, name
    )


def _check_formula(function: str, formula: str) -> None:
    found = f"quantization_formula={formula!r}"
    check(formula == "google", f"quantization.{function}", found, '"google"')
