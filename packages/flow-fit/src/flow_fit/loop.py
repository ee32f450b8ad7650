"""A training loop: epochs over batches, evaluation, callbacks, and resumption."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from time import perf_counter
from typing import Any, TypeAlias

from flow_core.base.errors import shown
from flow_fit.arguments import (
    check,
    check_callable,
    check_count,
    check_iterable,
    check_path,
    number,
    numbers,
)
from flow_fit.checkpoints import EpochCheckpoints
from flow_fit.metrics import Mean
from flow_fit.progress import Progress

Numbers: TypeAlias = Mapping[str, float]
"""The numbers of an epoch, by name: "epoch", "loss", "seconds", and those of the evaluation."""


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
        ConfigError: an argument has another type, an epoch has no batches, or a result is not a
            number.
        CheckpointError: ``resume`` cannot be read or written.
    """
    check_callable("fit", "step", step, "a train job, or a function of a batch")
    check_iterable("fit", "data", data, "the batches of an epoch, such as flow.data.batches(...)")
    check_count("fit", "epochs", epochs)
    if evaluate is not None:
        check_callable("fit", "evaluate", evaluate, "a function without parameters")
    check_iterable("fit", "callbacks", callbacks, "a list of functions of the numbers of an epoch")
    called = list(callbacks)
    for callback in called:
        check_callable("fit", "a callback", callback, "a function of the numbers of an epoch")
    if resume is not None:
        check_path("fit", "resume", resume)
    saved = None if resume is None else EpochCheckpoints(resume, called)
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
            _check_name("fit, a result of step", name)
            result = numbers("fit, a result of step", value)
            check(result.size, "fit, a result of step", f"{name} without numbers", "numbers")
            means.setdefault(name, Mean()).add(result.mean(), _rows(batch))
            progress.show(**{name: means[name].value})
    check(
        means,
        f"fit, epoch {epoch} of {epochs}",
        "no batches",
        "an object that can be iterated once per epoch",
        "an iterator or a generator ends after one epoch: pass flow.data.batches(...)",
    )
    found = {"epoch": epoch, **{name: mean.value for name, mean in means.items()}}
    if evaluate is not None:
        found |= _evaluated(evaluate())
    return found | {"seconds": perf_counter() - start}


def _evaluated(found: Any) -> dict[str, float]:
    """Return the numbers of an evaluation by name."""
    what = "fit, the result of evaluate"
    check(isinstance(found, Mapping), what, shown(found), 'numbers by name: {"accuracy": 0.9}')
    for name in found:
        _check_name(what, name)
    return {name: number(f"{what}, {name}", value) for name, value in found.items()}


def _check_name(what: str, name: object) -> None:
    fits = isinstance(name, str) and name not in ("epoch", "seconds")
    check(fits, what, f"the name {shown(name)}", 'text other than "epoch" and "seconds"')


def _call(step: Callable[..., Any], batch: Any) -> Mapping[str, Any]:
    if isinstance(batch, Mapping):
        for name in batch:
            check(isinstance(name, str), "fit", f"a batch with the key {shown(name)}", "names")
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
