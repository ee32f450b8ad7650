"""Matrix products beyond the kernel kit."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from flow_core.base.errors import InferenceError
from flow_core.builtin.numpy_kernels.math.matmul import KERNELS
from flow_core.ops.math.matmul import OPS
from flow_core.plugins.specs import BindContext, SbpContext
from flow_core.testing.checks import query

SPECS = {spec.type: spec for spec in OPS}


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_transposed_operands_are_not_copied(transpose_a: bool, transpose_b: bool) -> None:
    a = np.ones((90, 70) if transpose_a else (70, 90), np.float32)
    b = np.ones((110, 90) if transpose_b else (90, 110), np.float32)
    out = np.empty((70, 110), np.float32)
    flags = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    asked = query(SPECS["matmul"], (a, b), flags)
    bound = KERNELS[0].load(BindContext(asked, (a, b), (out,)))  # type: ignore[operator]
    assert _peak_bytes(bound[0]) < 4096
    np.testing.assert_array_equal(out, 90)


def _peak_bytes(launch: Any) -> int:
    launch()
    tracemalloc.start()
    launch()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    launch()
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    return peak


def test_matmul_has_the_six_one_dimensional_signatures() -> None:
    asked = query(SPECS["matmul"], (np.ones((2, 3)), np.ones((3, 4))), {})
    rules = SPECS["matmul"].sbp(SbpContext(asked.inputs, asked.outputs, asked.attrs))
    assert sorted(map(str, rules)) == [
        "(B, P) -> P",
        "(B, S(1)) -> S(1)",
        "(P, B) -> P",
        "(S(0), B) -> S(0)",
        "(S(1), S(0)) -> P",
    ]


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "words"),
    [
        ("matmul", ((2, 3), (4, 5)), {}, "inner sizes 3 and 4"),
        ("matmul", ((2, 3), (2, 3)), {"transpose_a": True, "transpose_b": True}, "sizes 2 and 3"),
        ("matmul", ((2, 2, 3), (2, 3, 4)), {}, "two matrices"),
        ("batch_matmul", ((2, 2, 3), (3, 3, 4)), {}, "equal leading axes"),
        ("bias_add", ((2, 3), (2,)), {"axis": 1}, r"a bias of shape \(3,\)"),
        ("bias_add", ((2, 3), (3,)), {"axis": 2}, "out of range"),
    ],
)
def test_wrong_shapes_are_rejected(op: str, shapes: Any, attrs: Any, words: str) -> None:
    with pytest.raises(InferenceError, match=words):
        query(SPECS[op], [np.ones(s) for s in shapes], attrs)
