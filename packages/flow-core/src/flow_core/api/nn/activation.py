"""``flow.nn``: activations that ``flow.math`` does not have.

As in OneFlow, functions that emit several ops derive the ops' names from ``name``: for example,
``mish(x, name="act")`` emits ``act_softplus`` and ``act_tanh``.

Args:
    x: a floating-point blob.

Returns: A blob of the shape and type of ``x``.

Raises:
    InferenceError: the element type of ``x`` is not floating.
"""

from __future__ import annotations

from flow_core.api import math as flow_math
from flow_core.api.arguments import inner
from flow_core.api.nn.common import check
from flow_core.frontend.trace.blob import Blob, BlobDef, checked_blob
from flow_core.frontend.trace.emit import emit_one

__all__ = [
    "elu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "mish", "relu6", "swish",
]  # fmt: skip


def leaky_relu(x: Blob, alpha: float = 0.2, name: str | None = None) -> BlobDef:
    """Return each element, multiplied by ``alpha`` if it is negative.

    Args:
        alpha: the slope on the negative side.

    >>> run(flow.nn.leaky_relu, [-1, 2])
    array([-0.2,  2. ], dtype=float32)
    """
    return emit_one("leaky_relu", x, alpha=float(alpha), name=name)


def elu(x: Blob, alpha: float = 1.0, name: str | None = None) -> BlobDef:
    """Return each element, or ``alpha * (exp(x) - 1)`` if it is negative.

    This is the exponential linear unit of Clevert, Unterthiner and Hochreiter (2015),
    arXiv:1511.07289.

    Args:
        alpha: a factor; the result tends to ``-alpha`` as ``x`` tends to minus infinity.

    >>> run(flow.nn.elu, [-1, 2]).round(4)
    array([-0.6321,  2.    ], dtype=float32)
    """
    return emit_one("elu", x, alpha=float(alpha), name=name)


def hardsigmoid(x: Blob, name: str | None = None) -> BlobDef:
    """Return ``x / 6 + 0.5`` clipped to [0, 1]: a piecewise linear `sigmoid`.

    >>> run(flow.nn.hardsigmoid, [-4, 0, 4])
    array([0. , 0.5, 1. ], dtype=float32)
    """
    return emit_one("hardsigmoid", x, name=name)


def hardswish(x: Blob, name: str | None = None) -> BlobDef:
    """Return ``x * hardsigmoid(x)``, as in MobileNetV3 (Howard et al. 2019, arXiv:1905.02244).

    >>> run(flow.nn.hardswish, [-4, 1, 4]).round(4)
    array([-0.    ,  0.6667,  4.    ], dtype=float32)
    """
    return emit_one("hardswish", x, name=name)


def hardtanh(
    x: Blob, min_val: float = -1.0, max_val: float = 1.0, name: str | None = None
) -> BlobDef:
    """Return ``x`` clipped to [min_val, max_val].

    Args:
        min_val: the lower bound.
        max_val: the upper bound.

    Raises: InferenceError: ``min_val`` is not less than ``max_val``.

    >>> run(flow.nn.hardtanh, [-2, 0.5, 2])
    array([-1. ,  0.5,  1. ], dtype=float32)
    """
    low, high = float(min_val), float(max_val)
    check(low < high, "hardtanh", f"min_val={low}, max_val={high}", "min_val < max_val")
    return emit_one("hardtanh", x, min_val=low, max_val=high, name=name)


def relu6(x: Blob, name: str | None = None) -> BlobDef:
    """Return each element clipped to [0, 6].

    >>> run(flow.nn.relu6, [-1, 2, 8])
    array([0., 2., 6.], dtype=float32)
    """
    return hardtanh(x, 0.0, 6.0, name)


def mish(x: Blob, name: str | None = None) -> BlobDef:
    """Return ``x * tanh(softplus(x))`` (Misra 2019, arXiv:1908.08681).

    >>> run(flow.nn.mish, [-1, 2]).round(4)
    array([-0.3034,  1.944 ], dtype=float32)
    """
    soft = flow_math.softplus(x, name=inner(name, "softplus"))
    return checked_blob(x) * flow_math.tanh(soft, name=inner(name, "tanh"))


def swish(x: Blob, beta: float = 1.0, name: str | None = None) -> BlobDef:
    """Return ``x * sigmoid(beta * x)`` (Ramachandran, Zoph and Le 2017, arXiv:1710.05941).

    Args:
        beta: slope of the sigmoid; with 1, the function is also known as SiLU.

    >>> run(flow.nn.swish, [-1, 2]).round(4)
    array([-0.2689,  1.7616], dtype=float32)
    """
    x = checked_blob(x)
    scaled = x if beta == 1 else x * float(beta)
    return x * flow_math.sigmoid(scaled, name=inner(name, "sigmoid"))
