"""Parts of tensors, and the tensors that they combine to."""

from __future__ import annotations

import numpy as np
import pytest

from flow_rules.layouts import B, Layout, P, Partial, S, chunks
from flow_rules.scattering import gather, scatter

pytestmark = pytest.mark.arithmetic


@pytest.mark.parametrize("dtype", ["float64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("parts", [1, 2, 3, 5])
@pytest.mark.parametrize("layout", [S(0), S(1), B, P], ids=str)
def test_gather_inverts_scatter(layout: Layout, parts: int, dtype: str) -> None:
    rng = np.random.default_rng(1)
    array = rng.integers(0, 9, (4, 3)).astype(dtype)
    held = scatter(array, layout, parts, rng)
    assert len(held) == parts
    np.testing.assert_allclose(gather(held, layout), array, atol=1e-12)


@pytest.mark.parametrize("layout", [Partial("max"), Partial("min"), Partial("avg")], ids=str)
@pytest.mark.parametrize("parts", [2, 3])
def test_terms_of_other_kinds_combine_to_the_tensor(layout: Partial, parts: int) -> None:
    rng = np.random.default_rng(2)
    array = rng.integers(-9, 9, (4, 3)) / 16
    held = scatter(array, layout, parts, rng)
    assert not all(np.array_equal(held[0], part) for part in held)
    np.testing.assert_array_equal(gather(held, layout), array)


def test_chunks_may_leave_devices_without_rows() -> None:
    held = scatter(np.arange(5), S(0), 4, np.random.default_rng(0), ranges=chunks)
    assert [part.tolist() for part in held] == [[0, 1], [2, 3], [4], []]
