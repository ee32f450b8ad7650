"""Feeds of rows and of functions, in one process: the same results as the whole array."""

from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import FeedError

BATCH = np.arange(24, dtype=np.float32).reshape(8, 3)


def make_job(devices: str = "0:0-3", result: Any = tp.Numpy) -> Any:
    @flow.global_function()
    def squares(x: tp.Numpy.Placeholder((8, 3))) -> result:
        with flow.scope.placement("cpu", devices):
            return flow.math.square(x)

    return squares


@pytest.mark.parametrize("devices", ["0:0", "0:0-3"])
def test_rows_of_all_devices(devices: str) -> None:
    squares = make_job(devices)
    with flow.scope.placement("cpu", devices):
        own = flow.distribute.local_rows(8)
    assert own == (range(8),)
    for at in (0, np.int64(0), own, own[0], (range(4), range(4, 8))):
        np.testing.assert_array_equal(squares(flow.distribute.rows(BATCH, at)), BATCH**2)
    np.testing.assert_array_equal(squares(BATCH), BATCH**2)  # the whole array is possible, too


@pytest.mark.parametrize("devices", ["0:0", "0:0-3"])
@pytest.mark.parametrize(
    "parts",
    [(range(6, 8), range(6)), (range(3, 8), range(1, 3), range(1)), (range(5, 8), range(6))],
)
def test_rows_of_several_ranges(devices: str, parts: tuple[range, ...]) -> None:
    rows = np.concatenate([BATCH[part.start : part.stop] for part in parts])
    feed = flow.distribute.rows(rows, parts)
    np.testing.assert_array_equal(make_job(devices)(feed), BATCH**2)


def test_a_row_is_missing_between_ranges() -> None:
    feed = flow.distribute.rows(np.delete(BATCH, 3, 0), (range(4, 8), range(3)))
    with pytest.raises(FeedError, match="rows 0 to 2, 4 to 7 fed by this process"):
        make_job("0:0")(feed)


def test_a_function_is_asked_for_the_rows_of_each_device() -> None:
    asked = []

    def read(first: int, stop: int) -> Any:
        asked.append((first, stop))
        return BATCH[first:stop].tolist()  # converted like a whole array

    np.testing.assert_array_equal(make_job()(flow.distribute.rows_from(read)), BATCH**2)
    assert asked == [(0, 2), (2, 4), (4, 6), (6, 8)]


@pytest.mark.parametrize("kind", ["rows", "function"])
def test_asynchronous_steps_copy_the_rows(kind: str) -> None:
    squares, found = make_job(result=tp.Callback[tp.Numpy]), []
    rows = BATCH.copy()
    for scale in (1, 2, 3):
        rows[:] = scale * BATCH
        feed = flow.distribute.rows(rows, 0)
        if kind == "function":
            feed = flow.distribute.rows_from(lambda first, stop: rows[first:stop])
        squares(feed)(lambda result: found.append(result))
    rows[:] = 0
    flow.sync_default_session()
    for scale, result in zip((1, 2, 3), found, strict=True):
        np.testing.assert_array_equal(result, (scale * BATCH) ** 2)


def test_an_asynchronous_step_may_be_fed_the_whole_array_next() -> None:
    squares, found = make_job(result=tp.Callback[tp.Numpy]), []
    for feed in (flow.distribute.rows(BATCH, 0), BATCH, flow.distribute.rows(BATCH, 0)):
        for _ in range(3):
            squares(feed)(lambda result: found.append(result))
    flow.sync_default_session()
    assert len(found) == 9
    for result in found:
        np.testing.assert_array_equal(result, BATCH**2)


def test_rows_are_cast_like_arrays() -> None:
    squares = make_job()
    np.testing.assert_array_equal(
        squares(flow.distribute.rows(BATCH.astype(np.float64), 0)), BATCH**2
    )
    with pytest.raises(FeedError, match=r"feeding 'x' of job 'squares'"):
        squares(flow.distribute.rows(np.full((8, 3), "a"), 0))


@pytest.mark.parametrize(
    ("array", "at", "message"),
    [
        (BATCH[:4], 0, "rows 0 to 3 fed by this process, of which a device needs 4 to 5"),
        (BATCH[4:], 4, "rows 4 to 7 fed by this process, of which a device needs 0 to 1"),
        (BATCH[:0], (), "rows none fed by this process"),
        (BATCH, -1, r"shape \(8, 3\) for rows -1 to 6"),
        (BATCH, 1, r"shape \(8, 3\) for rows 1 to 8"),
        (BATCH[:, :2], 0, r"shape \(8, 2\) for rows 0 to 7"),
        (BATCH[:4], (range(8),), r"shape \(4, 3\) for rows 0 to 7"),
        (BATCH[0], 0, r"shape \(3,\) for rows"),
    ],
)
def test_rows_that_do_not_fit(array: Any, at: Any, message: str) -> None:
    with pytest.raises(FeedError, match=message) as caught:
        make_job()(flow.distribute.rows(array, at))
    assert str(caught.value.at).startswith(__file__)


def test_a_function_that_returns_other_rows() -> None:
    feed = flow.distribute.rows_from(lambda first, stop: BATCH[first : stop + 1])
    with pytest.raises(FeedError, match=r"shape \(3, 3\) for rows 0 to 1[^z]*shape \(2, 3\)"):
        make_job()(feed)


def test_feeds_without_rows() -> None:
    @flow.global_function()
    def negative(x: tp.Numpy.Placeholder(())) -> tp.Numpy:
        return flow.math.negative(x)

    for feed in (
        flow.distribute.rows(np.float32(1), 0),
        flow.distribute.rows_from(lambda first, stop: np.float32(1)),
    ):
        with pytest.raises(FeedError, match="which has no axes"):
            negative(feed)


@pytest.mark.parametrize("at", [True, np.True_, 1.5, None, "rows", (3,), range(0, 8, 2)])
def test_wrong_indices(at: Any) -> None:
    with pytest.raises(FeedError, match="index"):
        make_job()(flow.distribute.rows(BATCH, at))


def test_no_function() -> None:
    with pytest.raises(FeedError, match="a function of two row indices"):
        flow.distribute.rows_from(BATCH)


def test_eager_execution_takes_all_rows() -> None:
    flow.enable_eager_execution()
    squares = make_job("0:0")
    np.testing.assert_array_equal(squares(flow.distribute.rows(BATCH, 0)), BATCH**2)
    with pytest.raises(FeedError, match="a device needs 0 to 7"):
        squares(flow.distribute.rows(BATCH[:4], 0))
