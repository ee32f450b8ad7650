"""The helpers, alone and in a training loop."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import CheckpointError, ConfigError
from flow_fit import AUC, Accuracy, BestCheckpoint, EarlyStopping, Mean, Progress

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def own_session() -> None:
    flow.clear_default_session()


def test_a_mean_over_batches_is_that_of_all_numbers() -> None:
    numbers, mean = RNG.normal(size=(3, 5)), Mean()
    assert np.isnan(mean.value)
    for row in numbers:
        mean.add(row)
    assert mean.value == pytest.approx(numbers.mean())
    mean.reset()
    weights = RNG.uniform(size=5)
    mean.add(numbers[0], weights)
    assert mean.value == pytest.approx(np.average(numbers[0], weights=weights))


def test_accuracy_of_scores_and_classes() -> None:
    scores, labels = RNG.normal(size=(50, 4)), RNG.integers(0, 4, 50)
    whole, parts = Accuracy(), Accuracy()
    whole.add(scores.argmax(1), labels)
    for part in (slice(0, 30), slice(30, 50)):
        parts.add(scores[part], labels[part])
    assert whole.value == parts.value == (scores.argmax(1) == labels).mean()


def test_accuracy_of_one_hot_labels_and_of_one_class() -> None:
    scores, labels = RNG.normal(size=(50, 4)), RNG.integers(0, 4, 50)
    one_hot, classes = Accuracy(), Accuracy()
    one_hot.add(scores, np.eye(4)[labels])
    classes.add(scores, labels)
    assert one_hot.value == classes.value
    binary = Accuracy(threshold=0)
    binary.add([-1.0, 0.5, np.nan, 2.0], [0, 0, 1, 1])
    assert repr(binary) == "Accuracy(value=0.5)"


@pytest.mark.parametrize("levels", [3, 1000])
def test_auc_is_the_share_of_pairs_in_order(levels: int) -> None:
    scores, labels = RNG.integers(0, levels, 80) / levels, RNG.integers(0, 2, 80)
    auc = AUC()
    for part in (slice(0, 7), slice(7, 80)):
        auc.add(scores[part], labels[part])
    high, low = scores[labels == 1][:, None], scores[labels == 0][None]
    assert auc.value == pytest.approx(((high > low) + 0.5 * (high == low)).mean())


def test_auc_of_one_class_is_unknown() -> None:
    auc = AUC()
    assert np.isnan(auc.value)
    auc.add([0.1, 0.2], [1, 1])
    assert np.isnan(auc.value)


@pytest.mark.parametrize(
    ("add", "text"),
    [
        (lambda: Mean().add([1, 2], [1, 2, 3]), "weights of shape"),
        (lambda: Accuracy().add([[0.1, 0.9]], [1, 0]), r"predictions of shape \(1, 2\)"),
        (lambda: AUC().add([0.1], [0, 1]), "1 scores and 2 labels"),
        (lambda: AUC().add([0.1], [2]), "the label 2"),
        (lambda: AUC().add(["a"], [1]), "'a'"),
        (lambda: Mean().add("text"), "'text'"),
        (lambda: Mean().add([[1], [2, 3]]), "real numbers"),
        (lambda: Mean().add(None), "None"),
        (lambda: Mean().add([1j]), "1j"),
        (lambda: Mean().add([1], "w"), "'w'"),
        (lambda: Accuracy().add([[0.1, 0.9]], [[1, 1]]), "not an integer"),  # not one-hot
        (lambda: Accuracy().add([[0.1], [0.9]], [0, 1]), "not an integer"),
        (lambda: Accuracy().add([[0.0], [1.0]], [0, 1]), r"predictions of shape \(2, 1\)"),
        (lambda: Accuracy().add([0.1, 0.9], [0, 1]), "threshold=0.5"),
        (lambda: Accuracy().add([np.nan, 1], [0, 1]), "not an integer"),
        (lambda: Accuracy().add([[0.1, 0.9]], [0.5]), "a label that is not an integer"),
        (lambda: Accuracy().add(["cat"], ["cat"]), "'cat'"),
        (lambda: EarlyStopping().update(None), "None"),  # type: ignore[arg-type]
        (lambda: EarlyStopping().update("0.5"), "'0.5'"),  # type: ignore[arg-type]
        (lambda: EarlyStopping().update([1.0, 2.0]), r"shape \(2,\)"),  # type: ignore[arg-type]
        (lambda: BestCheckpoint("x").update({}), "{}"),  # type: ignore[arg-type]
        (lambda: EarlyStopping(patience=0), "patience=0"),
        (lambda: EarlyStopping(mode="higher"), "mode='higher'"),  # type: ignore[arg-type]
        (lambda: BestCheckpoint("x", min_delta=-1), "min_delta=-1"),
        (lambda: BestCheckpoint("x", min_delta="1"), "min_delta='1'"),  # type: ignore[arg-type]
        (lambda: BestCheckpoint(3), "path=3"),  # type: ignore[arg-type]
        (lambda: BestCheckpoint("x", save="y"), "save='y'"),  # type: ignore[arg-type]
        (lambda: BestCheckpoint("x", load=0), "load=0"),  # type: ignore[arg-type]
        (lambda: EarlyStopping(patience="3"), "patience='3'"),  # type: ignore[arg-type]
        (lambda: EarlyStopping(mode=["min"]), "mode="),  # type: ignore[arg-type]
        (lambda: EarlyStopping(metric=3), "metric=3"),  # type: ignore[arg-type]
        (lambda: Accuracy(threshold="0"), "threshold='0'"),  # type: ignore[arg-type]
        (lambda: Progress(3), "items=3"),  # type: ignore[arg-type]
        (lambda: Progress([], total="3"), "total='3'"),  # type: ignore[arg-type]
        (lambda: Progress([], every="3"), "every='3'"),  # type: ignore[arg-type]
        (lambda: Progress([], clock=1.0), "clock=1.0"),  # type: ignore[arg-type]
        (lambda: Progress([], stream="x"), "stream='x'"),  # type: ignore[arg-type]
        (lambda: Progress([]).show(loss="low"), "'low'"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments(add: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as found:
        add()
    assert __file__ in str(found.value)


def test_a_diverged_model_scores_nothing() -> None:
    accuracy, auc = Accuracy(), AUC()
    accuracy.add([[np.nan, np.nan], [np.nan, 0.5], [0.9, 0.1]], [0, 0, 0])
    assert accuracy.value == pytest.approx(1 / 3)
    auc.add([0.1, np.nan, 0.3], [0, 1, 1])
    assert np.isnan(auc.value)


def test_early_stopping() -> None:
    stop = EarlyStopping(patience=2, mode="max", min_delta=0.1)
    values = [0.5, 0.7, 0.75, float("nan"), 0.9]
    assert [stop.update(value) for value in values] == [False, False, False, True, False]
    assert (stop.best, stop.best_index, stop.waited) == (0.9, 4, 0)


def test_the_best_checkpoint_of_a_loop(tmp_path: Path) -> None:
    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((4, 1))) -> tp.Numpy:
        w = flow.get_variable("w", (1, 1), initializer=flow.ones_initializer())
        loss = flow.math.square(flow.matmul(x, w))
        flow.optimizer.SGD(1.5, momentum=0).minimize(loss)
        return loss

    best, weights, saved = BestCheckpoint(tmp_path / "best"), [], []
    for size in (0.5, 1.0, 2.0):
        loss = train(np.full((4, 1), size, np.float32)).mean()
        weights.append(float(flow.get_all_variables()["w"].numpy()[0, 0]))
        saved.append(best.update(loss))
    assert saved == [True, True, False]
    best.load()
    assert float(flow.get_all_variables()["w"].numpy()[0, 0]) == weights[1]


def test_a_save_that_fails_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "notes.txt").write_text("mine")
    best = BestCheckpoint(tmp_path / "best")
    with pytest.raises(CheckpointError, match="notes"):
        best.update(1.0)
    assert best.best is None
    assert [*(tmp_path / "best").iterdir()] == [tmp_path / "best" / "notes.txt"]


def test_a_folder_at_a_url_that_is_no_checkpoint_is_kept() -> None:
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.pipe({"/best/notes.txt": b"mine", "/best/snapshot_done": b""})
    best = BestCheckpoint("memory://best")
    with pytest.raises(CheckpointError, match="notes"):
        best.update(1.0)
    assert best.best is None
    memory.rm_file("/best/snapshot_done")
    with pytest.raises(CheckpointError, match="notes"):
        best.update(1.0)
    assert memory.cat("/best/notes.txt") == b"mine"
    memory.rm("/best", recursive=True)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress() -> None:
    times = iter(range(100))
    for stream, breaks in ((io.StringIO(), "\n"), (Terminal(), "\r")):
        progress = Progress(
            range(6), unit="rows", every=2.0, stream=stream, clock=lambda: float(next(times))
        )
        seen = []
        for number in progress:
            seen.append(number)
            progress.show(loss=number / 4)
        assert seen == [*range(6)]
        lines = [line.strip() for line in stream.getvalue().split(breaks) if line.strip()]
        assert lines[0] == "2/6 rows  1 rows/s  4 s left  loss 0.25"
        assert lines[-1].startswith("6/6 rows")
        assert len(lines) == 4


def test_progress_without_a_total_or_items() -> None:
    stream = io.StringIO()
    assert [*Progress(iter(()), stream=stream)] == []
    assert stream.getvalue() == ""
    assert [*Progress(iter("ab"), stream=stream)] == ["a", "b"]
    assert stream.getvalue().startswith("2 steps  ")
