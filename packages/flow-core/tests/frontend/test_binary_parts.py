"""Blobs of varying size as bytes in parts of powers of two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
from flow_core.base.errors import DataError, FlowError, JobError
from flow_typing import Bundle, ListNumpy, Numpy

SIZES = (0, 5, 10, 15, 20)


def split(x: Any) -> Any:
    return flow.experimental.dynamic_binary_split(x, base_shift=4, out_num=6)


@pytest.mark.parametrize("dtype", [flow.float, flow.double, flow.int8, flow.float16])
@pytest.mark.parametrize("size", SIZES)
def test_parts_hold_a_header_and_the_elements(size: int, dtype: Any) -> None:
    @flow.global_function()
    def job(x: ListNumpy.Placeholder((20,), dtype=dtype)) -> Bundle[ListNumpy]:
        parts = split(x)
        assert [part.shape for part in parts] == [(256,), (128,), (64,), (32,), (16,), (16,)]
        moved = [flow.identity(part) for part in parts]
        return [flow.experimental.dynamic_binary_concat(moved, x), *parts]

    x = np.arange(size).astype(dtype.numpy)
    (joined,), *parts = job([x])
    assert joined.dtype == x.dtype
    assert np.array_equal(joined, x)
    data = b"".join(part.tobytes() for (part,) in parts)
    assert data == np.array([size], "<i8").tobytes() + x.tobytes()
    assert all(len(part) in (0, 256 >> i) for i, (part,) in enumerate(parts[:-1]))


@pytest.mark.parametrize("devices", ["0:0", "0:0-1"])
def test_valid_rows_of_any_axis_return_from_another_device(devices: str) -> None:
    flow.config.cpu_device_num(2)

    @flow.global_function()
    def job(x: Numpy.Placeholder((4, 5))) -> Bundle[ListNumpy]:
        places, columns = flow.argwhere(x), flow.nonzero(x)
        with flow.scope.placement("cpu", devices):
            pairs = [(blob, [flow.identity(p) for p in split(blob)]) for blob in (places, columns)]
        with flow.scope.placement("cpu", "0:1"):
            return [flow.experimental.dynamic_binary_concat(parts, x, "B") for x, parts in pairs]

    for seed in range(3):
        x = np.random.default_rng(seed).integers(0, 2, (4, 5)).astype(np.float32)
        (places,), (columns,) = job(x)
        assert np.array_equal(places, np.argwhere(x))
        assert np.array_equal(columns, np.argwhere(x).T)


def test_each_device_of_the_mirrored_view_has_its_own_sizes() -> None:
    flow.config.cpu_device_num(2)
    config = flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view())

    @flow.global_function(function_config=config)
    def job(x: ListNumpy.Placeholder((20,))) -> ListNumpy:
        return flow.experimental.dynamic_binary_concat(split(x), x)

    given = [np.arange(7, dtype=np.float32), np.arange(3, dtype=np.float32)]
    for got, want in zip(job(given), given, strict=True):
        assert np.array_equal(got, want)


def test_periods_are_split_one_by_one() -> None:
    @flow.global_function()
    def job(x: Numpy.Placeholder((6,)), n: Numpy.Placeholder((1,), flow.int32)) -> Numpy:
        rows = flow.sync_dynamic_resize(flow.unpack(x, 2), n)
        joined = flow.experimental.dynamic_binary_concat(split(rows), rows)
        return flow.pack(flow.cast_to_static_shape(joined), 2)

    assert job([1, 2, 3, 4, 5, 6], [2]).tolist() == [1, 2, 0, 4, 5, 0]


def test_wrong_arguments_name_what_is_allowed() -> None:
    def traced(body: Any) -> Any:
        @flow.global_function()
        def job(x: ListNumpy.Placeholder((20,)), y: Numpy.Placeholder((20,))) -> ListNumpy:
            return body(x, y)

        return job([np.zeros(20, np.float32)], np.zeros(20, np.float32))

    concat = flow.experimental.dynamic_binary_concat
    with pytest.raises(JobError, match=r"(?s)same in each step.*tp.ListNumpy.*the blob itself"):
        traced(lambda x, y: split(y))
    with pytest.raises(FlowError, match=r"(?s)88 bytes for parts of 64 bytes.*out_num"):
        traced(lambda x, y: flow.experimental.dynamic_binary_split(x, 4, 3)[0])
    with pytest.raises(FlowError, match="2 or more parts"):
        traced(lambda x, y: flow.experimental.dynamic_binary_split(x, 9, 1)[0])
    with pytest.raises(JobError, match='"S:axis", "B" or "P"'):
        traced(lambda x, y: concat(split(x), x, "0"))
    with pytest.raises(DataError, match="in order, of one array of shape"):
        traced(lambda x, y: concat(split(x)[::-1], x))
