"""The numbers of epochs as event files that TensorBoard reads."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from typing import TYPE_CHECKING

from flow_core.base.errors import shown
from flow_core.base.planning import is_planning
from flow_fit.arguments import check, check_path, number

if TYPE_CHECKING:
    from flow_core.summary.events import EventsWriter


class TensorBoard:
    """Writes the numbers of each epoch to an event file; a callback of `fit`.

    TensorBoard is not needed to write the file.  A run that is resumed adds a file, from its epoch
    on.

    Args:
        folder: the folder that ``tensorboard --logdir`` is given, or one below it for each run.
        prefix: what precedes the names of the numbers, such as "train/".

    Attributes:
        folder: the folder.
        written: the number of epochs written.

    Raises:
        ConfigError: an argument is invalid.
    """

    def __init__(self, folder: str | PathLike[str], prefix: str = "") -> None:
        check_path("TensorBoard", "folder", folder)
        check(isinstance(prefix, str), "TensorBoard", f"prefix={shown(prefix)}", "text")
        self.folder = fspath(folder)
        self.written = 0
        self._prefix = prefix
        self._writer: EventsWriter | None = None

    def __repr__(self) -> str:
        return f"TensorBoard(folder={self.folder!r}, written={self.written})"

    def __call__(self, numbers: Mapping[str, float]) -> None:
        """Write the numbers of an epoch; its step is "epoch", or else how many were written.

        Raises:
            ConfigError: a value is not one number.
        """
        if is_planning():
            return
        from flow_core.summary.events import EventsWriter, scalar

        step = int(number("TensorBoard", numbers.get("epoch", self.written)))
        values = {k: number("TensorBoard", v) for k, v in numbers.items() if k != "epoch"}
        if self._writer is None:
            self._writer = EventsWriter(self.folder)
        for name, value in values.items():
            self._writer.add(step, scalar(self._prefix + name, value))
        self._writer.flush()
        self.written += 1
