"""The checkpoint of the best value of a metric."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike, fspath

from flow_core.api.session.train import CheckPoint
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
        self.path = fspath(path)
        self._save, self._load = save, load

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
