"""``flow.ctc_loss``: the loss of connectionist temporal classification."""

from __future__ import annotations

from flow_core.api import math as flow_math
from flow_core.api.arguments import inner
from flow_core.api.array.source import zeros_like
from flow_core.api.nn.common import check
from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.emit import emit

__all__ = ["ctc_loss"]


def ctc_loss(
    log_probs: Blob,
    targets: Blob,
    input_lengths: Blob,
    target_lengths: Blob,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
    name: str | None = None,
) -> BlobDef:
    """Return the CTC loss: the negative logarithm of the probability of all alignments.

    Args:
        log_probs: logarithms of probabilities (time, batch, classes), as from `logsoftmax`.
        targets: integer classes (batch, longest target), none of them the blank.
        input_lengths: numbers of valid time steps (batch,).
        target_lengths: numbers of valid classes (batch,).
        blank: the class of blanks.
        reduction: "none" for a loss per example, "sum", or "mean" for the mean of each example's
            loss divided by the length of its target.
        zero_infinity: replace infinite losses, of inputs shorter than their targets, by 0.

    Raises:
        InferenceError: shapes, types or ``reduction`` do not fit.
        DataError: in a step, a length or a class is out of range.
    """
    kinds = ("mean", "sum", "none")
    check(reduction in kinds, "ctc_loss", f"reduction={reduction!r}", ", ".join(kinds))
    loss: BlobDef = emit(
        "ctc_loss", log_probs, targets, input_lengths, target_lengths,
        blank=int(blank), zero_infinity=bool(zero_infinity), name=name,
    )[0]  # fmt: skip
    if zero_infinity:
        loss = flow_math.where(flow_math.equal(loss, float("inf")), zeros_like(loss), loss)
    if reduction == "sum":
        return flow_math.reduce_sum(loss, name=inner(name, "reduce_sum"))
    if reduction == "mean":
        lengths = flow_math.cast(flow_math.clip_by_value(target_lengths, 1), log_probs.dtype)
        return flow_math.reduce_mean(loss / lengths, name=inner(name, "reduce_mean"))
    return loss
