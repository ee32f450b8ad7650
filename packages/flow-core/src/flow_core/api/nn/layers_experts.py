"""``flow.layers``: a mixture of experts in the place of a feed-forward layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import sqrt
from numbers import Integral
from typing import Any

from flow_core.api.array.initializers import (
    random_uniform_initializer,
    xavier_uniform_initializer,
    zeros_initializer,
)
from flow_core.api.array.shape import expand_dims
from flow_core.api.math.binary import cast
from flow_core.api.math.linalg import matmul
from flow_core.api.math.unary import relu
from flow_core.api.nn import experts as nn_experts
from flow_core.api.nn.layers_common import (
    BROADCAST,
    DefaultName,
    activated,
    check,
    check_input,
    layer_name,
    new_variable,
)
from flow_core.api.session.distribute import Distribution, broadcast, split
from flow_core.base.dtypes import DType
from flow_core.frontend.config.scope import name_scope
from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.emit import emit_one
from flow_core.frontend.trace.sbp_hints import hierarchical_parallel_cast, parallel_cast
from flow_core.ir.initializers import Initializer

__all__ = ["mixture_of_experts"]

_FUNCTION = "mixture_of_experts"
Cast = Callable[[BlobDef], BlobDef]


def mixture_of_experts(
    inputs: Blob,
    num_experts: int,
    hidden_units: int,
    units: int | None = None,
    k: int = 1,
    capacity_factor: float = 1.25,
    groups: int | None = None,
    activation: Callable[..., BlobDef] | None = relu,
    use_bias: bool = True,
    gate_dtype: DType | None = None,
    kernel_initializer: Initializer | None = None,
    trainable: bool = True,
    name: str = DefaultName("MixtureOfExperts"),
    model_distribute: Distribution = BROADCAST,
    parallel_distribution: Sequence[str] | None = None,
) -> tuple[BlobDef, BlobDef, BlobDef]:
    """Send each token through ``k`` of many feed-forward networks of two layers, its experts.

    A dense layer without bias, the gate, gives each token a score for each expert; see
    ``flow.nn.mixture_of_experts`` for what follows.

    Variables: ``gate-weight`` (num_experts, width), ``up-weight`` (num_experts, hidden_units,
    width), ``down-weight`` (num_experts, units, hidden_units) and, with ``use_bias``, ``up-bias``
    (num_experts, hidden_units) and ``down-bias`` (num_experts, units).

    Args:
        inputs: a floating-point blob of shape (..., width): tokens.
        num_experts: number of experts.
        hidden_units: size of the layer between the two weights of an expert.
        units: size of the last axis of the result, by default that of ``inputs``.
        k: number of experts for each token.
        capacity_factor: the ratio of all slots of the experts to all choices, at least.
        groups: number of groups of tokens, whose slots are separate; by default the size of axis 0
            if ``inputs`` have three axes or more, else 1.  Devices that split the tokens need a
            multiple of their number.
        activation: function that is applied between the two weights.
        use_bias: whether to add biases, zeros at first.
        gate_dtype: element type of the gate's product and softmax, by default that of ``inputs``.
            ``flow.double`` also keeps them out of the half type in mixed precision, and lets scores
            not depend on the number of devices.
        kernel_initializer: initializer of the weights; by default Xavier's uniform one, for each
            expert.
        model_distribute: distribution of the experts' variables: ``flow.distribute.split(0)``
            divides the experts among the devices.
        parallel_distribution: their SBP in each dimension of a grid, such as ``["B", "S(0)"]``,
            instead of ``model_distribute``.

    Returns:
        A blob of shape (..., units), the balance loss and the number of choices without a slot, the
        last two of shape (1,).

    >>> run(flow.layers.mixture_of_experts, np.ones((2, 5, 8)), 4, 16, k=2)[0].shape
    (2, 5, 8)
    """
    sizes = (num_experts, hidden_units, units)
    units = _checked_units(inputs, sizes)
    more = {"trainable": trainable}
    where: dict[str, Any] = {"distribute": model_distribute, **more}
    if parallel_distribution is not None:
        where = {"parallel_distribution": parallel_distribution, **more}
    dense = partial(_dense, initializer=kernel_initializer, use_bias=use_bias, where=where)

    to_experts, to_tokens = _casts(model_distribute, parallel_distribution)

    def experts(rows: BlobDef) -> BlobDef:
        hidden = activated(_FUNCTION, dense(to_experts(rows), "up", hidden_units), activation)
        return to_tokens(dense(hidden, "down", units))

    with name_scope(layer_name(name)):
        initializer, width = kernel_initializer or xavier_uniform_initializer(), inputs.shape[-1]
        gate = new_variable("gate-weight", (num_experts, width), inputs.dtype, initializer, **more)
        gate = cast(gate, inputs.dtype if gate_dtype is None else gate_dtype)
        if to_experts is not _unchanged:  # sums of devices are rounded to the variable's type last
            gate = parallel_cast(gate, gradient_distribute=broadcast())
        scores = matmul(cast(inputs, gate.dtype), gate, transpose_b=True)
        how = (k, capacity_factor, groups)
        return nn_experts.mixture_of_experts(inputs, scores, experts, *how)


def _unchanged(x: BlobDef) -> BlobDef:
    return x


def _casts(distribute: Distribution, texts: Sequence[str] | None) -> tuple[Cast, Cast]:
    """Return functions that send rows (experts, rows, width) to divided experts, and back.

    Outside of the experts, rows are divided by groups of tokens, and gradients as well.  Without
    these requests, a selector may prefer to move the small indices of rows, and to add up partial
    results of all devices.
    """
    if texts is None:
        if distribute.kind != "split":
            return _unchanged, _unchanged
        inside: Any = {"distribute": split(0), "gradient_distribute": split(1)}
        outside: Any = {"distribute": split(1), "gradient_distribute": split(0)}
        return partial(parallel_cast, **inside), partial(parallel_cast, **outside)
    if not any("S" in text for text in texts):
        return _unchanged, _unchanged
    by_rows = ["S(1)"] * len(texts)
    by_experts = [text if "S" in text else "S(1)" for text in texts]
    cast = partial(hierarchical_parallel_cast, grad_mode="manual")
    return (
        partial(cast, parallel_distribution=by_experts, grad_parallel_distribution=by_rows),
        partial(cast, parallel_distribution=by_rows, grad_parallel_distribution=by_experts),
    )


def _checked_units(inputs: Blob, sizes: tuple[int, int, int | None]) -> int:
    """Return the size of the last axis of the result, after a check of the arguments."""
    check_input(_FUNCTION, inputs)
    found = f"inputs {inputs.shape} {inputs.dtype.name}"
    fits = len(inputs.shape) > 1 and inputs.dtype.is_floating
    check(fits, _FUNCTION, found, "a floating-point blob of shape (..., width)")
    *first, units = sizes
    numbers = (*first, inputs.shape[-1] if units is None else units)
    positive = all(isinstance(n, Integral) and not isinstance(n, bool) and n > 0 for n in numbers)
    found = f"num_experts, hidden_units, units = {sizes!r:.80}"
    check(positive, _FUNCTION, found, "positive integers")
    return numbers[-1]


def _dense(
    x: BlobDef,
    name: str,
    units: int,
    initializer: Initializer | None,
    use_bias: bool,
    where: dict[str, Any],
) -> BlobDef:
    """Apply a dense layer of each expert to its rows (experts, rows, width)."""
    limit = sqrt(6 / (units + x.shape[2]))  # Xavier's; initializers know the sizes of one matrix
    chosen = initializer or random_uniform_initializer(-limit, limit)
    shape = (x.shape[0], units, x.shape[2])
    weight = new_variable(f"{name}-weight", shape, x.dtype, chosen, **where)
    y = emit_one("batch_matmul", x, weight, transpose_a=False, transpose_b=True)
    if not use_bias:
        return y
    bias = new_variable(f"{name}-bias", shape[:2], x.dtype, zeros_initializer(), **where)
    return emit_one("broadcast_add", y, expand_dims(bias, 1))
