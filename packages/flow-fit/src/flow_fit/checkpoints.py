"""Checkpoints of training loops: of the best value of a metric, and of the last epoch."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from os import PathLike, fspath
from pathlib import Path

from flow_core.api.session.train import CheckPoint, SimpleCheckPointManager
from flow_core.base.errors import CheckpointError
from flow_fit.arguments import check_callable, check_path
from flow_fit.improvement import Improvement, Mode


def _save(path: str) -> None:
    CheckPoint().save(path, overwrite=True)


def _load(path: str) -> None:
    CheckPoint().load(path)


class BestCheckpoint(Improvement):
    """Saves the variables whenever a metric improves.

    Args:
        path: the checkpoint, which is replaced atomically at each improvement; a name that ends
            with ``.safetensors`` is a single file.
        mode: "min" if smaller values are better, "max" if larger ones are.
        min_delta: a value is better only if it improves on the best value by more than this number.
        save, load: functions that save and load all variables, given the path; by default
            checkpoints of the session.
        metric: the name of the metric among the numbers of an epoch, for `fit`.

    Attributes:
        path: the checkpoint.
        best: the best value, None before the first one.

    Raises:
        ConfigError: an argument is invalid.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        mode: Mode = "min",
        min_delta: float = 0.0,
        save: Callable[[str], object] = _save,
        load: Callable[[str], object] = _load,
        *,
        metric: str = "loss",
    ) -> None:
        super().__init__(mode, min_delta, metric=metric)
        check_path("BestCheckpoint", "path", path)
        check_callable("BestCheckpoint", "save", save, "a function of the path")
        check_callable("BestCheckpoint", "load", load, "a function of the path")
        self.path = fspath(path)
        self._save, self._load = save, load

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, path={self.path!r})"

    def update(self, value: float) -> bool:
        """Save the variables if a value is better than all before; return whether it is.

        Raises:
            CheckpointError: the save failed; the value then does not count as the best one.
        """
        before = self.best
        if not self.improve(value):
            return False
        try:
            self._save(self.path)
        except BaseException:
            self.best = before
            raise
        return True

    def load(self) -> None:
        """Load the best variables.

        Raises:
            CheckpointError: nothing has been saved yet.
        """
        self._load(self.path)


class EpochCheckpoints:
    """The checkpoint of the last epoch, with the numbers of all epochs beside it.

    Args:
        callbacks: the callbacks, of which those that compare values have a state.
    """

    def __init__(self, folder: str | PathLike[str], callbacks: Sequence[object]) -> None:
        self._folder = Path(folder)
        self._checkpoints = SimpleCheckPointManager(fspath(folder), "epoch-")
        self._states = [c for c in callbacks if isinstance(c, Improvement)]

    def _complete(self) -> list[Path]:
        """Return the complete checkpoints, the oldest first."""
        paths = [self._folder / name for name in self._checkpoints.list_checkpoints()]
        return [path for path in paths if path.with_suffix(".json").is_file()]

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
            if not all(isinstance(numbers, dict) for numbers in list(history)):
                raise ValueError("an epoch without numbers")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError.at_caller(
                f"resuming at {file}",
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
        path = self._folder / f"epoch-{len(history):06}"
        states = [callback.state() for callback in self._states]
        text = json.dumps({"history": history, "callbacks": states, "stopped": stopped})
        try:
            beside = path.with_suffix(f".{os.getpid()}")  # several processes write the same text
            beside.write_text(text)
            beside.replace(path.with_suffix(".json"))
        except OSError as error:
            raise CheckpointError.at_caller(f"saving {path}", found=str(error)) from None
        older = self._complete()
        CheckPoint().save(str(path))
        for checkpoint in older:
            if checkpoint != path:
                shutil.rmtree(checkpoint, ignore_errors=True)
                checkpoint.with_suffix(".json").unlink(missing_ok=True)
