"""Recurrent layers over whole sequences: LSTM and GRU, and their gradients.

The products of the sequence and its weight come before, for all positions at once; an op adds the
products of the state and the recurrent weight, from position to position.  Arrays of a sequence
have the shape (batch, positions, features).  The gradient of the recurrent weight is one product
over all positions.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.ir.graph import tensor_type
from flow_core.ops.build import GradContext, Sym
from flow_core.ops.declare import Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.plugins.specs import InferContext, Sample, SbpContext
from flow_core.sharding.sbp import B, P, S, Signature, Signatures


def order(positions: int, reverse: bool) -> list[tuple[int, int | None]]:
    """Return each position in order, with the one before it.

    >>> order(3, True)
    [(2, None), (1, 2), (0, 1)]
    """
    places = range(positions)[:: -1 if reverse else 1]
    return [(places[0], None), *((later, earlier) for earlier, later in pairwise(places))]


WHOLE = frozenset({"recurrent", "bias"})
"""The inputs without a batch axis."""
GRADIENTS = ("dout", "dmemory", "dgates")
SIZES = ((3, 4, 2, False), (2, 2, 3, True), (2, 3, 1, True))
"""Batch, positions and units of the samples, and whether the order is reversed."""


class _Recurrent(OpDef):
    parts: int
    """The number of gates, including the candidate: 4 in an LSTM, 3 in a GRU."""
    attrs = {"reverse": False}
    inplace = (0,)

    def work(self, ctx: SbpContext) -> float:
        sequence, recurrent = ctx.inputs[:2]
        return 2.0 * sequence.size * recurrent.shape[-1]

    def sbp(self, ctx: SbpContext) -> Signatures:
        """Allow splits of the batch; gradients are linear in what comes from the outputs."""
        given = [name.rstrip("?") for name in self.inputs[: len(ctx.inputs)]]
        outputs = len(ctx.outputs)
        rows = [Signature(tuple(B if n in WHOLE else S(0) for n in given), (S(0),) * outputs)]
        if "dout" in given:
            partial = tuple(P if n in GRADIENTS else B for n in given)
            rows.append(Signature(partial, (P,) * outputs))
        return tuple(rows)

    def _check(self, ctx: InferContext) -> None:
        sequence, recurrent, count = *ctx.inputs[:2], self.parts
        shape, units = sequence.shape, recurrent.shape[-1] if recurrent.shape else 0
        found = ", ".join(map(str, ctx.inputs))
        fits = len(shape) == 3 and shape[1] > 0 and recurrent.shape == (count * units, units)
        ctx.check(
            fits and shape[2] == count * units and sequence.dtype.is_floating,
            found,
            f"(batch, positions, {count} * units) and ({count} * units, units), of a floating type",
        )
        ctx.check(len({x.dtype for x in ctx.inputs}) == 1, found, "one element type")


class _Forward(_Recurrent):
    reference: Callable[..., Any]
    own: slice
    """The inputs that the gradient reads beside the results."""

    def infer(self, ctx: InferContext) -> Types:
        self._check(ctx)
        parts, _, *others = ctx.inputs
        batch, positions, rows = parts.shape
        state = (batch, rows // self.parts)
        shapes = [x.shape for x in others]
        allowed = [state, state] if self.parts == 4 else [state, (rows,)]
        fits = shapes == allowed[: len(shapes)] and len(shapes) >= self.parts - 2
        ctx.check(fits, f"states of shapes {shapes}", f"shapes {allowed}")
        result = tensor_type((batch, positions, rows // self.parts), parts.dtype)
        return parts, result, result

    def samples(self, rng: Rng) -> Samples:
        for batch, positions, units, reverse in SIZES:
            rows = self.parts * units
            shapes: list[tuple[int, ...]] = [(batch, positions, rows), (rows, units)]
            shapes += [(batch, units)] * (self.parts - 2)
            shapes += [(rows,)] * (self.parts == 3 and positions != 2)
            yield Sample(tuple(rng.uniform(-1, 1, s) for s in shapes), {"reverse": reverse})

    def _backward(self, g: GradContext, *given: Sym) -> tuple[Sym, ...]:
        """Emit the op of the gradient; absent gradients of the last results are left out."""
        _, out, memory = g.outputs
        dgates, dout, dmemory = g.grads
        grads = [dout or g.one("zero_like", out)]
        if dmemory is not None or dgates is not None:
            grads.append(dmemory or g.one("zero_like", memory))
        grads += [] if dgates is None else [dgates]
        return g.all(f"{self.type}_grad", *given, *grads, **dict(g.attrs))


class _Backward(_Recurrent):
    forward: _Forward

    def samples(self, rng: Rng) -> Samples:
        """Yield gradients of the samples of the layer, through all, two and one of its results."""
        for count, sample in zip((3, 2, 1), self.forward.samples(rng), strict=True):
            gates, out, memory = self.forward.reference(*sample.inputs, **sample.attrs)
            given = [rng.uniform(-1, 1, x.shape) for x in (out, memory, gates)][:count]
            state = sample.inputs[self.forward.own]
            own = (*state, memory) if self.parts == 4 else (*state, memory, out)
            yield Sample((gates, sample.inputs[1], *own, *given), sample.attrs, False)


def _sigmoid(x: Array) -> Array:
    return 0.5 * np.tanh(0.5 * x) + 0.5


def _weight_gradient(g: GradContext, dparts: Sym, out: Sym, first: Sym) -> Sym | None:
    """Return the product of the gradients and of the states before, over all positions."""
    if not g.needed[1]:
        return None
    batch, positions, units = out.shape
    states = g.one("expand_dims", first, axis=1)
    if positions > 1:
        start, stop = (1, positions) if g.attrs["reverse"] else (0, positions - 1)
        kept = g.one("slice", out, start=(0, start, 0), stop=(batch, stop, units), step=(1, 1, 1))
        states = g.one("concat", *((kept, states) if start else (states, kept)), axis=1)
    rows = [g.one("reshape", x, shape=(batch * positions, x.shape[2])) for x in (dparts, states)]
    return g.one("matmul", *rows, transpose_a=True, transpose_b=False)


class Lstm(_Forward):
    """An LSTM over a sequence of its four parts i, f, g, o without the products of the state: their
    activations, then h and c of all positions.
    """

    schema = "lstm(parts, recurrent, h, c) -> gates, out, memory"
    parts = 4
    own = slice(3, 4)

    def reference(
        self, parts: Array, recurrent: Array, h: Array, c: Array, *, reverse: bool
    ) -> tuple[Array, ...]:
        gates, units = np.empty_like(parts), h.shape[1]
        out, memory = (np.empty((*parts.shape[:2], units), parts.dtype) for _ in range(2))
        for t, _ in order(parts.shape[1], reverse):
            i, f, g, o = np.split(parts[:, t] + h @ recurrent.T, 4, 1)
            i, f, g, o = _sigmoid(i), _sigmoid(f), np.tanh(g), _sigmoid(o)
            c = f * c + i * g
            h = o * np.tanh(c)
            gates[:, t], out[:, t], memory[:, t] = np.concatenate([i, f, g, o], 1), h, c
        return gates, out, memory

    def gradient(self, g: GradContext) -> Gradients:
        _, recurrent, h, c = g.inputs
        gates, out, memory = g.outputs
        dparts, dh, dc = self._backward(g, gates, recurrent, c, memory)
        return dparts, _weight_gradient(g, dparts, out, h), dh, dc


class Gru(_Forward):
    """A GRU over a sequence of its three parts r, z, n without the products of the state: their
    activations, h of all positions, and the product and bias that r scales.
    """

    schema = "gru(parts, recurrent, h, bias?) -> gates, out, memory"
    parts = 3
    own = slice(2, 3)

    def reference(
        self, parts: Array, recurrent: Array, h: Array, bias: Array | float = 0, *, reverse: bool
    ) -> tuple[Array, ...]:
        gates, units = np.empty_like(parts), h.shape[1]
        out, memory = (np.empty((*parts.shape[:2], units), parts.dtype) for _ in range(2))
        for t, _ in order(parts.shape[1], reverse):
            (r, z, n), own = np.split(parts[:, t], 3, 1), np.split(h @ recurrent.T + bias, 3, 1)
            r, z = _sigmoid(r + own[0]), _sigmoid(z + own[1])
            n = np.tanh(n + r * own[2])
            h = n + z * (h - n)
            gates[:, t], out[:, t], memory[:, t] = np.concatenate([r, z, n], 1), h, own[2]
        return gates, out, memory

    def gradient(self, g: GradContext) -> Gradients:
        _, recurrent, h, *bias = g.inputs
        gates, out, memory = g.outputs
        dparts, down, dh = self._backward(g, gates, recurrent, h, memory, out)
        dbias = [g.one("reduce_sum", down, axis=(0, 1), keepdims=False) for _ in bias]
        return dparts, _weight_gradient(g, down, out, h), dh, *dbias


class LstmGrad(_Backward):
    schema = "lstm_grad(gates, recurrent, c, memory, dout, dmemory?, dgates?) -> dparts, dh, dc"
    parts = 4
    forward = Lstm()

    def infer(self, ctx: InferContext) -> Types:
        self._check(ctx)
        return ctx.inputs[0], ctx.inputs[2], ctx.inputs[2]

    def reference(
        self, gates: Array, recurrent: Array, c: Array, memory: Array, dout: Array,
        dmemory: Array | None = None, dgates: Array | None = None, *, reverse: bool,
    ) -> tuple[Array, ...]:  # fmt: skip
        dparts, dh, dc = np.empty_like(gates), np.zeros_like(c), np.zeros_like(c)
        for t, before in reversed(order(gates.shape[1], reverse)):
            i, f, g, o = np.split(gates[:, t], 4, 1)
            earlier = c if before is None else memory[:, before]
            tanh, dh = np.tanh(memory[:, t]), dh + dout[:, t]
            dc = dc + dh * o * (1 - tanh * tanh)
            dc = dc if dmemory is None else dc + dmemory[:, t]
            d = np.concatenate([dc * g, dc * earlier, dc * i, dh * tanh], 1)
            d = d if dgates is None else d + dgates[:, t]
            slope = np.concatenate([i * (1 - i), f * (1 - f), 1 - g * g, o * (1 - o)], 1)
            dparts[:, t] = d * slope
            dh, dc = dparts[:, t] @ recurrent, dc * f
        return dparts, dh, dc


class GruGrad(_Backward):
    """The gradients of the parts, of the products of the state, and of the first state."""

    schema = (
        "gru_grad(gates, recurrent, h, memory, out, dout, dmemory?, dgates?) -> dparts, down, dh"
    )
    parts = 3
    forward = Gru()

    def infer(self, ctx: InferContext) -> Types:
        self._check(ctx)
        return ctx.inputs[0], ctx.inputs[0], ctx.inputs[2]

    def reference(
        self, gates: Array, recurrent: Array, h: Array, memory: Array, out: Array, dout: Array,
        dmemory: Array | None = None, dgates: Array | None = None, *, reverse: bool,
    ) -> tuple[Array, ...]:  # fmt: skip
        dparts, down, dh = np.empty_like(gates), np.empty_like(gates), np.zeros_like(h)
        for t, before in reversed(order(gates.shape[1], reverse)):
            r, z, n = np.split(gates[:, t], 3, 1)
            earlier, dh = h if before is None else out[:, before], dh + dout[:, t]
            dz, dn = dh * (earlier - n), dh * (1 - z)
            own_r, own_z, own_n = (0, 0, 0) if dgates is None else np.split(dgates[:, t], 3, 1)
            dn = (dn + own_n) * (1 - n * n)
            dr = (dn * memory[:, t] + own_r) * r * (1 - r)
            dz = (dz + own_z) * z * (1 - z)
            dm = dn * r if dmemory is None else dn * r + dmemory[:, t]
            dparts[:, t], down[:, t] = (
                np.concatenate([dr, dz, dn], 1),
                np.concatenate([dr, dz, dm], 1),
            )
            dh = dh * z + down[:, t] @ recurrent
        return dparts, down, dh


OPS = specs(Lstm, Gru, LstmGrad, GruGrad)
