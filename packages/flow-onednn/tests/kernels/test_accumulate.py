"""An accumulating product has the bits of a product and a separate addition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flow_core.base.dtypes import float32
from flow_core.ir.graph import Attrs, tensor_type
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import KernelQuery, KernelSpec
from flow_core.testing.checks import run_kernel
from flow_onednn.kernels import accumulate
from flow_onednn.kernels.accumulate import ONTO, Accumulating, build_accumulating
from flow_onednn.library import Missing, state
from flow_onednn.recipes import problem

_STATE = state()
pytestmark = pytest.mark.skipif(
    isinstance(_STATE, Missing), reason=f"no oneDNN: {getattr(_STATE, 'reason', '')}"
)

SHAPES = [(512, 25, 784), (10, 25, 512), (17, 3, 33), (64, 100, 256), (784, 400, 512)]


def query(op: str, rows: int, deep: int, columns: int, **attrs: Any) -> KernelQuery:
    """Return the gradient of a weight: both operands have one row per example."""
    shapes = ((deep, rows), (deep, columns), *([(rows, columns)] if op == ONTO else []))
    plain = {"transpose_a": True, "transpose_b": False, "alpha": 1.0, **attrs}
    types = tuple(tensor_type(shape, float32) for shape in shapes)
    return KernelQuery(op, Attrs(plain), types, (tensor_type((rows, columns), float32),), find)


def find(found: KernelQuery) -> KernelSpec:
    return default_registry().find_kernel(found, "cpu")


@pytest.mark.parametrize("shape", SHAPES)
def test_accumulation_has_the_bits_of_separate_ops(shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(1)
    alone, onto = query("matmul", *shape), query(ONTO, *shape)
    *operands, base = (rng.standard_normal(t.shape, np.float32) for t in onto.inputs)
    (product,) = run_kernel(find(alone), alone, operands)
    (found,) = run_kernel(find(onto), onto, [*operands, base])
    np.testing.assert_array_equal(found, base + product)


def test_primitive_is_used_where_its_bits_match(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = problem(query(ONTO, 512, 25, 784))
    if not isinstance(build_accumulating(asked), Accumulating):
        pytest.skip("this library's primitive begins its sums with what is there")
    monkeypatch.setattr(accumulate, "_same_bits", lambda *_: False)
    assert build_accumulating(asked) is None


def test_long_and_scaled_sums_use_a_product_and_a_sum() -> None:
    assert build_accumulating(problem(query(ONTO, 64, 1000, 64))) is None
    assert build_accumulating(problem(query(ONTO, 64, 25, 64, alpha=2.0))) is None
