"""Batches of lists, arrays, generators and data sets of torch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import DataError

X = np.arange(30, dtype=np.float32).reshape(10, 3)


class Pairs:
    """A data set as torch defines it: ``len()`` and an index."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, place: int) -> tuple[Any, int]:
        if place >= len(X):
            raise IndexError(place)
        return X[place], place


def streamed() -> Iterator[dict[str, Any]]:
    for place, row in enumerate(X):
        yield {"x": row, "place": place}


@pytest.mark.parametrize("prefetch", [0, 3])
def test_batches_in_order(prefetch: int) -> None:
    made = flow.data.batches(Pairs(), 4, prefetch=prefetch)
    assert len(made) == 3
    for _ in range(2):
        found = list(made)
        assert [len(x) for x, _ in found] == [4, 4, 2]
        np.testing.assert_array_equal(np.concatenate([x for x, _ in found]), X)
    whole = flow.data.batches(X, 4, drop_last=True, prefetch=prefetch)
    assert [x.shape for x in whole] == [(4, 3)] * len(whole) == [(4, 3)] * 2


@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_of_arrays(shuffle: bool) -> None:
    places = np.arange(10)
    columns = flow.data.batches((X, places), 4, shuffle=shuffle, seed=3)
    named = flow.data.batches({"x": X, "place": places}, 4, shuffle=shuffle, seed=3)
    samples = flow.data.batches(Pairs(), 4, shuffle=shuffle, seed=3)
    assert len(columns) == len(samples) == 3
    for (x, place), named_batch, (expected, order) in zip(columns, named, samples, strict=True):
        np.testing.assert_array_equal(x, expected)
        np.testing.assert_array_equal(place, order)
        assert [*named_batch] == ["x", "place"]
        np.testing.assert_array_equal(named_batch["x"], expected)
    ends = flow.data.batches((X, places), 4, drop_last=True)
    assert [len(x) for x, _ in ends] == [4, 4]
    joined = flow.data.batches((X, places), 4, collate=len)
    assert [*joined] == [4, 4, 2]


def test_batches_say_how_many_they_are() -> None:
    assert repr(flow.data.batches((X,), 4)) == "<3 batches of 4, epoch 0>"
    assert repr(flow.data.batches(iter(X), 4)) == "<batches of 4, epoch 0>"


def test_an_epoch_can_be_chosen() -> None:
    made = flow.data.batches(np.arange(10), 10, shuffle=True)
    first, second = [*made], [*made]
    made.set_epoch(1)
    np.testing.assert_array_equal([*made], second)
    assert not np.array_equal(first, second)


def test_each_epoch_has_an_order_of_its_own_by_the_seed() -> None:
    def orders(seed: int) -> list[list[int]]:
        made = flow.data.batches(Pairs(), 3, shuffle=True, seed=seed)
        return [[int(i) for _, places in made for i in places] for _ in range(2)]

    first = orders(1)
    assert all(sorted(order) == [*range(10)] for order in first)
    assert first[0] != first[1]
    assert orders(1) == first
    assert orders(2) != first


def test_a_generator_of_dicts() -> None:
    found = list(flow.data.batches(streamed(), 4))
    assert [batch["x"].shape for batch in found] == [(4, 3), (4, 3), (2, 3)]
    assert found[-1]["place"].tolist() == [8, 9]


def test_the_last_batch_is_fed_as_it_is() -> None:
    flow.clear_default_session()

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((None, 3))) -> tp.Numpy:
        return x * 2

    found = [job(x) for x in flow.data.batches(X, 4)]
    np.testing.assert_array_equal(np.concatenate(found), X * 2)


def test_a_loop_that_ends_early_ends_the_thread() -> None:
    before = threading.active_count()
    for _ in flow.data.batches(X, 1, prefetch=1):
        break
    assert threading.active_count() == before


def test_errors_of_the_data_set_reach_the_loop() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise KeyError("gone")

    for prefetch in (0, 2):
        with pytest.raises(KeyError, match="gone"):
            list(flow.data.batches(broken(), 1, prefetch=prefetch))
    ragged = [np.zeros(2), np.zeros(2), np.zeros(2), np.zeros(3)]
    with pytest.raises(DataError, match="samples 2 to 3"):
        list(flow.data.batches(ragged, 2))


@pytest.mark.parametrize(
    ("args", "options", "text"),
    [
        ((X, 0), {}, "batch_size=0"),
        ((X, 2), {"prefetch": -1}, "prefetch=-1"),
        ((3, 2), {}, "an iterable"),
        (((X, np.arange(9)), 2), {}, "arrays of 10 and 9 rows"),
        ((streamed(), 2), {"shuffle": True}, "shuffle=True for generator"),
    ],
)
def test_wrong_arguments(args: Any, options: Any, text: str) -> None:
    with pytest.raises(DataError, match=text) as found:
        flow.data.batches(*args, **options)
    assert __file__ in str(found.value)


def test_a_data_set_of_torch() -> None:
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.arange(10))
    found = list(flow.data.batches(data, 4))
    np.testing.assert_array_equal(np.concatenate([x for x, _ in found]), X)
    assert found[0][1].dtype == np.int64
