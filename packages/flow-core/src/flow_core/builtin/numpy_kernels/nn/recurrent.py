"""Kernels of recurrent layers: a loop over positions, of calls on views that are created once."""

from __future__ import annotations

from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.builtin.numpy_kernels.binding import carve
from flow_core.builtin.numpy_kernels.widening import widened
from flow_core.device import Launch
from flow_core.ops.nn.recurrent import order
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec


def _parts(query: KernelQuery) -> list[tuple[tuple[int, ...], Any]]:
    """Return the scratch arrays: two of the width of all parts, and three of the units."""
    (batch, _, rows), units = query.inputs[0].shape, query.inputs[1].shape[1]
    kind = query.inputs[0].dtype.numpy
    return [*[((batch, rows), kind)] * 2, *[((batch, units), kind)] * 3]


def _split(x: Array, count: int) -> list[Any]:
    """Return views of equal parts of the last axis."""
    units = x.shape[-1] // count
    return [x[..., k * units : (k + 1) * units] for k in range(count)]


class _Squash:
    """Sigmoids and hyperbolic tangents side by side, as one tanh: sigmoid(x) is
    (1 + tanh(x / 2)) / 2.

    Args:
        which: for each part, whether it is a sigmoid.
    """

    def __init__(self, which: str, units: int, kind: Any) -> None:
        sigmoid = np.repeat(np.array([c == "s" for c in which]), units)
        self._scale = np.where(sigmoid, 0.5, 1).astype(kind)
        self._shift = np.where(sigmoid, 0.5, 0).astype(kind)

    def __call__(self, x: Array, out: Array) -> None:
        np.multiply(x, self._scale, x)
        np.tanh(x, x)
        np.multiply(x, self._scale, x)
        np.add(x, self._shift, out)


def _lstm(ctx: BindContext) -> Launch:
    parts, recurrent, h0, c0 = ctx.inputs
    gates, out, memory = ctx.outputs
    z, _, t, u, _ = carve(ctx.workspace, *_parts(ctx.query))
    squash, transposed = _Squash("ssts", h0.shape[1], z.dtype), recurrent.T
    steps = [
        (
            h0 if b is None else out[:, b], c0 if b is None else memory[:, b], parts[:, k],
            gates[:, k], *_split(gates[:, k], 4), out[:, k], memory[:, k],
        )
        for k, b in order(parts.shape[1], ctx.attrs["reverse"])
    ]  # fmt: skip

    def run() -> None:
        for h, c, x, a, i, f, g, o, h_new, c_new in steps:
            np.matmul(h, transposed, out=z)
            np.add(z, x, z)
            squash(z, a)
            np.multiply(f, c, t)
            np.multiply(i, g, u)
            np.add(t, u, c_new)
            np.tanh(c_new, t)
            np.multiply(o, t, h_new)

    return run


def _lstm_grad(ctx: BindContext) -> Launch:
    gates, recurrent, c0, memory, *given = ctx.inputs
    dparts, dh, dc = ctx.outputs
    d, slope, t, _, _ = carve(ctx.workspace, *_parts(ctx.query))
    (d_i, d_f, d_g, d_o), slope_g = _split(d, 4), _split(slope, 4)[2]
    steps = [
        (
            gates[:, k], *_split(gates[:, k], 4), c0 if b is None else memory[:, b], memory[:, k],
            dparts[:, k], *(x[:, k] for x in given), *[None] * (3 - len(given)),
        )
        for k, b in reversed(order(gates.shape[1], ctx.attrs["reverse"]))
    ]  # fmt: skip

    def run() -> None:
        for x in (dh, dc):
            x.fill(0)
        for a, i, f, g, o, earlier, c, result, dout, dmemory, dgates in steps:
            np.add(dh, dout, dh)
            np.tanh(c, t)
            np.multiply(dh, t, d_o)
            np.multiply(t, t, t)
            np.subtract(1, t, t)
            np.multiply(t, o, t)
            np.multiply(t, dh, t)
            np.add(dc, t, dc)
            if dmemory is not None:
                np.add(dc, dmemory, dc)
            np.multiply(dc, g, d_i)
            np.multiply(dc, earlier, d_f)
            np.multiply(dc, i, d_g)
            np.multiply(dc, f, dc)
            if dgates is not None:
                np.add(d, dgates, d)
            np.subtract(1, a, slope)
            np.multiply(slope, a, slope)
            np.multiply(g, g, t)
            np.subtract(1, t, slope_g)
            np.multiply(d, slope, d)
            np.copyto(result, d)
            np.matmul(d, recurrent, out=dh)

    return run


