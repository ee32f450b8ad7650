"""Tensors of varying shape packed into messages."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flow_core.comm.exchange import pack, unpack

TENSORS = st.none() | st.sampled_from(("float32", "int8", "bool", "float64", "int64")).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
)


@pytest.mark.slow
@given(tensors=st.lists(TENSORS, max_size=5))
def test_packed_tensors_round_trip(tensors: list[Any]) -> None:
    objects = np.empty(len(tensors), object)
    for i, tensor in enumerate(tensors):
        objects[i] = tensor
    found = unpack(pack(objects))
    assert found.shape == objects.shape
    for a, b in zip(found, tensors, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def test_noncontiguous_views_are_packed() -> None:
    objects = np.empty((1, 2), object)
    objects[0, 0] = np.arange(12).reshape(3, 4)[:, ::2]
    objects[0, 1] = np.arange(3)[::-1]
    a, b = unpack(pack(objects))
    assert (a.tolist(), b.tolist()) == ([[0, 2], [4, 6], [8, 10]], [2, 1, 0])
