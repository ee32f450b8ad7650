"""A series of checkpoints in one folder, each named after the time at which it was saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

from flow_core.base.errors import CheckpointError
from flow_core.checkpoint.layout import DONE

_STAMP = "%Y%m%d_%H%M%S_%f"


class CheckpointManager:
    """A manager that saves checkpoints named ``prefix + time`` in a folder, and restores them.

    Args:
        root_path: the folder; it is created if missing.
        prefix: prefix of the checkpoints' names.
        save: the function ``save(path)``, which writes a checkpoint.
        load: the function ``load(path)``, which reads a checkpoint.

    Raises:
        CheckpointError: ``root_path`` is a file.

    >>> import tempfile
    >>> saved = []
    >>> manager = CheckpointManager(tempfile.mkdtemp(), save=saved.append, load=print)
    >>> manager.initialize_or_restore()  # the folder is empty, so it saves
    >>> Path(saved[0]).name[:9], manager.latest_checkpoint()
    ('snapshot_', None)
    """

    def __init__(
        self,
        root_path: str | Path,
        prefix: str = "snapshot_",
        *,
        save: Callable[[str], object],
        load: Callable[[str], object],
    ) -> None:
        self._root = Path(root_path)
        self._prefix = prefix
        self._save = save
        self._load = load
        if self._root.exists() and not self._root.is_dir():
            raise CheckpointError.at_caller(
                f"checkpoints in {root_path}",
                found="a file",
                allowed="a folder, or a path that does not exist",
            )
        with self._explained():
            self._root.mkdir(parents=True, exist_ok=True)

    def list_checkpoints(self) -> list[str]:
        """Return the names of all complete checkpoints, the oldest first."""
        with self._explained():
            names = [entry.name for entry in self._root.iterdir() if (entry / DONE).is_file()]
        return sorted(name for name in names if name.startswith(self._prefix))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Convert file system errors to `CheckpointError`."""
        try:
            yield
        except OSError as error:
            attempted = f"checkpoints in {self._root}"
            raise CheckpointError.at_caller(attempted, found=str(error)) from error

    def latest_checkpoint(self) -> str | None:
        """Return the name of the newest complete checkpoint, or None."""
        return next(reversed(self.list_checkpoints()), None)

    def path_of(self, name: str) -> str:
        """Return the path of the checkpoint with a name."""
        return str(self._root / name)

    def save(self) -> None:
        """Save a new checkpoint, whose name sorts after the names of all others."""
        self._save(self.path_of(self._next_name()))

    def initialize_or_restore(self) -> None:
        """Load the newest checkpoint, or save the first one if there is none."""
        latest = self.latest_checkpoint()
        if latest is None:
            self.save()
        else:
            self._load(self.path_of(latest))

    def _next_name(self) -> str:
        now, latest = datetime.now(), self._latest_time()
        if latest is not None and now <= latest:  # the clock was set back or has not advanced
            now = latest + timedelta(microseconds=1)
        return self._prefix + now.strftime(_STAMP)

    def _latest_time(self) -> datetime | None:
        latest = self.latest_checkpoint()
        try:
            return datetime.strptime(latest.removeprefix(self._prefix), _STAMP) if latest else None
        except ValueError:  # the name has another format
            return None