def _gru(ctx: BindContext) -> Launch:
    parts, recurrent, h0, *bias = ctx.inputs
    gates, out, memory = ctx.outputs
    own, sums, t, _, _ = carve(ctx.workspace, *_parts(ctx.query))
    units, transposed = h0.shape[1], recurrent.T
    squash, both, own_n = _Squash("ss", units, own.dtype), sums[:, : 2 * units], own[:, 2 * units :]
    steps = [
        (
            h0 if b is None else out[:, b], parts[:, k, : 2 * units], parts[:, k, 2 * units :],
            gates[:, k, : 2 * units], *_split(gates[:, k], 3), out[:, k], memory[:, k],
        )
        for k, b in order(parts.shape[1], ctx.attrs["reverse"])
    ]  # fmt: skip

    def run() -> None:
        for h, x, x_n, a, r, z, n, h_new, memory_new in steps:
            np.matmul(h, transposed, out=own)
            for b in bias:
                np.add(own, b, own)
            np.copyto(memory_new, own_n)
            np.add(x, own[:, : 2 * units], both)
            squash(both, a)
            np.multiply(r, own_n, t)
            np.add(t, x_n, t)
            np.tanh(t, n)
            np.subtract(h, n, t)
            np.multiply(t, z, t)
            np.add(t, n, h_new)

    return run


def _gru_grad(ctx: BindContext) -> Launch:
    gates, recurrent, h0, memory, out, *given = ctx.inputs
    dparts, down, dh = ctx.outputs
    d, _, t, dn, u = carve(ctx.workspace, *_parts(ctx.query))
    d_r, d_z, d_m = _split(d, 3)
    steps = [
        (
            *_split(gates[:, k], 3), h0 if b is None else out[:, b], memory[:, k], dparts[:, k],
            _split(dparts[:, k], 3)[2], down[:, k], *(x[:, k] for x in given),
            *[None] * (3 - len(given)),
        )
        for k, b in reversed(order(gates.shape[1], ctx.attrs["reverse"]))
    ]  # fmt: skip

    def slope(x: Array, value: Array) -> None:
        """Multiply by the slope of a sigmoid, given its value."""
        np.multiply(x, value, x)
        np.subtract(1, value, t)
        np.multiply(x, t, x)

    def run() -> None:
        dh.fill(0)
        for r, z, n, earlier, own, result, result_n, products, dout, dmemory, dgates in steps:
            np.add(dh, dout, dh)
            np.subtract(earlier, n, d_z)
            np.multiply(d_z, dh, d_z)
            np.subtract(1, z, t)
            np.multiply(dh, t, dn)
            if dgates is not None:
                np.add(dn, _split(dgates, 3)[2], dn)
            np.multiply(n, n, t)
            np.subtract(1, t, t)
            np.multiply(dn, t, dn)
            np.multiply(dn, own, d_r)
            if dgates is not None:
                np.add(d[:, : 2 * r.shape[1]], dgates[:, : 2 * r.shape[1]], d[:, : 2 * r.shape[1]])
            np.multiply(dh, z, u)
            np.multiply(dn, r, d_m)
            if dmemory is not None:
                np.add(d_m, dmemory, d_m)
            slope(d_r, r)
            slope(d_z, z)
            np.copyto(result, d)
            np.copyto(result_n, dn)
            np.copyto(products, d)
            np.matmul(d, recurrent, out=dh)
            np.add(dh, u, dh)

    return run


KERNELS: tuple[KernelSpec, ...] = (
    widened("lstm", _lstm, parts=_parts),
    widened("lstm_grad", _lstm_grad, parts=_parts),
    widened("gru", _gru, parts=_parts),
    widened("gru_grad", _gru_grad, parts=_parts),
)
