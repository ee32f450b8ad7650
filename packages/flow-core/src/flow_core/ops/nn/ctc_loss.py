"""The loss of connectionist temporal classification (CTC, Graves et al., 2006).

A target of n classes, with blanks around and between them, has 2n + 1 *states*.  ``alpha[b, t, s]``
is the logarithm of the probability of all ways to be in state s of example b at time t, given the
log probabilities of the classes at times 0 to t.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.ir.graph import TensorType, tensor_type
from flow_core.ops.build import GradContext
from flow_core.ops.declare import Gradients, OpDef, Rng, Samples, Types, specs
from flow_core.ops.rules import signatures
from flow_core.plugins.specs import InferContext, Sample
from flow_core.sharding.sbp import B, P, S, Sbp

ATTRS = {"blank": 0, "zero_infinity": False}


def _check(ctx: InferContext, log_probs: TensorType, *rest: TensorType) -> tuple[int, int, int]:
    """Check the data inputs; return the numbers of time steps, examples and states."""
    targets, *lengths = rest
    found = ", ".join(map(str, (log_probs, *rest)))
    steps, batch, classes = log_probs.shape if len(log_probs.shape) == 3 else (0, 0, 0)
    fits = len(targets.shape) == 2 and all(t.shape == (batch,) for t in lengths)
    ctx.check(
        steps and fits and targets.shape[0] == batch and log_probs.dtype.is_floating
        and all(t.dtype.kind == "i" for t in rest),
        found,
        "floating log_probs (time, batch, classes), integer targets (batch, length), and integer "
        "lengths (batch,) of the inputs and the targets",
    )  # fmt: skip
    ctx.check(0 <= ctx.attrs["blank"] < classes, f"blank={ctx.attrs['blank']}", f"< {classes}")
    return steps, batch, 2 * targets.shape[1] + 1


BATCH: tuple[Sbp, ...] = (S(1), S(0), S(0), S(0))


def state_classes(targets: Array, target_lengths: Array, blank: int) -> Array:
    """Return the class of each state of each example; blanks beyond the end of a target."""
    classes = np.full((len(targets), 2 * targets.shape[1] + 1), blank, np.int64)
    within = np.arange(targets.shape[1]) < target_lengths[:, None]
    classes[:, 1::2] = np.where(within, targets, blank)
    return classes


def skips(classes: Array) -> Array:
    """Return which states can follow the state before the previous one, for states from 2 on."""
    return np.asarray(classes[:, 2:] != classes[:, :-2])


def _log_likelihoods(log_probs: Array, classes: Array) -> Array:
    """Return the log probability of each state's class, with axes (time, batch, states)."""
    return np.take_along_axis(log_probs, classes[None], axis=2)


def _advance(before: Array, allowed: Array) -> Array:
    """Return the log probabilities to reach each state from those of the previous time step."""
    after = before.copy()
    after[:, 1:] = np.logaddexp(after[:, 1:], before[:, :-1])
    after[:, 2:] = np.where(allowed, np.logaddexp(after[:, 2:], before[:, :-2]), after[:, 2:])
    return after


def _loss(
    log_probs: Array, targets: Array, input_lengths: Array, target_lengths: Array, *,
    blank: int, zero_infinity: bool,
) -> tuple[Array, Array]:  # fmt: skip
    classes = state_classes(targets, target_lengths, blank)
    found, allowed = _log_likelihoods(log_probs, classes), skips(classes)
    alpha = np.empty((len(targets), len(log_probs), classes.shape[1]), log_probs.dtype)
    reached = np.full(classes.shape, -np.inf, log_probs.dtype)
    reached[:, :2] = 0
    for t, row in enumerate(found):
        alpha[:, t] = (_advance(reached, allowed) if t else reached) + row
        reached = alpha[:, t]
    examples = np.arange(len(targets))
    last = alpha[examples, input_lengths - 1]
    ends = last[examples, 2 * target_lengths], last[examples, np.maximum(2 * target_lengths - 1, 0)]
    return -np.where(target_lengths > 0, np.logaddexp(*ends), ends[0]), alpha


def _data(rng: np.random.Generator, steps: int, batch: int, classes: int, length: int) -> Any:
    logits = rng.normal(0, 1, (steps, batch, classes))
    log_probs = logits - np.log(np.exp(logits).sum(2, keepdims=True))
    targets = rng.integers(1, classes, (batch, length)).astype(np.int32)
    input_lengths = rng.integers(2 * length + 1, steps + 1, batch).astype(np.int32)
    target_lengths = rng.integers(0, length + 1, batch).astype(np.int32)
    return log_probs, targets, input_lengths, target_lengths


