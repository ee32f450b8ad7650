"""Files of tokens: Megatron-LM's order of samples, and files that are refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing.tokens import CODES, index, write_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_core.base.errors import DataError
from flow_data.loading.tokens import TokenOrder, TokenSource, part_of
from flow_data.records.record import CorruptRecordError
from flow_data.records.tokens import TokenFile

SEQUENCES = [np.arange(10 * i, 10 * i + n) for i, n in enumerate((5, 1, 7, 3, 9), 1)]

MEGATRON = {
    14: (
        "14,40-42,50 13-14,20,40-41 31-35 35-36,50-52 34-36,30-31 54-58 56-58,20,10 52-56 30-34 "
        "50-54 10-14 58,10-13 31-35 12-14,50-51 40-42,30-31 55-58,40 41-42,10-12 51-55"
    ),
    17: (
        "33-36,10 33-36,20 50-54 10-14 20,50-53 10-14 33-36,50 42,50-53 57-58,40-42 53-57 "
        "12-14,20,40 53-57 14,30-33 58,30-33 14,30-33 40-42,20,10 54-58 57-58,10-12"
    ),
}
"""Samples of `SEQUENCES` of 4 + 1 tokens in the order of Megatron-LM's class `GPTDataset`, as
OneFlow-Benchmark has it (commit a8c237d, seed 1234), by the number of samples asked for.  Of 14,
few are in the last epoch, so that it is shuffled by itself; of 17, many."""


def spans(text: str) -> list[list[int]]:
    def numbers(span: str) -> range:
        first, _, last = span.partition("-")
        return range(int(first), int(last or first) + 1)

    return [[n for span in sample.split(",") for n in numbers(span)] for sample in text.split()]


def source(prefix: str, **options: Any) -> TokenSource:
    attrs = {
        "data_file_prefix": prefix, "seq_length": 4, "num_samples": 14, "batch_size": 1,
        "shuffle": False, "random_seed": 1234, "split_sizes": (1,), "split_index": 0,
        "region": None, **options,
    }  # fmt: skip
    region = attrs["region"]
    return TokenSource(attrs, 0, region[0][1] - region[0][0] if region else attrs["batch_size"])


def samples(made: TokenSource, length: int = 4, dtype: Any = np.int64) -> list[list[int]]:
    found, step = [], 0
    while True:
        try:
            refs = made.refs(step)
        except DataError:
            return found
        out = np.empty((len(refs), length + 1), dtype)
        for row, ref in enumerate(refs):
            made.read(ref, row, [out])
        found += out.tolist()
        step += 1


@pytest.mark.parametrize("number", [14, 17])
def test_the_order_is_that_of_megatron(tmp_path: Path, number: int) -> None:
    prefix = write_tokens(tmp_path / "text", SEQUENCES)
    assert samples(source(prefix, shuffle=True, num_samples=number)) == spans(MEGATRON[number])


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=8).filter(any),
    st.integers(1, 9), st.integers(1, 30), st.sampled_from(sorted(CODES)),
)  # fmt: skip
def test_samples_are_windows_of_the_concatenated_sequences(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], size: int, number: int, kind: str
) -> None:
    rng = np.random.default_rng(len(lengths))
    sequences = [rng.integers(0, 100, n) for n in lengths]
    prefix = write_tokens(tmp_path_factory.mktemp("tokens") / "text", sequences, kind)
    found = samples(source(prefix, seq_length=size, num_samples=number), size, np.int32)
    epoch = np.concatenate(sequences)
    epochs = next(n for n in range(1, 1000) if (n * len(epoch) - 1) // size >= number)
    stream = np.tile(epoch, epochs).tolist()
    assert found == [stream[i : i + size + 1] for i in range(0, len(stream) - size, size)]
    assert len(found) >= number


def test_parts_of_a_data_set_and_rows_of_a_device(tmp_path: Path) -> None:
    prefix = write_tokens(tmp_path / "text", SEQUENCES)
    part = source(prefix, split_sizes=(1, 3, 1), split_index=1, num_samples=2)
    assert samples(part) == [[20, 30, 31, 32, 33], [33, 34, 35, 36, 40]]
    whole = samples(source(prefix, batch_size=4))
    rows = samples(source(prefix, batch_size=4, region=((2, 4), (0, 5))))
    assert rows == [row for i, row in enumerate(whole) if i % 4 >= 2]
    assert [part_of((1, 1), i, 3) for i in range(2)] == [(0, 2), (2, 1)]  # OneFlow: out of range


def test_seeds_follow_from_the_job_unless_one_is_given(tmp_path: Path) -> None:
    prefix = write_tokens(tmp_path / "text", SEQUENCES)
    options = {"shuffle": True, "random_seed": None}
    orders = {
        str(samples(TokenSource({**source_attrs(prefix), **options}, seed, 1)))
        for seed in (3, 3, 2**40 + 4)
    }
    assert len(orders) == 2


def source_attrs(prefix: str) -> dict[str, Any]:
    return {
        "data_file_prefix": prefix, "seq_length": 4, "num_samples": 14, "batch_size": 1,
        "split_sizes": (1,), "split_index": 0, "region": None,
    }  # fmt: skip


def put(at: int, value: int, size: int) -> Any:
    return lambda data: data[:at] + value.to_bytes(size, "little", signed=True) + data[at + size :]


DAMAGE: dict[str, tuple[Any, str]] = {
    "nothing": (lambda data: b"", "begins with nothing"),
    "another format": (put(0, 7, 1), "index of Megatron-LM"),
    "version": (put(9, 2, 8), "version 2, type 8"),
    "floats": (put(17, 7, 1), r"(?s)version 1, type 7.*integers"),
    "more sequences": (put(18, 2**60, 8), "sequences and 6 boundaries in 142 bytes"),
    "more boundaries": (put(26, 2**60, 8), "5 sequences and"),
    "cut": (lambda data: data[:-1], "in 141 bytes"),
    "a negative length": (put(34, -3, 4), "a sequence of -3 tokens"),
    "a longer sequence": (put(34, 6, 4), "sums of the lengths"),
    "a shifted sequence": (put(62, 12, 8), "sums of the lengths"),
    "boundaries out of order": (put(102, 6, 8), "0 to 5"),
    "boundaries that end early": (put(134, 4, 8), "from 0 to 5"),
    "tokens beyond the file": (lambda data: index((5, 1, 7, 3, 10)), "50 bytes.*|52 bytes"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_indices_are_refused(tmp_path: Path, name: str) -> None:
    change, found = DAMAGE[name]
    prefix = write_tokens(tmp_path / "text", SEQUENCES)
    path = tmp_path / "text.idx"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=found) as caught:
        TokenFile(prefix)
    assert str(tmp_path) in str(caught.value)


def test_pipes_and_missing_files_are_refused(tmp_path: Path) -> None:
    prefix = write_tokens(tmp_path / "text", SEQUENCES)
    (tmp_path / "text.bin").unlink()
    with pytest.raises(DataError, match=r"(?s)text.bin.*No such file.*without .bin and .idx"):
        TokenFile(prefix)
    os.mkfifo(tmp_path / "text.bin")
    with pytest.raises(DataError, match="a pipe instead of a regular file"):
        TokenFile(prefix)


def test_tokens_that_do_not_fit_and_files_that_shrink_are_refused(tmp_path: Path) -> None:
    prefix = write_tokens(tmp_path / "text", [np.array([1, 2, 2**31, 4, 5, 6])], "<i8")
    made, out = TokenFile(prefix), np.empty(3, np.int32)
    made.read(0, 3, out)
    assert out.tolist() == [4, 5, 6]
    with pytest.raises(CorruptRecordError, match=r"(?s)2147483648.*int32.*flow.int64"):
        made.read(0, 1, out)
    os.truncate(f"{prefix}.bin", 40)
    with pytest.raises(CorruptRecordError, match="the file has shrunk"):
        made.read(0, 3, out)


@pytest.mark.parametrize("lengths", [[0, 0], [1]])
def test_too_few_tokens_are_refused(lengths: list[int]) -> None:
    with pytest.raises(DataError, match="sequences with tokens"):
        TokenOrder(np.array(lengths), 0, len(lengths), 1000, 10**9, 0)
