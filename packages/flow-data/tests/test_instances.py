"""The memory pool of ragged instances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_data.instances import Pool, size_class


@pytest.mark.slow
@given(st.integers(1, 1 << 40))
def test_size_classes_fit_requests_with_little_overhead(nbytes: int) -> None:
    size = size_class(nbytes)
    assert nbytes <= size
    assert nbytes <= 4096 or size <= nbytes * 1.25 + 1
    assert size_class(size) == size


@settings(max_examples=40)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40_000)), max_size=60))
def test_arrays_in_use_never_share_memory(requests: list[tuple[bool, int]]) -> None:
    pool = Pool(patience=7)
    held: list[tuple[np.ndarray, int]] = []
    for number, (keep, size) in enumerate(requests):
        array = pool.allocate((size,), np.uint8)
        array[:] = number % 251
        if keep:
            held.append((array, number % 251))
    for array, value in held:
        assert (array == value).all()


def test_memory_is_reused_and_released() -> None:
    pool = Pool(patience=10)
    arrays = [pool.allocate((10_000,), np.float32) for _ in range(8)]
    most = pool.nbytes
    del arrays
    for _ in range(8):
        pool.allocate((10_000,), np.float32)[:] = 1
    assert pool.nbytes == most
    for _ in range(100):
        pool.allocate((10_000,), np.float32)
    assert pool.nbytes < most / 4


def test_memory_of_unused_sizes_is_released() -> None:
    pool = Pool(patience=10)
    arrays = [pool.allocate((100_000,), np.float32) for _ in range(8)]
    del arrays
    for _ in range(100):
        pool.allocate((10_000,), np.uint8)
    assert pool.nbytes < 100_000


def test_free_blocks_serve_smaller_requests() -> None:
    pool = Pool()
    pool.allocate((20_000,), np.uint8)
    before = pool.nbytes
    pool.allocate((11_000,), np.uint8)[:] = 1
    assert pool.nbytes == before
    pool.allocate((5_000,), np.uint8)[:] = 1
    assert pool.nbytes > before


def test_views_keep_their_memory_alive() -> None:
    pool = Pool()
    view = pool.allocate((100, 100), np.uint8)[3:5, 7:]
    view[:] = 9
    for _ in range(5):
        pool.allocate((100, 100), np.uint8)[:] = 1
    assert (view == 9).all()
