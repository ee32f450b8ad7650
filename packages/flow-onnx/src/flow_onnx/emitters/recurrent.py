"""Emitters of recurrent layers: the operators ``LSTM`` and ``GRU``, or the nodes of all positions.

The operators multiply the input by its weight themselves, which the ops here leave to a product
before them: if there is one, it becomes part of the operator.  The operators return no activations,
and the cells of the last position only.  ONNX Runtime opens models of them in float64, but refuses
to run these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from flow_core.authoring.specs import Op, Value
from flow_onnx.emission import Emission

ORDERS: Mapping[str, Sequence[int]] = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2)}
"""The parts of the weights of the operators, as numbers of the parts of the ops."""


class _Product(NamedTuple):
    """The product ``x W + b`` before a layer."""

    x: Value  # a sequence of shape (batch, positions, width)
    weight: Value  # W, of shape (parts * units, width)
    bias: Sequence[Value]  # b, or nothing


def _product(e: Emission) -> _Product | None:
    """Return the product before a layer, or None if its input is computed otherwise."""
    parts = _maker(e, e.op.inputs[0], "reshape")
    total = parts and _maker(e, parts.inputs[0], "bias_add", "matmul")
    along_rows = total is not None and total.attrs.get("axis") in (1, -1)
    bias = total.inputs[1:] if total and along_rows else ()
    product = _maker(e, total.inputs[0], "matmul") if total and bias else total
    usual = {"transpose_a": False, "transpose_b": True, "alpha": 1.0}
    is_usual = product is not None and dict(product.attrs) == usual
    rows = _maker(e, product.inputs[0], "reshape") if product and is_usual else None
    if not product or not rows:
        return None
    x, weight = rows.inputs[0], product.inputs[1]
    whole = e.graph.type_of(x).shape == (*e.shape[:2], e.graph.type_of(weight).shape[1])
    return _Product(x, weight, bias) if whole else None


def _maker(e: Emission, value: Value, *types: str) -> Op | None:
    op = e.graph.ops[value.op]
    return op if op.type in types else None


def _only_last_is_read(e: Emission) -> bool:
    """Return whether all readers of the cells take those of the last position alone."""
    value, last = Value(e.op.name, 2), 0 if e.attr("reverse") else e.shape[1] - 1
    readers = [op for op in e.graph.ops.values() if value in op.inputs]
    return value not in e.graph.results and all(
        op.type == "slice" and (op.attrs["start"][1], op.attrs["stop"][1]) == (last, last + 1)
        for op in readers
    )


def _operator(e: Emission, kind: str) -> tuple[str, ...] | None:
    """Emit one operator; return None if it does not give all results that are used."""
    found, is_lstm = _product(e), kind == "LSTM"
    given = 2 not in e.used or (is_lstm and _only_last_is_read(e))
    if found is None or 0 in e.used or not given or e.dtype.name not in ("float16", "float32"):
        return None
    states = e.inputs[2:4] if is_lstm else e.inputs[2:3]
    own, recurrent = [e.names[v] for v in found.bias], e.inputs[2 + len(states) :]
    weights = [_ordered(e, kind, x) for x in (e.names[found.weight], e.inputs[1])]
    bias = ""
    if own or recurrent:
        zeros = e.const([[0.0] * e.shape[2]], e.dtype)
        biases = [_ordered(e, kind, *x) if x else zeros for x in (own, recurrent)]
        bias = e.node("Concat", *biases, axis=1)
    zero = all(_maker(e, v, "zero_like") for v in e.op.inputs[2 : 2 + len(states)])
    first = [] if zero else ["", *(e.node_with_axes("Unsqueeze", h, [0], 13) for h in states)]
    attrs = {} if is_lstm else {"linear_before_reset": 1}
    y, _, *c = e.nodes(
        kind, e.transpose(e.names[found.x], [1, 0, 2]), *weights, bias, *first,
        outputs=1 + len(states) if 2 in e.used else 2, hidden_size=e.types[1].shape[1],
        direction="reverse" if e.attr("reverse") else "forward", **attrs,
    )  # fmt: skip
    cells = [e.node("Expand", e.transpose(x, [1, 0, 2]), e.ints((1, e.shape[1], 1))) for x in c]
    return "", e.transpose(e.node_with_axes("Squeeze", y, [1], 13), [1, 0, 2]), *(cells or [""])


def _ordered(e: Emission, kind: str, weight: str) -> str:
    """Return a weight or bias with the operator's order of the parts, and a first axis of 1."""
    units = e.types[1].shape[1]
    parts = [e.slice(weight, [0], [k * units], [(k + 1) * units]) for k in ORDERS[kind]]
    return e.node_with_axes("Unsqueeze", e.node("Concat", *parts, axis=0), [0], 13)


def _positions(e: Emission) -> list[str]:
    """Return the parts of each position, in order."""
    count = e.shape[1]
    sections = [e.slice(e.x, [1], [t], [t + 1]) for t in range(count)]
    flat = [e.node_with_axes("Squeeze", x, [1], 13) for x in sections]
    return flat[::-1] if e.attr("reverse") else flat


def _split(e: Emission, x: str, count: int) -> list[str]:
    units = e.shape[2] // count
    return [e.slice(x, [1], [k * units], [(k + 1) * units]) for k in range(count)]


def _stacked(e: Emission, parts: Sequence[str]) -> str:
    found = [e.node_with_axes("Unsqueeze", x, [1], 13) for x in parts]
    return e.node("Concat", *(found[::-1] if e.attr("reverse") else found), axis=1)


def _lstm(e: Emission) -> tuple[str, ...]:
    whole = _operator(e, "LSTM")
    if whole:
        return whole
    _, recurrent, h, c = e.inputs
    weight, kept = e.transpose(recurrent, [1, 0]), []
    for x in _positions(e):
        total = e.node("Add", x, e.node("MatMul", h, weight))
        i, f, g, o = _split(e, total, 4)
        i, f, g, o = (e.node(kind, x) for kind, x in zip(_LSTM, (i, f, g, o), strict=True))
        c = e.node("Add", e.node("Mul", f, c), e.node("Mul", i, g))
        h = e.node("Mul", o, e.node("Tanh", c))
        kept.append((e.node("Concat", i, f, g, o, axis=1), h, c))
    return tuple(_stacked(e, parts) for parts in zip(*kept, strict=True))


_LSTM = ("Sigmoid", "Sigmoid", "Tanh", "Sigmoid")


def _gru(e: Emission) -> tuple[str, ...]:
    whole = _operator(e, "GRU")
    if whole:
        return whole
    _, recurrent, h, *bias = e.inputs
    weight, kept = e.transpose(recurrent, [1, 0]), []
    for x in _positions(e):
        own = e.node("MatMul", h, weight)
        for b in bias:
            own = e.node("Add", own, b)
        (r, z, n), (r_h, z_h, n_h) = _split(e, x, 3), _split(e, own, 3)
        r, z = (e.node("Sigmoid", e.node("Add", *pair)) for pair in ((r, r_h), (z, z_h)))
        n = e.node("Tanh", e.node("Add", n, e.node("Mul", r, n_h)))
        h = e.node("Add", n, e.node("Mul", z, e.node("Sub", h, n)))
        kept.append((e.node("Concat", r, z, n, axis=1), h, n_h))
    return tuple(_stacked(e, parts) for parts in zip(*kept, strict=True))


EMITTERS: Mapping[str, Callable[[Emission], tuple[str, ...]]] = {"lstm": _lstm, "gru": _gru}