def _with_short_inputs(rng: np.random.Generator) -> Any:
    """Return data in which class 3 is the blank, and one input is shorter than its target."""
    log_probs, targets, *_ = _data(rng, 6, 4, 4, 2)
    lengths = (np.array(row, np.int32) for row in ((1, 1, 6, 5), (2, 1, 2, 0)))
    return log_probs, targets - 1, *lengths


SHAPES = ((7, 4, 3, 3), (5, 2, 5, 1), (9, 3, 2, 4))


class CtcLoss(OpDef):
    """As in OneFlow, the gradient is that of log_softmax's result: it includes a term that the
    gradient of log_softmax cancels.
    """

    schema = "ctc_loss(log_probs, targets, input_lengths, target_lengths) -> loss, alpha"
    attrs = ATTRS
    reference = staticmethod(_loss)
    sbp = staticmethod(lambda _: signatures((BATCH, (S(0), S(0)))))

    def infer(self, ctx: InferContext) -> Types:
        steps, batch, states = _check(ctx, *ctx.inputs)
        dtype = ctx.inputs[0].dtype
        return tensor_type((batch,), dtype), tensor_type((batch, steps, states), dtype)

    def gradient(self, g: GradContext) -> Gradients:
        dy, _ = g.grads
        if dy is None:
            return (None,) * 4
        return (g.one("ctc_loss_grad", dy, *g.inputs, *g.outputs, **g.attrs), None, None, None)

    def samples(self, rng: Rng) -> Samples:
        for shape in SHAPES:
            yield Sample(_data(rng, *shape), {"blank": 0}, gradient=False)
        yield Sample(_with_short_inputs(rng), {"blank": 3}, gradient=False)
        yield Sample(_with_short_inputs(rng), {"blank": 3, "zero_infinity": True}, gradient=False)


class CtcLossGrad(OpDef):
    schema = (
        "ctc_loss_grad(grad_out, log_probs, targets, input_lengths, target_lengths, "
        "loss, alpha) -> grad"
    )
    attrs = ATTRS
    sbp = staticmethod(
        lambda _: signatures(((S(0), *BATCH, S(0), S(0)), S(1)), ((P, *(B,) * 6), P))
    )

    def infer(self, ctx: InferContext) -> Types:
        dy, log_probs, *data, loss, alpha = ctx.inputs
        steps, batch, states = _check(ctx, log_probs, *data)
        dtype = log_probs.dtype
        wanted = tensor_type((batch,), dtype), tensor_type((batch, steps, states), dtype)
        ctx.check((dy, loss, alpha) == (wanted[0], *wanted), f"{dy}, {loss}, {alpha}", wanted)
        return (log_probs,)

    def reference(
        self, dy: Array, log_probs: Array, targets: Array, input_lengths: Array,
        target_lengths: Array, loss: Array, alpha: Array, *, blank: int, zero_infinity: bool,
    ) -> Array:  # fmt: skip
        classes = state_classes(targets, target_lengths, blank)
        found, allowed = _log_likelihoods(log_probs, classes), skips(classes)
        states = np.arange(classes.shape[1])
        ends = (states == 2 * target_lengths[:, None]) | (states == 2 * target_lengths[:, None] - 1)
        start = np.where(ends, 0, -np.inf).astype(log_probs.dtype)
        dx = np.zeros_like(log_probs)
        left = np.full(classes.shape, -np.inf, log_probs.dtype)
        for t in reversed(range(len(log_probs))):
            now = _advance(left[:, ::-1], allowed[:, ::-1])[:, ::-1]
            now = np.where((input_lengths - 1 == t)[:, None], start, now)
            left = now + found[t]
            posterior = np.exp(alpha[:, t] + now + loss[:, None])
            share = np.zeros_like(log_probs[t])
            np.add.at(share, (np.arange(len(classes))[:, None], classes), posterior)
            within = (t < input_lengths)[:, None]
            slope = (np.exp(log_probs[t]) - share + 0 * loss[:, None]) * dy[:, None]
            dx[t] = np.where(within, slope, 0)
        if zero_infinity:
            dx[:, loss == np.inf] = 0
        return dx

    def samples(self, rng: Rng) -> Samples:
        rows: list[tuple[Any, Any]] = [(_data(rng, *shape), {"blank": 0}) for shape in SHAPES]
        rows.append((_with_short_inputs(rng), {"blank": 3, "zero_infinity": True}))
        for data, attrs in rows:
            outputs = _loss(*data, **ATTRS | attrs)
            dy = rng.uniform(0.5, 2, outputs[0].shape)
            yield Sample((dy, *data, *outputs), attrs, gradient=False)


OPS = specs(CtcLoss, CtcLossGrad)
