"""Recurrent layers in C: sizes beyond those of the samples, and results in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flow_core.ops.nn.recurrent import OPS
from flow_core.testing.checks import query, run_kernel
from flow_onednn import threads
from flow_onednn.kernels.concurrent import supported
from flow_onednn.kernels.recurrent import KERNELS

pytestmark = [
    pytest.mark.arithmetic,
    pytest.mark.skipif(not supported(), reason="needs oneDNN and a C compiler"),
]
SPECS = {spec.type: spec for spec in OPS}
BY_OP = {spec.op: spec for spec in KERNELS}


def arrays(kind: str, batch: int, positions: int, units: int) -> list[Any]:
    rng = np.random.default_rng(units)
    rows = units * (4 if kind == "lstm" else 3)
    last = (batch, units) if kind == "lstm" else (rows,)
    shapes = [(batch, positions, rows), (rows, units), (batch, units), last]
    scales = [1, 1 / np.sqrt(units), 1, 1]
    return [
        (rng.normal(size=shape) * scale).astype(np.float32)
        for shape, scale in zip(shapes, scales, strict=True)
    ]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("sizes", [(1, 3, 1), (5, 4, 17), (33, 3, 150)], ids=str)
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_results_and_gradients(kind: str, sizes: tuple[int, int, int], reverse: bool) -> None:
    given = arrays(kind, *sizes)
    wide = [x.astype(np.float64) for x in given]
    attrs = {"reverse": reverse}
    wanted = SPECS[kind].reference(*wide, **attrs)
    found = run_kernel(BY_OP[kind], query(SPECS[kind], given, attrs), given)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    gates, out, memory = wanted
    up = [np.cos(x) for x in (out, memory, gates)]
    own = [wide[3], memory] if kind == "lstm" else [wide[2], memory, out]
    inputs = [gates, wide[1], *own, *up]
    op = f"{kind}_grad"
    for count in (0, 1, 2):
        chosen = inputs[: len(inputs) - count]
        wanted = SPECS[op].reference(*chosen, **attrs)
        narrow = [x.astype(np.float32) for x in chosen]
        found = run_kernel(BY_OP[op], query(SPECS[op], narrow, attrs), narrow)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_the_number_of_threads_changes_no_bit(kind: str) -> None:
    given, pool, before = arrays(kind, 9, 3, 150), threads.runtime(), threads.count()
    found = []
    for count in (1, 2, 3):
        pool.omp_set_num_threads(count)
        try:
            found.append(run_kernel(BY_OP[kind], query(SPECS[kind], given, {}), given))
        finally:
            pool.omp_set_num_threads(before)
    for results in found[1:]:
        for one, other in zip(found[0], results, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_nonfinite_numbers_propagate(kind: str) -> None:
    given = arrays(kind, 2, 3, 4)
    given[0][0, 1] = np.nan
    given[0][1, 1] = np.inf
    _, out, _ = run_kernel(BY_OP[kind], query(SPECS[kind], given, {}), given)
    wanted = SPECS[kind].reference(*[x.astype(np.float64) for x in given], reverse=False)[1]
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-5)
    assert np.isnan(out[0, 1:]).all()
    assert np.isfinite(out[1]).all()
