"""Cases of ONNX's recurrent operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from onnx_cases.case import Case

BATCH, POSITIONS, WIDTH, UNITS = 2, 3, 4, 5
ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"]}


def recurrent_cases() -> Iterator[Case]:
    for op, parts in (("LSTM", 4), ("GRU", 3)):
        for dtype in ("float32", "float64", "float16"):
            for direction in ("forward", "reverse", "bidirectional"):
                yield layer(op, parts, dtype, {"direction": direction})
                yield layer(op, parts, dtype, {"direction": direction}, bias=False)
                yield layer(op, parts, dtype, {"direction": direction}, states=False)
        functions = ACTIVATIONS[op]
        for attrs in (
            {"activations": functions}, {"activations": ["Relu", *functions[1:]]}, {"clip": 1.5},
            {"hidden_size": UNITS + 1}, {"layout": 1},
        ):  # fmt: skip
            yield layer(op, parts, "float32", attrs)
        for lengths in ([POSITIONS] * BATCH, [POSITIONS, 1]):
            yield layer(op, parts, "float32", {}, lengths=np.array(lengths, np.int32))
    yield layer("GRU", 3, "float32", {"linear_before_reset": 0})
    yield layer("LSTM", 4, "float32", {"input_forget": 1})
    yield layer("LSTM", 4, "float32", {}, peepholes=True)


def layer(
    op: str, parts: int, dtype: str, given: dict[str, Any], bias: bool = True, states: bool = True,
    lengths: Any = None, peepholes: bool = False,
) -> Case:  # fmt: skip
    rng, rows = np.random.default_rng(3), parts * UNITS
    count = 2 if given.get("direction") == "bidirectional" else 1
    first = (BATCH, count) if given.get("layout") else (count, BATCH)
    x = (BATCH, POSITIONS) if given.get("layout") else (POSITIONS, BATCH)

    def draw(*shape: int) -> Any:
        return rng.uniform(-1, 1, shape).astype(dtype)

    inputs = [draw(*x, WIDTH), draw(count, rows, WIDTH), draw(count, rows, UNITS)]
    inputs += [draw(count, 2 * rows) if bias else None, lengths]
    inputs += [draw(*first, UNITS) if states else None] * (parts - 2)
    if peepholes:
        inputs.append(draw(count, 3 * UNITS))
    more = {"linear_before_reset": 1} if op == "GRU" else {}
    opsets = (14 if "layout" in given else 7, 99)
    attrs = {"hidden_size": UNITS, **more, **given}
    return Case(op, tuple(inputs), attrs, outputs=parts - 1, opsets=opsets)
