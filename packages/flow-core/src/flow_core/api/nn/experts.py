"""``flow.nn``: mixtures of experts, in which each token goes through few of many networks."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, prod
from numbers import Integral
from typing import Any

from flow_core.api.arguments import check_numbers, checker
from flow_core.api.array.index import gather, top_k
from flow_core.api.array.select import slice_v2
from flow_core.api.array.shape import expand_dims, reshape, transpose
from flow_core.api.math.binary import cast, multiply
from flow_core.api.math.comparison import maximum
from flow_core.api.math.reduce import reduce_mean, reduce_sum
from flow_core.api.nn.basic import softmax
from flow_core.frontend.trace.blob import Blob, BlobDef, checked_blob
from flow_core.frontend.trace.emit import emit, emit_one

__all__ = ["expert_slots", "mixture_of_experts"]

_check = checker("flow.nn.")
_FUNCTION = "mixture_of_experts"


def expert_slots(
    chosen: Blob, num_experts: int, capacity: int, name: str | None = None
) -> tuple[BlobDef, BlobDef, BlobDef]:
    """Assign tokens to the slots of the experts that they choose, in order, while there are any.

    Slots are numbered from 0 to ``num_experts * capacity`` in each group, expert by expert.  First
    choices of all tokens of a group come before all second choices.

    Args:
        chosen: integers of shape (groups, choices, tokens), the experts that each token chooses.
        num_experts: number of experts; choices of other numbers get no slot.
        capacity: number of slots of an expert for each group.

    Returns:
        Three int32 blobs: the slot of each choice, -1 without one, of the shape of ``chosen``; the
        token in each slot, -1 in empty ones, of shape (groups, num_experts, capacity); and how
        often each expert is chosen, with or without a slot, of shape (groups, choices,
        num_experts).

    Raises:
        InferenceError: ``chosen`` has another shape or no integers, or a number is not positive.

    >>> run(flow.nn.expert_slots, np.array([[[1, 1, 0, 1]]]), num_experts=2, capacity=2)[0]
    array([[[ 2,  3,  0, -1]]], dtype=int32)
    """
    attrs = {"experts": num_experts, "capacity": capacity}
    for key, value in attrs.items():
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        _check(whole, "expert_slots", f"{key} {value!r:.60}", "an integer")
    slots, tokens, load = emit("expert_slots", chosen, name=name, **attrs)
    return slots, tokens, load


def mixture_of_experts(
    x: Blob,
    scores: Blob,
    experts: Callable[[BlobDef], BlobDef],
    k: int = 1,
    capacity_factor: float = 1.25,
    groups: int | None = None,
) -> tuple[BlobDef, BlobDef, BlobDef]:
    """Send each token to the ``k`` experts with the highest scores, and add their weighted results.

    A result is weighted by the expert's softmax score with ``k = 1`` (Fedus et al., 2021, "Switch
    Transformer"); with more, by its share of the scores of the chosen experts (Lepikhin et al.,
    2020, "GShard").  Of equal scores, that of the lower expert counts as the higher one.

    Consecutive tokens form groups.  In each group, an expert has ``ceil(k * tokens_of_group *
    capacity_factor / num_experts)`` slots, at most one per token.  The choices of a token that get
    no slot contribute zeros; a residual connection then passes the token on.  The groups determine
    which choices these are, and not the devices: a layout that splits tokens must give each device
    whole groups.  If the weights that ``experts`` uses are split by experts, the devices exchange
    rows by all-to-all.

    Args:
        x: a floating-point blob of shape (..., width): tokens.
        scores: a floating-point blob of shape (..., num_experts): scores of the experts for each
            token, before the softmax.
        experts: function that applies the experts to a blob of shape (num_experts, rows, width),
            row by row, and returns a blob of shape (num_experts, rows, any width).  Rows of empty
            slots are zeros, and their results are not used.
        k: number of experts for each token.
        capacity_factor: the ratio of all slots to all choices, at least; positive.
        groups: number of groups, a divisor of the number of tokens; by default the size of axis 0
            of ``x`` if it has three axes or more, else 1.

    Returns:
        The results, of shape (..., any width); the balance loss, in the element type of ``scores``;
        and the number of choices without a slot, int32; the last two of shape (1,).  The balance
        loss is the mean over the groups of ``num_experts * sum(f * p)``, with f the fraction of
        first choices and p the mean softmax score of each expert: 1 for equal loads.  Added to the
        loss with a small factor, such as 0.01, it evens out the load.  A NaN in the scores of a
        token is in its results and in the balance loss.

    Raises: InferenceError: the shapes, ``k``, ``groups`` or the result of ``experts`` do not fit.

    >>> def mixture(x):
    ...     return flow.nn.mixture_of_experts(x, 100 * x, lambda rows: -rows, capacity_factor=2)
    >>> run(mixture, [[1, 0], [0, 2], [3, 1]])[0]
    array([[-1., -0.],
           [-0., -2.],
           [-3., -1.]], dtype=float32)
    """
    x, scores = checked_blob(x, _FUNCTION), checked_blob(scores, _FUNCTION)
    count, size = _groups(x, scores, k, groups)
    check_numbers(f"flow.nn.{_FUNCTION}", capacity_factor=capacity_factor)
    number, factor = scores.shape[-1], float(capacity_factor)
    _check(factor > 0, _FUNCTION, f"capacity_factor={factor}", "a positive number")
    capacity = max(1, min(size, ceil(k * size * factor / number)))
    shares = softmax(reshape(scores, (count, size, number)))
    chosen = _best(shares, k)
    slots, tokens, load = expert_slots(transpose(chosen, (0, 2, 1)), number, capacity)
    rows = gather(reshape(x, (count, size, x.shape[-1])), _flat(tokens), batch_dims=1)
    found = _applied(experts, rows, number)
    weights = gather(shares, chosen, batch_dims=2)
    if k > 1:
        weights = emit_one("broadcast_div", weights, reduce_sum(weights, -1, True))
    y = _combined(found, slots, cast(weights, found.dtype))
    balance_loss = _balance_loss(shares, load, size)
    return reshape(y, (*x.shape[:-1], found.shape[-1])), balance_loss, _dropped(load, capacity)


def _groups(x: BlobDef, scores: BlobDef, k: int, groups: int | None) -> tuple[int, int]:
    """Check the arguments; return the number of groups, and of the tokens in each group."""
    found = f"x {x.shape} {x.dtype.name} and scores {scores.shape} {scores.dtype.name}"
    fits = len(x.shape) > 1 and x.shape[:-1] == scores.shape[:-1]
    fits = fits and x.dtype.is_floating and scores.dtype.is_floating and scores.shape[-1] > 0
    _check(fits, _FUNCTION, found, "floating-point blobs (..., width) and (..., experts)")
    number = scores.shape[-1]
    within = isinstance(k, Integral) and not isinstance(k, bool) and 1 <= k <= number
    _check(within, _FUNCTION, f"k={k!r:.60}", f"an integer from 1 to {number}, the experts")
    tokens = prod(x.shape[:-1])
    if groups is None:
        groups = x.shape[0] if len(x.shape) > 2 else 1
    whole = isinstance(groups, Integral) and not isinstance(groups, bool) and groups > 0
    allowed = f"a divisor of {tokens}, the number of tokens"
    _check(whole and tokens % groups == 0, _FUNCTION, f"groups={groups!r:.60}", allowed)
    return groups, tokens // groups


def _best(shares: BlobDef, k: int) -> BlobDef:
    """Return the experts with the largest shares: (groups, tokens, k)."""
    if k == 1:
        return expand_dims(emit_one("argmax", shares), 2)
    return top_k(shares, k=k)


def _flat(x: BlobDef) -> BlobDef:
    return reshape(x, (x.shape[0], prod(x.shape[1:])))


def _applied(experts: Callable[[BlobDef], BlobDef], rows: BlobDef, number: int) -> BlobDef:
    """Apply the experts to the rows of all slots (groups, slots, width), and return their rows."""
    groups, slots, width = rows.shape
    capacity = slots // number
    parts = transpose(reshape(rows, (groups, number, capacity, width)), (1, 0, 2, 3))
    allowed = "a function of a blob (experts, rows, width)"
    _check(callable(experts), _FUNCTION, f"experts={experts!r:.60}", allowed)
    y = experts(reshape(parts, (number, groups * capacity, width)))
    fits = isinstance(y, BlobDef) and len(y.shape) == 3
    fits = fits and y.shape[:2] == (number, groups * capacity) and y.dtype.is_floating
    allowed = f"a floating-point blob of shape {(number, groups * capacity, 'any width')}"
    _check(fits, _FUNCTION, f"experts gave {y!r:.100}", allowed)
    parts = reshape(y, (number, groups, capacity, y.shape[2]))
    return reshape(transpose(parts, (1, 0, 2, 3)), (groups, slots, y.shape[2]))


def _combined(rows: BlobDef, slots: BlobDef, weights: BlobDef) -> BlobDef:
    """Return the weighted sums of the rows (groups, slots, width) of each token's choices."""
    groups, k, size = slots.shape
    found = reshape(gather(rows, _flat(slots), batch_dims=1), (groups, k, size, rows.shape[2]))
    factors = expand_dims(transpose(weights, (0, 2, 1)), 3)
    products = emit_one("broadcast_mul", found, factors)
    return reduce_sum(products, 1) if k > 1 else reshape(products, (groups, size, rows.shape[2]))


def _balance_loss(shares: BlobDef, load: BlobDef, size: int) -> BlobDef:
    groups, _, number = load.shape
    first = reshape(slice_v2(load, [(None, None, None), (0, 1, 1)]), (groups, number))
    fractions = multiply(cast(first, shares.dtype), 1 / max(size, 1))
    products = multiply(fractions, reduce_mean(shares, 1))
    return multiply(reduce_mean(reduce_sum(products, 1)), float(number))


def _dropped(load: BlobDef, capacity: int) -> BlobDef:
    beyond: Any = reduce_sum(load, 1) - capacity
    return reduce_sum(maximum(beyond, 0))
