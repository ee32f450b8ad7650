"""The order of samples, for any number of devices and threads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_core.base.errors import DataError
from flow_data.loading.sampler import BatchSampler, Sampler, SamplerOptions
from flow_data.records.record import Origin, Record


class Counted:
    """Return files with the given numbers of records."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts = counts
        self.paths = [str(i) for i in range(len(counts))]

    def place(self, part: int, number: int) -> int | None:
        return number if number < self.counts[part] else None

    def read(self, part: int, number: int, place: int) -> Record:
        return Record(b"", Origin(self.paths[part], 0, number), lambda _: {})


COUNTS = st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any)
OPTIONS = st.builds(SamplerOptions, st.integers(0, 6), st.booleans(), st.integers(0, 5))


@settings(max_examples=40)
@given(COUNTS, OPTIONS, st.integers(0, 3))
def test_each_epoch_visits_every_record_once(
    counts: list[int], options: SamplerOptions, number: int
) -> None:
    every = sorted((p, i, i) for p, n in enumerate(counts) for i in range(n))
    assert sorted(Sampler(Counted(counts), options).epoch(number)) == every


@settings(max_examples=40)
@given(COUNTS, OPTIONS, st.integers(0, 50))
def test_sequence_can_start_at_any_position(
    counts: list[int], options: SamplerOptions, sample: int
) -> None:
    whole = list(islice(Sampler(Counted(counts), options).after(0), sample + 10))
    assert list(islice(Sampler(Counted(counts), options).after(sample), 10)) == whole[sample:]


@settings(max_examples=40)
@given(COUNTS, OPTIONS, st.sampled_from([1, 2, 4]), st.lists(st.integers(0, 12), max_size=8))
def test_devices_read_disjoint_parts_of_the_same_batches_in_any_order(
    counts: list[int], options: SamplerOptions, devices: int, steps: list[int]
) -> None:
    size, rows = 4, 4 // devices
    one = Sampler(Counted(counts), options).after(0)
    batches = [list(islice(one, size)) for _ in range(13)]
    split = [
        BatchSampler(Sampler(Counted(counts), options), size, (i * rows, (i + 1) * rows))
        for i in range(devices)
    ]
    for step in steps:
        assert [ref for part in split for ref in part.refs(step)] == batches[step]


def test_epochs_differ_when_shuffled() -> None:
    order = Sampler(Counted([50]), SamplerOptions(20, False, 1))
    assert list(order.epoch(0)) != list(order.epoch(1))
    parts = Sampler(Counted([2, 2, 2, 2, 2]), SamplerOptions(0, True, 1))
    assert list(parts.epoch(0)) == sorted(parts.epoch(0))
    assert list(parts.epoch(1)) != sorted(parts.epoch(1))


def test_files_without_records_are_an_error() -> None:
    batches = BatchSampler(Sampler(Counted([0, 0]), SamplerOptions()), 2, (0, 2))
    with pytest.raises(DataError, match="no record"):
        batches.refs(0)
