"""``flow.nn``: activations that ``flow.math`` does not have.

Functions with inner steps derive the steps' names from ``name``, as in OneFlow:
``mish(x, name="act")`` adds ``act_softplus`` and ``act_tanh``.
"""

from __future__ import annotations

from flow_core.api import math as flow_math
from flow_core.api.arguments import inner
from flow_core.api.nn.common import check
from flow_core.frontend.trace.blob import BlobDef
from flow_core.frontend.trace.emit import emit_one

__all__ = [
    "elu",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "mish",
    "relu6",
    "swish",
]


def leaky_relu(x: BlobDef, alpha: float = 0.2, name: str | None = None) -> BlobDef:
    """Each element, multiplied by ``alpha`` if negative.

    Args:
        x: a floating blob.
        alpha: the slope on the negative side.
        name: name of the op.

    Returns:
        A blob like ``x``.
    """
    return emit_one("leaky_relu", x, alpha=float(alpha), name=name)


def elu(x: BlobDef, alpha: float = 1.0, name: str | None = None) -> BlobDef:
    """Each element, or ``alpha * (exp(x) - 1)`` if negative.

    The exponential linear unit of Clevert, Unterthiner and Hochreiter (2015), arXiv:1511.07289.

    Args:
        x: a floating blob.
        alpha: the negated limit at minus infinity.
        name: name of the op.

    Returns:
        A blob like ``x``.
    """
    return emit_one("elu", x, alpha=float(alpha), name=name)


def hardsigmoid(x: BlobDef, name: str | None = None) -> BlobDef:
    """``x / 6 + 0.5`` clipped to [0, 1]: a piecewise linear `sigmoid`.

    Args:
        x: a floating blob.
        name: name of the op.

    Returns:
        A blob like ``x``.
    """
    return emit_one("hardsigmoid", x, name=name)


def hardswish(x: BlobDef, name: str | None = None) -> BlobDef:
    """``x * hardsigmoid(x)``, as in MobileNetV3 (Howard et al. 2019, arXiv:1905.02244).

    Args:
        x: a floating blob.
        name: name of the op.

    Returns:
        A blob like ``x``.
    """
    return emit_one("hardswish", x, name=name)


def hardtanh(
    x: BlobDef, min_val: float = -1.0, max_val: float = 1.0, name: str | None = None
) -> BlobDef:
    """``x`` clipped to [min_val, max_val].

    Raises:
        InferenceError: ``min_val`` is not below ``max_val``.
    """
    low, high = float(min_val), float(max_val)
    check(low < high, "hardtanh", f"min_val={low}, max_val={high}", "min_val < max_val")
    return emit_one("hardtanh", x, min_val=low, max_val=high, name=name)


def relu6(x: BlobDef, name: str | None = None) -> BlobDef:
    """Each element clipped to [0, 6].

    Args:
        x: a floating blob.
        name: name of the op.

    Returns:
        A blob like ``x``.
    """
    return hardtanh(x, 0.0, 6.0, name)


def mish(x: BlobDef, name: str | None = None) -> BlobDef:
    """``x * tanh(softplus(x))`` (Misra 2019, arXiv:1908.08681).

    Args:
        x: a floating blob.
        name: name of the ops.

    Returns:
        A blob like ``x``.
    """
    soft = flow_math.softplus(x, name=inner(name, "softplus"))
    return x * flow_math.tanh(soft, name=inner(name, "tanh"))


def swish(x: BlobDef, beta: float = 1.0, name: str | None = None) -> BlobDef:
    """``x * sigmoid(beta * x)`` (Ramachandran, Zoph and Le 2017, arXiv:1710.05941).

    Args:
        x: a floating blob.
        beta: slope of the sigmoid; 1 is also known as SiLU.
        name: name of the ops.

    Returns:
        A blob like ``x``.
    """
    scaled = x if beta == 1 else x * float(beta)
    return x * flow_math.sigmoid(scaled, name=inner(name, "sigmoid"))
