"""Recurrent layers over whole sequences: LSTM and GRU, and their gradients.

The products of the sequence and its weight come before, for all positions at once; an op adds the
products of the state and the recurrent weight, from position to position.  Arrays of a sequence
have the shape (batch, positions, features).  The gradient of the recurrent weight is one product
over all positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.ir.graph import TensorType, tensor_type
from flow_core.ops.build import GradContext, Sym
from flow_core.plugins.specs import InferContext, OpSpec, Sample, SbpContext
from flow_core.sharding.sbp import B, P, S, Sbp, Signature, Signatures

PARTS = {"lstm": 4, "gru": 3}
"""The number of parts of the features that enter each layer."""


def order(positions: int, reverse: bool) -> list[tuple[int, int | None]]:
    """Return each position in order, with the one before it.

    >>> order(3, True)
    [(2, None), (1, 2), (0, 1)]
    """
    places = range(positions)[:: -1 if reverse else 1]
    return [(places[0], None), *((later, earlier) for earlier, later in pairwise(places))]


def _check(ctx: InferContext, sequence: TensorType, recurrent: TensorType, count: int) -> None:
    shape, units = sequence.shape, recurrent.shape[-1] if recurrent.shape else 0
    found = ", ".join(map(str, ctx.inputs))
    fits = len(shape) == 3 and shape[1] > 0 and recurrent.shape == (count * units, units)
    ctx.check(
        fits and shape[2] == count * units and sequence.dtype.is_floating,
        found,
        f"(batch, positions, {count} * units) and ({count} * units, units), of a floating type",
    )
    kinds = {x.dtype for x in ctx.inputs}
    ctx.check(len(kinds) == 1, found, "one element type")


def _infer(count: int) -> Callable[[InferContext], tuple[TensorType, ...]]:
    def infer(ctx: InferContext) -> tuple[TensorType, ...]:
        parts, recurrent, *others = ctx.inputs
        _check(ctx, parts, recurrent, count)
        batch, positions, rows = parts.shape
        state = (batch, rows // count)
        shapes = [x.shape for x in others]
        allowed = [state, state] if count == 4 else [state, (rows,)]
        fits = shapes == allowed[: len(shapes)] and len(shapes) >= count - 2
        ctx.check(fits, f"states of shapes {shapes}", f"shapes {allowed}")
        result = tensor_type((batch, positions, rows // count), parts.dtype)
        return parts, result, result

    return infer


def _infer_lstm_grad(ctx: InferContext) -> tuple[TensorType, ...]:
    gates, recurrent, c = ctx.inputs[:3]
    _check(ctx, gates, recurrent, 4)
    return gates, c, c


def _infer_gru_grad(ctx: InferContext) -> tuple[TensorType, ...]:
    gates, recurrent, h = ctx.inputs[:3]
    _check(ctx, gates, recurrent, 3)
    return gates, gates, h


WHOLE = frozenset({"recurrent", "bias"})
"""The inputs without a batch axis."""


def _sbp(names: Sequence[str]) -> Callable[[SbpContext], Signatures]:
    """Allow splits of the batch; gradients are linear in what comes from the outputs."""

    def rules(ctx: SbpContext) -> Signatures:
        given, outputs = [n.rstrip("?") for n in names[: len(ctx.inputs)]], len(ctx.outputs)
        split = tuple(B if name in WHOLE else S(0) for name in given)
        found = [Signature(split, (S(0),) * outputs)]
        if "dout" in given:
            partial: tuple[Sbp, ...] = tuple(P if n in GRADIENTS else B for n in given)
            found.append(Signature(partial, (P,) * outputs))
        return tuple(found)

    return rules


GRADIENTS = ("dout", "dmemory", "dgates")


def _work(ctx: SbpContext) -> float:
    sequence, recurrent = ctx.inputs[:2]
    return 2.0 * sequence.size * recurrent.shape[-1]


# ---------------------------------------------------------------------------------- semantics


def _sigmoid(x: Any) -> Any:
    return 0.5 * np.tanh(0.5 * x) + 0.5


def _lstm(parts: Array, recurrent: Array, h: Any, c: Any, *, reverse: bool) -> tuple[Any, ...]:
    gates, units = np.empty_like(parts), h.shape[1]
    out, memory = (np.empty((*parts.shape[:2], units), parts.dtype) for _ in range(2))
    for t, _ in order(parts.shape[1], reverse):
        i, f, g, o = np.split(parts[:, t] + h @ recurrent.T, 4, 1)
        i, f, g, o = _sigmoid(i), _sigmoid(f), np.tanh(g), _sigmoid(o)
        c = f * c + i * g
        h = o * np.tanh(c)
        gates[:, t], out[:, t], memory[:, t] = np.concatenate([i, f, g, o], 1), h, c
    return gates, out, memory


def _gru(
    parts: Array, recurrent: Array, h: Any, bias: Any = 0, *, reverse: bool
) -> tuple[Any, ...]:
    gates, units = np.empty_like(parts), h.shape[1]
    out, memory = (np.empty((*parts.shape[:2], units), parts.dtype) for _ in range(2))
    for t, _ in order(parts.shape[1], reverse):
        (r, z, n), own = np.split(parts[:, t], 3, 1), np.split(h @ recurrent.T + bias, 3, 1)
        r, z = _sigmoid(r + own[0]), _sigmoid(z + own[1])
        n = np.tanh(n + r * own[2])
        h = n + z * (h - n)
        gates[:, t], out[:, t], memory[:, t] = np.concatenate([r, z, n], 1), h, own[2]
    return gates, out, memory


def _lstm_grad(
    gates: Array, recurrent: Any, c: Any, memory: Array, dout: Any,
    dmemory: Any = None, dgates: Any = None, *, reverse: bool,
) -> tuple[Any, ...]:  # fmt: skip
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


def _gru_grad(
    gates: Array, recurrent: Any, h: Any, memory: Array, out: Array, dout: Any,
    dmemory: Any = None, dgates: Any = None, *, reverse: bool,
) -> tuple[Any, ...]:  # fmt: skip
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
        dparts[:, t], down[:, t] = np.concatenate([dr, dz, dn], 1), np.concatenate([dr, dz, dm], 1)
        dh = dh * z + down[:, t] @ recurrent
    return dparts, down, dh


# ---------------------------------------------------------------------------------- gradients


def _lstm_gradient(g: GradContext) -> Sequence[Sym | None]:
    _, recurrent, h, c = g.inputs
    gates, out, memory = g.outputs
    given = gates, recurrent, c, memory, *_incoming(g)
    dparts, dh, dc = g.all("lstm_grad", *given, **dict(g.attrs))
    return dparts, _weight_gradient(g, dparts, out, h), dh, dc


def _gru_gradient(g: GradContext) -> Sequence[Sym | None]:
    _, recurrent, h, *bias = g.inputs
    gates, out, memory = g.outputs
    given = gates, recurrent, h, memory, out, *_incoming(g)
    dparts, down, dh = g.all("gru_grad", *given, **dict(g.attrs))
    dbias = [g.one("reduce_sum", down, axis=(0, 1), keepdims=False) for _ in bias]
    return dparts, _weight_gradient(g, down, out, h), dh, *dbias


def _incoming(g: GradContext) -> list[Sym]:
    """Return the gradients of out, memory and gates; those at the end that are absent are left
    out.
    """
    _, out, memory = g.outputs
    dgates, dout, dmemory = g.grads
    found = [dout or g.one("zero_like", out)]
    if dmemory is not None or dgates is not None:
        found.append(dmemory or g.one("zero_like", memory))
    return found if dgates is None else [*found, dgates]


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


# ------------------------------------------------------------------------------------ samples

SIZES = ((3, 4, 2), (2, 2, 3), (2, 3, 1))


def _samples(kind: str) -> Callable[[np.random.Generator], Iterator[Sample]]:
    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for (batch, positions, units), reverse in zip(SIZES, (False, True, True), strict=True):
            rows = PARTS[kind] * units
            shapes: list[tuple[int, ...]] = [(batch, positions, rows), (rows, units)]
            shapes += [(batch, units)] * (2 if kind == "lstm" else 1)
            shapes += [(rows,)] * (kind == "gru" and positions != 2)
            yield Sample(tuple(rng.uniform(-1, 1, s) for s in shapes), {"reverse": reverse})

    return samples


def _grad_samples(kind: str) -> Callable[[np.random.Generator], Iterator[Sample]]:
    """Yield gradients of the samples of the layer, through all, two and one of its results."""
    forward: Callable[..., tuple[Any, ...]] = _lstm if kind == "lstm" else _gru

    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for count, sample in zip((3, 2, 1), _samples(kind)(rng), strict=True):
            gates, out, memory = forward(*sample.inputs, **sample.attrs)
            given = [rng.uniform(-1, 1, x.shape) for x in (out, memory, gates)][:count]
            own = [sample.inputs[3], memory] if kind == "lstm" else [sample.inputs[2], memory, out]
            yield Sample((gates, sample.inputs[1], *own, *given), sample.attrs, False)

    return samples


INPUTS = {
    "lstm": ("parts", "recurrent", "h", "c"),
    "gru": ("parts", "recurrent", "h", "bias?"),
    "lstm_grad": ("gates", "recurrent", "c", "memory", "dout", "dmemory?", "dgates?"),
    "gru_grad": ("gates", "recurrent", "h", "memory", "out", "dout", "dmemory?", "dgates?"),
}
COMMON: Any = {"attrs": {"reverse": False}, "work": _work, "inplace": (0,)}

OPS: tuple[OpSpec, ...] = (
    OpSpec(
        type="lstm",
        inputs=INPUTS["lstm"],
        outputs=("gates", "out", "memory"),
        infer=_infer(4),
        sbp=_sbp(INPUTS["lstm"]),
        gradient=_lstm_gradient,
        reference=_lstm,
        samples=_samples("lstm"),
        doc="An LSTM over a sequence of its four parts i, f, g, o without the products of the "
        "state: their activations, then h and c of all positions.",
        **COMMON,
    ),
    OpSpec(
        type="gru",
        inputs=INPUTS["gru"],
        outputs=("gates", "out", "memory"),
        infer=_infer(3),
        sbp=_sbp(INPUTS["gru"]),
        gradient=_gru_gradient,
        reference=_gru,
        samples=_samples("gru"),
        doc="A GRU over a sequence of its three parts r, z, n without the products of the state: "
        "their activations, h of all positions, and the product and bias that r scales.",
        **COMMON,
    ),
    OpSpec(
        type="lstm_grad",
        inputs=INPUTS["lstm_grad"],
        outputs=("dparts", "dh", "dc"),
        infer=_infer_lstm_grad,
        sbp=_sbp(INPUTS["lstm_grad"]),
        reference=_lstm_grad,
        samples=_grad_samples("lstm"),
        **COMMON,
    ),
    OpSpec(
        type="gru_grad",
        inputs=INPUTS["gru_grad"],
        outputs=("dparts", "down", "dh"),
        infer=_infer_gru_grad,
        sbp=_sbp(INPUTS["gru_grad"]),
        reference=_gru_grad,
        samples=_grad_samples("gru"),
        doc="The gradients of the parts, of the products of the state, and of the first state.",
        **COMMON,
    ),
)
