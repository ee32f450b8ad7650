"""``flow.nn``: normalization of each channel, or of each group of channels, of each example.

Args:
    affine: whether variables ``<name>_gamma`` and ``<name>_beta`` scale and shift each channel.
    name: name of the layer; jobs that use the same name share the variables.
    x: a floating-point blob.

Returns: A blob of the shape and type of ``x``.

Raises:
    InferenceError: the rank of ``x`` does not fit.
"""

from __future__ import annotations

from math import prod

from flow_core.api.array.shape import reshape
from flow_core.api.nn.basic import layer_norm, named
from flow_core.api.nn.common import check
from flow_core.frontend.session.variables import get_variable
from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.job_build import current_job

__all__ = [
    "GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d",
]  # fmt: skip


def InstanceNorm1d(
    x: Blob, eps: float = 1e-05, affine: bool = True, name: str | None = None
) -> BlobDef:
    """Normalize each channel of each example of a blob of shape (examples, channels, length).

    Args:
        x: a floating-point blob of rank 3.

    >>> run(flow.nn.InstanceNorm1d, np.ones((2, 4, 3))).shape
    (2, 4, 3)
    """
    return _instance_norm("InstanceNorm1d", x, 3, eps, affine, name)


def InstanceNorm2d(
    x: Blob, eps: float = 1e-05, affine: bool = True, name: str | None = None
) -> BlobDef:
    """Do the same as `InstanceNorm1d` for shape (examples, channels, height, width).

    >>> run(flow.nn.InstanceNorm2d, np.ones((2, 4, 3, 3))).shape
    (2, 4, 3, 3)
    """
    return _instance_norm("InstanceNorm2d", x, 4, eps, affine, name)


def InstanceNorm3d(
    x: Blob, eps: float = 1e-05, affine: bool = True, name: str | None = None
) -> BlobDef:
    """Do the same as `InstanceNorm1d` for shape (examples, channels, depth, height, width).

    >>> run(flow.nn.InstanceNorm3d, np.ones((2, 4, 3, 3, 3))).shape
    (2, 4, 3, 3, 3)
    """
    return _instance_norm("InstanceNorm3d", x, 5, eps, affine, name)


def GroupNorm(
    x: Blob, num_groups: int = 32, eps: float = 1e-05, affine: bool = True, name: str | None = None
) -> BlobDef:
    """Normalize each group of adjacent channels of each example.

    Args:
        x: a floating-point blob (examples, channels, ...) of rank 3 or more.
        num_groups: number of groups, which must divide the number of channels.
        affine: whether variables ``<name>_gamma`` and ``<name>_beta`` scale and shift each
            group (as in OneFlow 0.3.4: one number per group, not per channel).

    Raises:
        InferenceError: the rank is lower, or ``num_groups`` does not divide the number of channels.

    >>> run(flow.nn.GroupNorm, np.ones((2, 4, 3, 3)), num_groups=2).shape
    (2, 4, 3, 3)
    """
    check(len(x.shape) >= 3, "GroupNorm", f"rank {len(x.shape)}", "rank 3 or more")
    channels = x.shape[1]
    check(
        num_groups > 0 and channels % num_groups == 0,
        "GroupNorm",
        f"{num_groups} groups of {channels} channels",
        "a number of groups that divides the number of channels",
    )
    grouped = reshape(x, (x.shape[0], num_groups, prod(x.shape[1:]) // num_groups))
    return reshape(_instance_norm("GroupNorm", grouped, 3, eps, affine, name), x.shape)


def _instance_norm(
    kind: str, x: Blob, rank: int, eps: float, affine: bool, name: str | None
) -> BlobDef:
    check(len(x.shape) == rank, kind, f"rank {len(x.shape)}", f"rank {rank}")
    y = layer_norm(x, begin_norm_axis=2, epsilon=eps)
    if not affine:
        return named(y, name)
    name = _layer_name(kind, name)
    gamma = _channel_variable(f"{name}_gamma", x, 1.0)
    beta = _channel_variable(f"{name}_beta", x, 0.0)
    return y * gamma + beta


def _channel_variable(name: str, x: Blob, value: float) -> BlobDef:
    """Return a variable with one number per channel, of shape (1, channels, 1) as in OneFlow."""
    from flow_core.api.array.initializers import constant_initializer

    shape = (1, x.shape[1], 1)
    variable = get_variable(
        name, shape, dtype=x.dtype, initializer=constant_initializer(value), trainable=True
    )
    more = len(x.shape) - len(shape)
    return reshape(variable, (*shape, *(1,) * more)) if more else variable


def _layer_name(kind: str, name: str | None) -> str:
    """Return the given name, or a name that no variable of the job has."""
    if name is not None:
        return name
    taken = current_job(f"flow.nn.{kind}").variables
    number = 0
    while any(key.endswith(f"{kind}_{number}_gamma") for key in taken):
        number += 1
    return f"{kind}_{number}"
