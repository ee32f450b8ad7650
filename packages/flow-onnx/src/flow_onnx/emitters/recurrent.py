"""Emitters of recurrent layers: the nodes of all positions.

The operators ``LSTM`` and ``GRU`` of ONNX multiply the input by its weight themselves, which the
ops here leave to a product before them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flow_onnx.emission import Emission


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
