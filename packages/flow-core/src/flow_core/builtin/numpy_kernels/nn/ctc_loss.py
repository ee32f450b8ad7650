"""Kernels of the CTC loss: one pass over time for all examples and states at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.errors import DataError
from flow_core.builtin.numpy_kernels.binding import carve, kernel
from flow_core.device import Launch
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec

Parts = tuple[tuple[tuple[int, ...], Any], ...]


def _parts(query: KernelQuery) -> Parts:
    """Return the workspace parts; see `_States`, then those of the gradient."""
    log_probs, targets = query.inputs[1:3] if query.op == "ctc_loss_grad" else query.inputs[:2]
    _, batch, classes = log_probs.shape
    rows, dtype = (batch, 2 * targets.shape[1] + 1), log_probs.dtype.numpy
    return (
        (rows, np.int64), (rows, np.bool_), (rows, dtype), (rows, dtype), (rows, dtype),
        (rows, dtype), ((batch, classes), dtype), ((batch,), np.int64),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _States:
    """The states of all examples; all arrays but the data are parts of the workspace."""

    op: str  # the op type, for errors
    blank: int  # the class of blanks
    log_probs: Array  # the data
    targets: Array
    input_lengths: Array
    target_lengths: Array
    flat: Array  # positions of the classes of the states in a time step's log probabilities
    allowed: Array  # whether a state can follow the state before the previous one
    likelihood: Array  # log probability of each state's class at one time step

    def prepare(self) -> None:
        """Check the data and compute the positions of the classes of all states."""
        steps, batch, classes = self.log_probs.shape
        flat, targets = self.flat, self.targets
        self._check_lengths("input_lengths", self.input_lengths, 1, steps)
        self._check_lengths("target_lengths", self.target_lengths, 0, targets.shape[1])
        flat.fill(self.blank)
        for i in range(batch):
            flat[i, 1 : 2 * self.target_lengths[i] : 2] = targets[i, : self.target_lengths[i]]
        if flat.size and not 0 <= flat.min() <= flat.max() < classes:
            found = flat[(flat < 0) | (flat >= classes)]
            raise DataError(
                f"running {self.op}",
                found=f"{found.size} targets outside the range of classes, such as {found[0]}",
                allowed=f"0 <= target < {classes}, the number of classes",
            )
        self.allowed.fill(False)
        np.not_equal(flat[:, 2:], flat[:, :-2], out=self.allowed[:, 2:])
        for i in range(batch):
            flat[i] += i * classes

    def _check_lengths(self, name: str, lengths: Array, least: int, most: int) -> None:
        if lengths.size and not least <= lengths.min() <= lengths.max() <= most:
            raise DataError(
                f"running {self.op}",
                found=f"{name} from {lengths.min()} to {lengths.max()}",
                allowed=f"{least} to {most}",
            )

    def at(self, step: int) -> Array:
        """Return the log probability of each state's class at a time step."""
        row = self.log_probs[step].reshape(-1)
        return np.take(row, self.flat, out=self.likelihood, mode="clip")


def _advance(before: Array, after: Array, allowed: Array) -> None:
    """Write the log probabilities to reach each state from those of the previous time step."""
    np.copyto(after, before)
    np.logaddexp(after[:, 1:], before[:, :-1], out=after[:, 1:])
    np.logaddexp(after[:, 2:], before[:, :-2], out=after[:, 2:], where=allowed)


def _states(ctx: BindContext, data: Sequence[Array], *workspace: Array) -> _States:
    log_probs, targets, input_lengths, target_lengths = data
    flat, allowed, likelihood = workspace
    op, blank = ctx.query.op, ctx.attrs["blank"]
    return _States(
        op, blank, log_probs, targets, input_lengths, target_lengths, flat, allowed, likelihood
    )


def _forward(ctx: BindContext) -> Launch:
    loss, alpha = ctx.outputs
    flat, allowed, likelihood, before, now, *_ = carve(ctx.workspace, *_parts(ctx.query))
    states = _states(ctx, ctx.inputs, flat, allowed, likelihood)

    def launch() -> None:
        states.prepare()
        now.fill(-np.inf)
        now[:, :2] = 0
        for t in range(alpha.shape[1]):
            if t:
                _advance(before, now, allowed[:, 2:])
            np.add(now, states.at(t), out=before)
            np.copyto(alpha[:, t], before)
        for i in range(len(loss)):
            end = 2 * states.target_lengths[i]
            last = alpha[i, states.input_lengths[i] - 1]
            loss[i] = -(np.logaddexp(last[end], last[end - 1]) if end else last[0])

    return launch


def _backward(ctx: BindContext) -> Launch:
    dy, *data, loss, alpha = ctx.inputs
    (dx,) = ctx.outputs
    views = carve(ctx.workspace, *_parts(ctx.query))
    flat, allowed, likelihood, left, now, work, share, final = views
    states = _states(ctx, data, flat, allowed, likelihood)
    forgives, shares = ctx.attrs["zero_infinity"], share.reshape(-1)

    def begin(t: int) -> None:
        """Start the examples whose last time step this is."""
        for i, end in enumerate(final):
            if end == t:
                length = states.target_lengths[i]
                now[i].fill(-np.inf)
                now[i, max(2 * length - 1, 0) : 2 * length + 1] = 0

    def launch() -> None:
        states.prepare()
        np.subtract(states.input_lengths, 1, out=final)
        left.fill(-np.inf)
        for t in reversed(range(len(dx))):
            _advance(left[:, ::-1], now[:, ::-1], allowed[:, :1:-1])
            begin(t)
            np.add(now, states.at(t), out=left)
            np.add(alpha[:, t], now, out=work)
            np.add(work, loss[:, None], out=work)
            np.exp(work, out=work)
            shares.fill(0)
            np.add.at(shares, flat, work)
            _slope(t)
        if forgives:
            dx[:, np.isposinf(loss)] = 0

    def _slope(t: int) -> None:
        out = dx[t]
        np.exp(data[0][t], out=out)
        np.subtract(out, share, out=out)
        for i in range(len(loss)):
            out[i] += 0 * loss[i]
            out[i] *= dy[i]
            if t > final[i]:
                out[i] = 0

    return launch


def _accepts(query: KernelQuery) -> bool:
    return all(t.dtype.name in ("float32", "float64") for t in query.outputs)


KERNELS: tuple[KernelSpec, ...] = (
    kernel("ctc_loss", _forward, accepts=_accepts, parts=_parts),
    kernel("ctc_loss_grad", _backward, accepts=_accepts, parts=_parts),
)
