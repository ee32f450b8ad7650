"""The numpy kernels take sizes of 0 wherever inference allows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from flow_core.base.dtypes import float32
from flow_core.base.errors import DataError, FlowError
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import KernelQuery, Sample
from flow_core.testing.checks import cast_sample, evaluate_op, query, run_kernel
from flow_core.testing.kit import floating_inputs, is_castable
from flow_core.testing.prover_cases import NONSENSE, replaced

SPECS = default_registry().ops
KERNELS = {
    spec.type: kernel
    for spec in SPECS.values()
    for kernel in default_registry().kernels(spec.type, "cpu")
    if kernel.name == f"numpy.{spec.type}" and spec.samples and spec.reference and not spec.internal
}
COMBINED = ("matmul_onto", "summed_", "scan", "random_scan", "cond", "random_cond")
"""Ops whose kernels bind those of other ops, which need a registry."""


def emptied(op: str, sample: Sample) -> Iterator[tuple[KernelQuery, list[Any]]]:
    """Yield a sample with one of its sizes replaced by 0, also in its attributes."""
    castable = floating_inputs(sample) and is_castable(sample, float32)
    own = cast_sample(sample, float32) if castable else [np.asarray(x) for x in sample.inputs]
    for size in sorted({n for x in own for n in x.shape if n > 1}):
        arrays = [
            np.zeros([0 if n == size else n for n in x.shape], x.dtype) if size in x.shape else x
            for x in own
        ]
        for attrs in (sample.attrs, {k: replaced(v, {size: 0}) for k, v in sample.attrs.items()}):
            try:
                asked = query(SPECS[op], arrays, attrs)
            except FlowError:
                continue
            yield asked, arrays
            break


@pytest.mark.parametrize("op", [op for op in KERNELS if not op.startswith(COMBINED)])
def test_a_size_of_zero(op: str) -> None:
    kernel = KERNELS[op]
    for sample in SPECS[op].samples(np.random.default_rng(0)):
        for asked, arrays in emptied(op, sample):
            if kernel.accepts is not None and not kernel.accepts(asked):
                continue
            try:
                found = run_kernel(kernel, asked, [x.copy() for x in arrays])
            except DataError:
                continue
            try:
                expected = evaluate_op(SPECS[op], asked, arrays)
            except (AssertionError, *NONSENSE):
                continue  # some references lack the mean or extreme of nothing
            for a, b in zip(found, expected, strict=False):
                np.testing.assert_allclose(a, b, 1e-4, 1e-5, err_msg=f"{op} {asked}")
