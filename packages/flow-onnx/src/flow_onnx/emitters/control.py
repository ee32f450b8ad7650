"""Emitters of branches and loops, whose bodies become graphs within the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from onnx import helper

from flow_onnx.emission import Emission
from flow_onnx.types import ELEMENT_TYPES


def _cond(e: Emission) -> tuple[str, ...]:
    on = e.node("Cast", e.x, to=ELEMENT_TYPES["bool"])
    inputs = e.inputs[1:]
    branches = {
        "then_branch": e.body("then", inputs, 0),
        "else_branch": e.body("otherwise", inputs, 0),
    }
    return tuple(e.nodes("If", on, outputs=len(e.outputs), **branches))


def _scan(e: Emission) -> tuple[str, ...]:
    carries, length = e.attr("carries"), e.attr("length")
    own = carries + e.attr("sequences")
    if length == 0:
        rows = [e.const(np.zeros(t.shape), t.dtype) for t in e.outputs[carries:]]
        return *e.inputs[:carries], *rows
    names = [e.network.unique(f"{e.op.name}/input:{i}") for i in range(own)]
    body, given = e.body("body", [*names, *e.inputs[own:]], own), e.inputs[:own]
    if own == carries:  # ONNX has no loops without a sequence
        position = e.network.unique(f"{e.op.name}/position")
        body.input.append(helper.make_tensor_value_info(position, ELEMENT_TYPES["int8"], ()))
        given = (*given, e.const(np.zeros(length), "int8"))
    backward = int(e.attr("reverse"))
    count, stacked = len(given) - carries, len(e.outputs) - carries
    return tuple(
        e.nodes(
            "Scan",
            *given,
            outputs=len(e.outputs),
            body=body,
            num_scan_inputs=count,
            scan_input_directions=[backward] * count,
            scan_output_directions=[backward] * stacked,
        )
    )


EMITTERS: Mapping[str, Callable[[Emission], tuple[str, ...]]] = {
    "cond": _cond, "random_cond": _cond, "scan": _scan, "random_scan": _scan,
}  # fmt: skip
