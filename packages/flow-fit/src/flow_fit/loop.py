"""A training loop: epochs over batches, evaluation, callbacks, and resumption."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

from flow_core.api.session.train import CheckPoint
from flow_core.base.errors import CheckpointError, ConfigError, shown, user_line
from flow_core.checkpoint.layout import DONE
from flow_fit.improvement import Improvement
from flow_fit.metrics import Mean, numbers
from flow_fit.progress import Progress

Numbers: TypeAlias = Mapping[str, float]
"""The numbers of an epoch, by name: "epoch", "loss", "seconds", and those of the evaluation."""

_PREFIX = "epoch-"


def fit(
    step: Callable[..., Any],
    data: Iterable[Any],
    epochs: int,
    *,
    evaluate: Callable[[], Numbers] | None = None,
    callbacks: Iterable[Callable[[Numbers], object]] = (),
    resume: str | PathLike[str] | None = None,
) -> list[dict[str, float]]:
    """Call a train job with each batch of each epoch, and return the numbers of all epochs.

    On a terminal, a line shows the progress.

    Args:
        step: a train job, or a function that calls one: it returns the loss of a batch, as an array
            of any shape, or a dict of such results by name.
        data: the batches of an epoch, such as ``flow.data.batches(...)``.  A tuple or list is
            passed as positional arguments, a dict as keyword arguments, anything else as the only
            argument.  It is iterated once per epoch; if it has ``set_epoch``, this is called first.
        epochs: the number of epochs, including those before an interruption.
        evaluate: returns further numbers by name; called after each epoch.
        callbacks: functions that are called with the numbers of each epoch, in order, such as
            `EarlyStopping` and `BestCheckpoint`.  The loop ends after an epoch in which one of them
            returns True.
        resume: a folder for a checkpoint after each epoch.  If it contains one, the loop loads it
            and continues after its epoch, with the states of the callbacks.

    Returns:
        For each epoch its number ("epoch", from 0), the mean of each result of ``step`` over the
        samples ("loss", or the names of the dict), the numbers of the evaluation, and "seconds".

    Raises:
        ConfigError: ``epochs`` is not a positive integer, an epoch has no batches, or a result is
            not a number.
        CheckpointError: ``resume`` cannot be read or written.
    """
    if not isinstance(epochs, int) or epochs < 1:
        raise ConfigError(
            "fit", at=user_line(), found=f"epochs={shown(epochs)}", allowed="a positive integer"
        )
    called = list(callbacks)
    saved = None if resume is None else _Saved(Path(resume), called)
    history, stopped = ([], False) if saved is None else saved.load()
    for epoch in range(len(history), 0 if stopped else epochs):
        history.append(_epoch(step, data, epoch, epochs, evaluate))
        answers = [callback(history[-1]) for callback in called]
        stopped = any(answer is True for answer in answers)
        if saved is not None:
            saved.save(history, stopped)
        if stopped:
            break
    return history


def _epoch(
    step: Callable[..., Any],
    data: Iterable[Any],
    epoch: int,
    epochs: int,
    evaluate: Callable[[], Numbers] | None,
) -> dict[str, float]:
    """Run one epoch, and return its numbers."""
    if hasattr(data, "set_epoch"):
        data.set_epoch(epoch)
    start, means = perf_counter(), dict[str, Mean]()
    terminal = sys.stderr.isatty()
    progress = Progress(data, every=0.2 if terminal else float("inf"), silent=not terminal)
    progress.show(epoch=epoch)
    for batch in progress:
        for name, value in _call(step, batch).items():
            means.setdefault(name, Mean()).add(numbers("fit", value).mean(), _rows(batch))
            progress.show(**{name: means[name].value})
    if not means:
        raise ConfigError(
            f"fit, epoch {epoch} of {epochs}",
            at=user_line(2),
            found="no batches",
            allowed="an object that can be iterated once per epoch",
            hint="an iterator or a generator ends after one epoch: pass flow.data.batches(...)",
        )
    result = {"epoch": epoch, **{name: mean.value for name, mean in means.items()}}
    if evaluate is not None:
        result |= {name: float(value) for name, value in evaluate().items()}
    return result | {"seconds": perf_counter() - start}


def _call(step: Callable[..., Any], batch: Any) -> Mapping[str, Any]:
    if isinstance(batch, Mapping):
        result = step(**batch)
    else:
        result = step(*batch) if isinstance(batch, tuple | list) else step(batch)
    return result if isinstance(result, Mapping) else {"loss": result}


def _rows(batch: Any) -> int:
    """Return the number of samples in a batch: the length of its first array."""
    if isinstance(batch, Mapping):
        batch = tuple(batch.values())
    first = batch[0] if isinstance(batch, tuple | list) and len(batch) else batch
    return len(first) if getattr(first, "shape", ()) else 1


class _Saved:
    """The checkpoint of the last epoch, with the numbers of all epochs beside it.

    Args:
        folder: the folder.
        callbacks: the callbacks, of which those that compare values have a state.
    """

    def __init__(self, folder: Path, callbacks: Sequence[object]) -> None:
        self._folder = folder
        self._states = [c for c in callbacks if isinstance(c, Improvement)]

    def _complete(self) -> list[Path]:
        """Return the complete checkpoints, the oldest first."""
        found = sorted(self._folder.glob(f"{_PREFIX}*.json"))
        return [p.with_suffix("") for p in found if (p.with_suffix("") / DONE).is_file()]

    def load(self) -> tuple[list[dict[str, float]], bool]:
        """Load the newest checkpoint, if any; return its history, and whether the loop ended."""
        if not (complete := self._complete()):
            return [], False
        file = complete[-1].with_suffix(".json")
        try:
            record = json.loads(file.read_text())
            history, states, stopped = record["history"], record["callbacks"], record["stopped"]
            if len(states) != len(self._states):
                found = f"the states of {len(states)} callbacks, but there are {len(self._states)}"
                raise ValueError(found)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"resuming at {file}",
                at=user_line(2),
                found=f"{type(error).__name__}: {error}",
                allowed="a file that fit wrote, with the same callbacks",
                hint="remove the folder to start anew",
            ) from None
        CheckPoint().load(str(complete[-1]))
        for callback, state in zip(self._states, states, strict=True):
            callback.restore(state)
        return history, bool(stopped)

    def save(self, history: list[dict[str, float]], stopped: bool) -> None:
        """Save all variables and numbers; then remove older checkpoints."""
        path = self._folder / f"{_PREFIX}{len(history):06}"
        states = [callback.state() for callback in self._states]
        text = json.dumps({"history": history, "callbacks": states, "stopped": stopped})
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            beside = path.with_suffix(f".{os.getpid()}")  # several processes write the same text
            beside.write_text(text)
            beside.replace(path.with_suffix(".json"))
        except OSError as error:
            raise CheckpointError(f"saving {path}", at=user_line(2), found=str(error)) from None
        older = self._complete()
        CheckPoint().save(str(path))
        for checkpoint in older:
            if checkpoint != path:
                shutil.rmtree(checkpoint, ignore_errors=True)
                checkpoint.with_suffix(".json").unlink(missing_ok=True)
