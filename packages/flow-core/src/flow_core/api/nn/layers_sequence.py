"""``flow.layers`` for sequences: embedding, attention, norm and gated units of transformers, and
recurrent layers.

Args:
    inputs: a floating-point blob of shape (batch, positions, width).
    reverse: whether to go from the last position to the first.
    use_bias: whether to add biases, zeros at first.
    kernel_initializer, recurrent_initializer: initializers of the weights, by default Xavier's
        uniform one.
    trainable: whether optimizers update the variables.
    name: name of the layer.

Raises:
    InferenceError: the arguments do not fit.
    VariableError: the job already has a layer of this name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flow_core.api.array.index import gather
from flow_core.api.array.initializers import (
    ones_initializer,
    random_normal_initializer,
    xavier_uniform_initializer,
    zeros_initializer,
)
from flow_core.api.array.select import slice_v2
from flow_core.api.array.shape import reshape, squeeze, transpose
from flow_core.api.nn import attention as nn_attention
from flow_core.api.nn.activation import swish
from flow_core.api.nn.basic import bias_add
from flow_core.api.nn.layers import dense
from flow_core.api.nn.layers_common import (
    BROADCAST,
    DefaultName,
    check,
    check_input,
    layer_axis,
    layer_name,
    new_variable,
)
from flow_core.api.session.distribute import Distribution
from flow_core.base.dtypes import DType, float32
from flow_core.frontend.config.scope import name_scope
from flow_core.frontend.trace.blob import Blob, BlobDef, checked_blob
from flow_core.frontend.trace.emit import emit, emit_one
from flow_core.ir.initializers import Initializer

__all__ = ["embedding", "gru", "lstm", "multi_head_attention", "rms_norm", "swiglu"]


def embedding(
    inputs: Blob,
    num_embeddings: int,
    embedding_dim: int,
    initializer: Initializer | None = None,
    dtype: DType = float32,
    trainable: bool = True,
    name: str = DefaultName("Embedding"),
    model_distribute: Distribution = BROADCAST,
) -> BlobDef:
    """Replace each integer by the row of a table of weights that it numbers.

    Variable: ``weight`` (num_embeddings, embedding_dim).

    Args:
        inputs: integers; those out of range read zeros.
        num_embeddings: number of rows.
        embedding_dim: number of columns.
        initializer: initializer of the weight, by default a normal distribution with the standard
            deviation 0.02.
        dtype: floating-point type of the weight.
        model_distribute: distribution of the weight.

    Returns: A blob of shape (*inputs.shape, embedding_dim).

    Raises:
        InferenceError: ``inputs`` are no integers, or a size is not positive.
        VariableError: the job already has a layer of this name.

    >>> run(flow.layers.embedding, np.array([7, 0]), 10, 3, flow.ones_initializer())
    array([[1., 1., 1.],
           [1., 1., 1.]], dtype=float32)
    """
    check_input("embedding", inputs)
    check(inputs.dtype.kind in "iu", "embedding", f"{inputs}", "integers, the numbers of rows")
    sizes = (num_embeddings, embedding_dim)
    positive = all(isinstance(n, int) and n > 0 for n in sizes)
    check(positive, "embedding", f"sizes {sizes}", "two positive integers")
    with name_scope(layer_name(name)):
        weight = new_variable(
            "weight", sizes, dtype, initializer or random_normal_initializer(0, 0.02),
            trainable=trainable, distribute=model_distribute,
        )  # fmt: skip
        return gather(weight, inputs, name="gather")


def rms_norm(
    inputs: Blob,
    epsilon: float = 1e-6,
    axis: int = -1,
    trainable: bool = True,
    name: str = DefaultName("RMSNorm"),
) -> BlobDef:
    """Divide by the root of the mean square along an axis, and scale; see ``flow.nn.rms_norm``.

    Variable: ``gamma`` (inputs.shape[axis],), ones.

    Args:
        inputs: a floating-point blob.
        epsilon: added to the mean square.
        axis: the axis.

    Returns: A blob of the shape and element type of ``inputs``.

    Raises: InferenceError: the axis is out of range.

    >>> run(flow.layers.rms_norm, [[3, 4]]).round(4)
    array([[0.8485, 1.1314]], dtype=float32)
    """
    size = inputs.shape[layer_axis("rms_norm", inputs, axis)]
    with name_scope(layer_name(name)):
        gamma = new_variable(
            "gamma", (size,), inputs.dtype, ones_initializer(), trainable=trainable
        )
        return nn_attention.rms_norm(inputs, gamma, axis, epsilon)


def swiglu(
    inputs: Blob,
    hidden_units: int,
    units: int | None = None,
    use_bias: bool = False,
    kernel_initializer: Initializer | None = None,
    trainable: bool = True,
    name: str = DefaultName("SwiGLU"),
) -> BlobDef:
    """Apply the gated feed-forward layer ``(swish(x W) * x V) U`` (Shazeer, 2020).

    Variables: the weights and, with ``use_bias``, the biases of the dense layers ``gate`` (W),
    ``up`` (V) and ``down`` (U): ``gate-weight`` (hidden_units, inputs.shape[-1]) and so on.

    Args:
        inputs: a floating-point blob of rank 2 or more.
        hidden_units: the number of gated units.
        units: size of the last axis of the result, by default that of ``inputs``.

    Returns: A blob of shape (*inputs.shape[:-1], units).

    >>> ones = flow.ones_initializer()
    >>> run(flow.layers.swiglu, [[0.5, 0.5]], 4, kernel_initializer=ones).round(4)
    array([[2.9242, 2.9242]], dtype=float32)
    """
    check_input("swiglu", inputs)
    more = _dense_arguments(use_bias, kernel_initializer, trainable)
    with name_scope(layer_name(name)):
        gate = dense(inputs, hidden_units, name="gate", **more)
        up = dense(inputs, hidden_units, name="up", **more)
        return dense(swish(gate) * up, units or inputs.shape[-1], name="down", **more)


def _dense_arguments(use_bias: bool, initializer: Initializer | None, trainable: bool) -> Any:
    kernel = initializer or xavier_uniform_initializer()
    return {"use_bias": use_bias, "kernel_initializer": kernel, "trainable": trainable}


def multi_head_attention(
    inputs: Blob,
    num_heads: int,
    memory: Blob | None = None,
    num_key_value_heads: int | None = None,
    head_size: int | None = None,
    units: int | None = None,
    mask: Blob | None = None,
    causal: bool = False,
    rotary_base: float | None = None,
    dropout_rate: float = 0.0,
    use_bias: bool = True,
    kernel_initializer: Initializer | None = None,
    trainable: bool = True,
    name: str = DefaultName("MultiHeadAttention"),
) -> BlobDef:
    """Attend from each position to positions of the same or another sequence, with several heads.

    Queries, keys and values are dense layers of the inputs, and go through ``flow.nn.attention``; a
    dense layer of the heads' results side by side is the result (Vaswani et al., 2017).

    Variables: weights and biases of the dense layers ``query``, ``key``, ``value`` and ``out``,
    such as ``query-weight`` (num_heads * head_size, inputs.shape[-1]).

    Args:
        num_heads: number of heads.
        memory: what is attended to, shape (batch, keys, any width); by default ``inputs``.
        num_key_value_heads: number of heads of keys and values, a divisor of ``num_heads``, which
            is the default.
        head_size: features of a head, by default ``width / num_heads``.
        units: size of the last axis of the result, by default the width.
        mask, causal: which keys are seen; see ``flow.nn.attention``.
        rotary_base: with a number, such as 10000, queries and keys are rotated by their positions;
            see ``flow.nn.rotary_embedding``.
        dropout_rate: the rate at which weights of attention are dropped in train jobs.

    Returns: A blob of shape (batch, positions, units).

    >>> run(flow.layers.multi_head_attention, np.ones((2, 5, 8)), 2, rotary_base=10000).shape
    (2, 5, 8)
    """
    source = inputs if memory is None else checked_blob(memory, "multi_head_attention")
    few = num_heads if num_key_value_heads is None else num_key_value_heads
    size = _head_size(inputs, source, num_heads, few, head_size)
    more = _dense_arguments(use_bias, kernel_initializer, trainable)
    with name_scope(layer_name(name)):
        q = _heads(dense(inputs, num_heads * size, name="query", **more), num_heads)
        k = _heads(dense(source, few * size, name="key", **more), few)
        v = _heads(dense(source, few * size, name="value", **more), few)
        if rotary_base is not None:
            q, k = (nn_attention.rotary_embedding(x, rotary_base) for x in (q, k))
        y = nn_attention.attention(q, k, v, mask, causal, dropout_rate)
        y = reshape(transpose(y, (0, 2, 1, 3)), (*inputs.shape[:2], num_heads * size))
        return dense(y, units or inputs.shape[2], name="out", **more)


def _head_size(inputs: Blob, source: Blob, num_heads: int, few: int, head_size: int | None) -> int:
    """Return the number of features of a head, after a check of the arguments."""
    function = "multi_head_attention"
    check_input(function, inputs)
    shapes = f"inputs {inputs.shape} and memory {source.shape}"
    ranked = len(inputs.shape) == len(source.shape) == 3
    check(ranked, function, shapes, "shape (batch, positions, width)")
    fits = num_heads > 0 and few > 0 and num_heads % few == 0
    found = f"num_heads={num_heads}, num_key_value_heads={few}"
    check(fits, function, found, "positive numbers, of which the second divides the first")
    width = inputs.shape[2]
    fits = head_size is not None or width % num_heads == 0
    check(fits, function, f"{num_heads} heads for width {width}", "a divisor", "pass head_size=")
    return head_size or width // num_heads


def _heads(x: BlobDef, heads: int) -> BlobDef:
    """Return (batch, heads, positions, features) of (batch, positions, heads * features)."""
    batch, positions, width = x.shape
    return transpose(reshape(x, (batch, positions, heads, width // heads)), (0, 2, 1, 3))


# ------------------------------------------------------------------------------ recurrent layers


def lstm(
    inputs: Blob,
    units: int,
    initial_state: tuple[Blob, Blob] | None = None,
    reverse: bool = False,
    use_bias: bool = True,
    kernel_initializer: Initializer | None = None,
    recurrent_initializer: Initializer | None = None,
    trainable: bool = True,
    name: str = DefaultName("LSTM"),
) -> tuple[BlobDef, tuple[BlobDef, BlobDef]]:
    """Apply a long short-term memory to a sequence (Hochreiter and Schmidhuber, 1997; Gers et al.,
    2000).

    With ``i, f, g, o`` the four parts of ``x W + h R + b``: ``c = sigmoid(f) c + sigmoid(i)
    tanh(g)`` and ``h = sigmoid(o) tanh(c)``, from position to position.  One op computes all
    positions; plans for devices without a kernel for it have the ops of each position.

    Variables: ``weight`` (4 * units, width), ``recurrent-weight`` (4 * units, units) and ``bias``
    (4 * units,), in the order i, f, g, o as in torch, whose two biases are added here.

    Args:
        units: size of h and c.
        initial_state: h and c before the first position, shape (batch, units); by default zeros.

    Returns:
        h of all positions, of shape (batch, positions, units), and the pair of the last h and c.

    >>> run(flow.layers.lstm, np.ones((2, 5, 3)), 4)[0].shape
    (2, 5, 4)
    """
    initializers = kernel_initializer, recurrent_initializer
    with name_scope(layer_name(name)):
        x, recurrent, _ = _projected("lstm", inputs, units, initializers, use_bias, trainable)
        states = _initial("lstm", initial_state, 2, x, units)
        _, outputs, memory = emit("lstm", x, recurrent, *states, reverse=reverse)
        return outputs, (_last(outputs, reverse), _last(memory, reverse))


def gru(
    inputs: Blob,
    units: int,
    initial_state: Blob | None = None,
    reverse: bool = False,
    use_bias: bool = True,
    kernel_initializer: Initializer | None = None,
    recurrent_initializer: Initializer | None = None,
    trainable: bool = True,
    name: str = DefaultName("GRU"),
) -> tuple[BlobDef, BlobDef]:
    """Apply a gated recurrent unit to a sequence (Cho et al., 2014), in the form of cuDNN.

    With ``r, z, n`` the three parts of ``x W + b``, and ``r', z', n'`` those of ``h R + b'``: ``z =
    sigmoid(z + z')`` and ``h = (1 - z) tanh(n + sigmoid(r + r') n') + z h``, from position to
    position.  As for `lstm`, it is one op.
    Variables: ``weight`` (3 * units, width), ``recurrent-weight`` (3 * units, units), ``bias`` and
    ``recurrent-bias`` (3 * units,), in the order r, z, n as in torch.

    Args:
        units: size of h.
        initial_state: h before the first position, shape (batch, units); by default zeros.

    Returns: h of all positions, of shape (batch, positions, units), and the last h.

    >>> run(flow.layers.gru, np.ones((2, 5, 3)), 4)[0].shape
    (2, 5, 4)
    """
    initializers = kernel_initializer, recurrent_initializer
    given = None if initial_state is None else (initial_state,)
    with name_scope(layer_name(name)):
        x, recurrent, bias = _projected("gru", inputs, units, initializers, use_bias, trainable)
        states = _initial("gru", given, 1, x, units)
        more = [] if bias is None else [bias]
        _, outputs, _ = emit("gru", x, recurrent, *states, *more, reverse=reverse)
        return outputs, _last(outputs, reverse)


_PARTS = {"gru": 3, "lstm": 4}
"""The number of parts of the weights of recurrent layers."""


def _last(outputs: BlobDef, reverse: bool) -> BlobDef:
    """Return the result of the position that came last."""
    last = 0 if reverse else outputs.shape[1] - 1
    return squeeze(slice_v2(outputs, [(None,) * 3, (last, last + 1, 1)]), [1])


def _times(x: BlobDef, weight: BlobDef) -> BlobDef:
    return emit_one("matmul", x, weight, transpose_a=False, transpose_b=True)


def _projected(
    function: str,
    inputs: Blob,
    units: int,
    initializers: tuple[Initializer | None, Initializer | None],
    use_bias: bool,
    trainable: bool,
) -> tuple[BlobDef, BlobDef, BlobDef | None]:
    """Create the variables of a recurrent layer.

    Returns:
        ``x W + b`` of all positions, the recurrent weight, and the recurrent bias of a GRU.
    """
    check_input(function, inputs)
    shape = inputs.shape
    check(len(shape) == 3, function, f"inputs of shape {shape}", "shape (batch, positions, width)")
    check(units > 0, function, f"units={units}", "a positive integer")
    own, recurrent = (given or xavier_uniform_initializer() for given in initializers)
    rows, kind, more = _PARTS[function] * units, inputs.dtype, {"trainable": trainable}
    weight = new_variable("weight", (rows, shape[2]), kind, own, **more)
    weights = new_variable("recurrent-weight", (rows, units), kind, recurrent, **more)
    x, bias, zeros = _times(reshape(inputs, (-1, shape[2])), weight), None, zeros_initializer()
    if use_bias:
        x = bias_add(x, new_variable("bias", (rows,), kind, zeros, **more))
    if use_bias and function == "gru":
        bias = new_variable("recurrent-bias", (rows,), kind, zeros, **more)
    return reshape(x, (*shape[:2], rows)), weights, bias


def _initial(
    function: str, given: Any, count: int, gates: BlobDef, units: int
) -> Sequence[BlobDef]:
    """Return the states before the first position."""
    shape = (gates.shape[0], units)
    if given is None:
        part = slice_v2(gates, [(None,) * 3, (0, 1, 1), (0, units, 1)])
        return [emit_one("zero_like", squeeze(part, [1]))] * count
    several = isinstance(given, list | tuple) and len(given) == count
    check(several, function, f"initial_state={given!r:.60}", f"{count} blobs of shape {shape}")
    states = [checked_blob(x, function) for x in given]
    fits = all(x.shape == shape and x.dtype is gates.dtype for x in states)
    check(fits, function, f"initial_state {states}", f"{count} blobs of shape {shape}")
    return states
