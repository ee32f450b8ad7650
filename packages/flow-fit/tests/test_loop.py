"""The training loop: numbers of epochs, callbacks, and resumption after an interruption."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from event_files import written

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import CheckpointError, ConfigError
from flow_data.batches import Batches
from flow_fit import (
    AUC,
    Accuracy,
    BestCheckpoint,
    EarlyStopping,
    Progress,
    ReduceOnPlateau,
    TensorBoard,
    fit,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 3)).astype(np.float32)
Y = X @ np.array([[1], [2], [3]], np.float32)


@pytest.fixture(autouse=True)
def own_session() -> None:
    flow.clear_default_session()


def train_job(rate: float = 0.1) -> Any:
    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((None, 3)), y: tp.Numpy.Placeholder((None, 1))) -> tp.Numpy:
        w = flow.get_variable("w", (3, 1), initializer=flow.zeros_initializer())
        loss = flow.math.square(flow.matmul(x, w) - y)
        flow.optimizer.SGD(rate, momentum=0.9).minimize(flow.math.reduce_mean(loss))
        return loss

    return train


def data() -> Batches:
    return flow.data.batches((X, Y), 8, shuffle=True, prefetch=0)


def test_epochs_have_the_means_of_all_samples() -> None:
    seen: list[Any] = []
    train = train_job(rate=0.0)
    history = fit(train, data(), 2, callbacks=[seen.append], evaluate=lambda: {"answer": 42})
    assert seen == history
    assert [*history[0]] == ["epoch", "loss", "answer", "seconds"]
    assert [row["loss"] for row in history] == pytest.approx([float(np.mean(Y**2))] * 2)
    assert train.step == 6


def test_batches_are_passed_by_position_name_or_alone() -> None:
    got: list[Any] = []

    def step(*args: Any, **names: Any) -> dict[str, Any]:
        got.append((args, names))
        return {"a": 1.0, "b": [1.0, 3.0]}

    fit(step, [[1, 2]], 1)
    fit(step, [{"x": 1}], 1)
    (numbers,) = fit(step, [3], 1)
    assert got == [((1, 2), {}), ((), {"x": 1}), ((3,), {})]
    assert (numbers["a"], numbers["b"]) == (1.0, 2.0)


def test_early_stopping_ends_the_loop_after_all_callbacks(tmp_path: Path) -> None:
    losses = iter([3.0, 1.0, 2.0, 2.0, 2.0])
    stop, best = EarlyStopping(2), BestCheckpoint(tmp_path / "best", save=lambda path: None)
    plateau = ReduceOnPlateau(1.0, factor=0.5, patience=2)
    history = fit(lambda batch: next(losses), [0], 5, callbacks=[stop, best, plateau])
    assert len(history) == 4
    assert (best.best, plateau.rate) == (1.0, 0.5)
    assert repr(stop) == "EarlyStopping(metric='loss', best=1.0, best_index=1, waited=2, count=4)"


def test_numbers_of_epochs_are_in_an_event_file(tmp_path: Path) -> None:
    log, losses = TensorBoard(tmp_path, prefix="train/"), iter([3.0, 1.5, 0.5])
    fit(lambda batch: next(losses), [0], 3, evaluate=lambda: {"error": 7}, callbacks=[log])
    first, *events = written(tmp_path)
    assert first["file_version"] == b"brain.Event:2"
    found = {}
    for event in events:
        (value,) = event["summary"]["value"]
        found[event.get("step", 0), value["tag"].decode()] = value["simple_value"]
    assert [found[step, "train/loss"] for step in range(3)] == [3.0, 1.5, 0.5]
    assert {name for _, name in found} == {"train/loss", "train/error", "train/seconds"}
    assert repr(log) == f"TensorBoard(folder={str(tmp_path)!r}, written=3)"


def test_reprs_have_values(tmp_path: Path) -> None:
    best, progress = BestCheckpoint(tmp_path, save=lambda path: None), Progress([1, 2])
    best.update(0.5)
    for _ in progress:
        pass
    assert repr(best) == f"BestCheckpoint(metric='loss', best=0.5, path={str(tmp_path)!r})"
    assert repr(progress).startswith("Progress(2/2 steps")
    accuracy, auc = Accuracy(), AUC()
    accuracy.add([1, 0], [1, 1])
    auc.add([0.1, 0.9], [0, 1])
    assert (repr(accuracy), repr(auc)) == ("Accuracy(value=0.5)", "AUC(value=1)")
    plateau = ReduceOnPlateau(0.1)
    assert repr(plateau) == "ReduceOnPlateau(metric='loss', rate=0.1, best=None, waited=0)"


class Killed(BaseException):
    """Ends a run in the middle of an epoch."""


@pytest.mark.parametrize("at", [0, 4, 9])
def test_an_interrupted_run_resumes_with_the_same_bits(tmp_path: Path, at: int) -> None:
    whole = fit(train_job(), data(), 4, callbacks=[EarlyStopping(9)])
    weights = flow.get_all_variables()["w"].numpy()
    flow.clear_default_session()
    train, calls = train_job(), iter(range(100))

    def step(x: tp.Numpy, y: tp.Numpy) -> tp.Numpy:
        if next(calls) == at:
            raise Killed
        result: tp.Numpy = train(x, y)
        return result

    with pytest.raises(Killed):
        fit(step, data(), 4, callbacks=[EarlyStopping(9)], resume=tmp_path)
    flow.clear_default_session()
    train, stop = train_job(), EarlyStopping(9)
    resumed = fit(train, data(), 4, callbacks=[stop], resume=tmp_path)
    assert [row["loss"] for row in resumed] == [row["loss"] for row in whole]
    assert stop.count == 4
    assert train.step == 12
    np.testing.assert_array_equal(flow.get_all_variables()["w"].numpy(), weights)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-000004", "epoch-000004.json"]


def test_a_finished_run_is_not_continued(tmp_path: Path) -> None:
    train = train_job()
    first = fit(train, data(), 9, callbacks=[lambda numbers: True], resume=tmp_path)
    assert fit(train, data(), 9, callbacks=[lambda numbers: True], resume=tmp_path) == first
    assert (len(first), train.step) == (1, 3)


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    fit(train_job(), data(), 1, resume=tmp_path)
    with pytest.raises(CheckpointError, match="the states of 0 callbacks, but there are 1"):
        fit(train_job, data(), 2, callbacks=[EarlyStopping()], resume=tmp_path)
    (tmp_path / "epoch-000001.json").write_text('{"history": ')
    with pytest.raises(CheckpointError, match=r"epoch-000001\.json"):
        fit(train_job, data(), 2, resume=tmp_path)


def test_a_record_without_its_checkpoint_is_ignored(tmp_path: Path) -> None:
    train = train_job()
    fit(train, data(), 1, resume=tmp_path)
    (tmp_path / "epoch-000002.json").write_text("{}")  # the save of epoch 1 was interrupted
    assert len(fit(train, data(), 2, resume=tmp_path)) == 2


def generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: fit(float, [1], 0), "epochs=0"),
        (lambda: fit(float, [1], True), "epochs=True"),
        (lambda: fit(3, [1], 1), "step=3"),  # type: ignore[arg-type]
        (lambda: fit(float, 3, 1), "data=3"),  # type: ignore[arg-type]
        (lambda: fit(float, [1], 1, evaluate=0.5), "evaluate=0.5"),  # type: ignore[arg-type]
        (lambda: fit(float, [1], 1, evaluate=lambda: 0.5), "by name"),  # type: ignore[arg-type, return-value]
        (lambda: fit(float, [1], 1, evaluate=lambda: {"a": "b"}), "evaluate, a.*\n.*'b'"),  # type: ignore[dict-item]
        (lambda: fit(float, [1], 1, evaluate=lambda: {"a": X}), r"shape \(20, 3\)"),  # type: ignore[dict-item]
        (lambda: fit(float, [1], 1, evaluate=lambda: {"epoch": 1}), "'epoch'"),
        (lambda: fit(float, [1], 1, callbacks=EarlyStopping()), "a list of"),  # type: ignore[arg-type]
        (lambda: fit(float, [1], 1, callbacks=[3]), "callback=3"),  # type: ignore[list-item]
        (lambda: fit(float, [1], 1, resume=3), "resume=3"),  # type: ignore[arg-type]
        (lambda: fit(lambda x: {1: x}, [1], 1), "the name 1"),
        (lambda: fit(lambda x: [], [1], 1), "loss without numbers"),
        (lambda: fit(float, [{1: 2}], 1), "the key 1"),
        (lambda: fit(float, [], 1), "no batches"),
        (lambda: fit(float, generator(), 2), "epoch 1 of 2.*\n.*no batches"),
        (lambda: fit(str, [1], 1), "'1'"),
        (lambda: fit(float, [1], 1, callbacks=[EarlyStopping(metric="los")]), "did you mean loss"),
        (lambda: ReduceOnPlateau(0.1, factor=2), "factor=2"),
        (lambda: ReduceOnPlateau(0.1, patience=0), "patience=0"),
        (lambda: TensorBoard(3), "folder=3"),  # type: ignore[arg-type]
        (lambda: TensorBoard("x", 3), "prefix=3"),  # type: ignore[arg-type]
        (lambda: TensorBoard("x")({"loss": "a"}), "'a'"),  # type: ignore[dict-item]
        (lambda: ReduceOnPlateau("a"), "rate='a'"),  # type: ignore[arg-type]
        (lambda: ReduceOnPlateau(float("inf")), "rate=inf"),
        (lambda: ReduceOnPlateau(0.1, min_rate=None), "min_rate=None"),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments(call: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as found:
        call()
    assert __file__ in str(found.value)
