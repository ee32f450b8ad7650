"""Checkpoints of the session's variables: ``flow.train`` and ``flow.checkpoint``."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

from flow_core.checkpoint import store
from flow_core.checkpoint.manager import CheckpointManager
from flow_core.checkpoint.snapshot import Snapshot
from flow_core.dtypes import as_dtype
from flow_core.errors import CheckpointError, SourceLine, shown, user_line
from flow_core.frontend.session import default_session
from flow_core.frontend.together import load_together, save_together
from flow_core.planning import end_script
from flow_core.plugins.specs import FormatSpec

__all__ = ["CheckPoint", "SimpleCheckPointManager", "get", "save"]

_log = logging.getLogger("flow_core")


def _formats() -> tuple[FormatSpec, ...]:
    return tuple(default_session().registry.formats.values())


def save(path: str, var_dict: Mapping[str, Any] | None = None, overwrite: bool = False) -> None:
    """Saves variables into a new folder, atomically.

    Of several processes, which all call it, the first one writes, and all return when the
    checkpoint is complete.

    Args:
        path: folder that does not exist yet or is empty.
        var_dict: what to save: arrays, or objects with ``numpy()``, by name; all variables of the
            session when None.  Arrays are saved as the first process has them.
        overwrite: whether a checkpoint that is there may be replaced.

    Raises:
        CheckpointError: the folder holds something, or writing fails; nothing is lost then.
    """
    _check_path("flow.checkpoint.save", path)
    _check_values(var_dict)
    end_script("saving a checkpoint")
    session = default_session()

    def write(variables: Mapping[str, Any]) -> None:
        store.save(path, variables, _formats(), overwrite=overwrite)

    def put(variables: Mapping[str, Any]) -> None:
        arrays, world = _Arrays(variables), session.world
        write(arrays) if world is None else save_together(world, arrays, write)

    if var_dict is not None:
        session.sync()  # not still: variables among the values wait for that by themselves
        put(var_dict)
        return
    with session.still():
        put(session.stored())


def _check_path(attempted: str, path: object) -> None:
    """Raises `CheckpointError` at the user's line unless this is a path."""
    if not isinstance(path, str | PathLike):
        allowed = "a path, as text or os.PathLike"
        raise CheckpointError(attempted, at=user_line(), found=shown(path), allowed=allowed)


def _check_values(values: object) -> None:
    """Raises `CheckpointError` at the user's line unless these are arrays by name, or None."""
    if values is None:
        return
    found = shown(values)
    if isinstance(values, Mapping):
        wrong = [k for k, v in values.items() if not isinstance(k, str) or not _is_array(v)]
        if not wrong:
            return
        found = f"{shown(wrong[0])}: {shown(values[wrong[0]])}"
    raise CheckpointError(
        "flow.checkpoint.save",
        at=user_line(),
        found=f"var_dict with {found}",
        allowed="a dict of arrays, or of objects with numpy(), by variable name",
    )


def _is_array(value: object) -> bool:
    return hasattr(value, "numpy") or np.asarray(value).dtype.kind not in "OSUMm"


class _Arrays(Mapping[str, Any]):
    """The arrays of variables, each copied to the host when it is asked for."""

    def __init__(self, variables: Mapping[str, Any]) -> None:
        self._variables = variables

    def __getitem__(self, name: str) -> Any:
        value = self._variables[name]
        return value.numpy() if hasattr(value, "numpy") else np.asarray(value)

    def __contains__(self, name: object) -> bool:
        return name in self._variables  # the inherited one would make the array

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)


def get(path: str) -> Any:
    """The variables of a checkpoint by name, or the one variable whose own folder is given.

    Each has ``shape``, ``dtype`` and ``numpy()``, which reads it.  Of several processes the first
    one reads all of them at once, and gives them to the others.
    """
    _check_path("flow.checkpoint.get", path)
    world = default_session().world
    if world is None:
        found = store.open_path(path, _formats())
        return dict(found.variables) if isinstance(found, Snapshot) else found
    held = {name: _Held(array) for name, array in load_together(world, _reader(path)).items()}
    return held[_ALONE] if [*held] == [_ALONE] else held


_ALONE = ""
"""Name of a variable whose own folder is given."""


def _reader(path: str) -> Callable[[], Mapping[str, Any]]:
    formats = _formats()

    def read() -> Mapping[str, Any]:
        found = store.open_path(path, formats)
        return found if isinstance(found, Mapping) else {_ALONE: found.numpy()}

    return read


class _Held:
    """A variable of a checkpoint that another process has read."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.shape = array.shape
        self.dtype = as_dtype(array.dtype)

    def numpy(self) -> Any:
        """Its value, a copy."""
        return self._array.copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self._array, dtype)


def _load(path: str) -> None:
    _check_path("CheckPoint.load", path)
    end_script("loading a checkpoint")
    session, line = default_session(), user_line(2)
    wanted, world = session.types(), session.world

    def read() -> dict[str, Any]:
        found = store.load(path, _formats(), types=wanted)
        store.match(wanted, found, fewer=True, attempted=f"loading {path}", at=line)
        _tell([name for name in wanted if name not in found], path, line)
        return {name: found[name] for name in wanted if name in found}

    session.assign(read() if world is None else load_together(world, read))


def _tell(kept: Sequence[str], path: str, line: SourceLine | None) -> None:
    """Says which variables were not loaded."""
    if kept:
        some = ", ".join(kept[:_TOLD]) + (", ..." if len(kept) > _TOLD else "")
        text = "loading %s (at %s): %d variables are not in it, and keep their values: %s"
        _log.warning(text, path, line, len(kept), some)


_TOLD = 5
"""How many variables a warning names."""


class CheckPoint:
    """Initialises, saves and loads all variables of the session."""

    def init(self) -> None:
        """Gives every variable its initial value."""
        end_script("CheckPoint.init")
        default_session().initialize()

    def save(self, path: str, overwrite: bool = False) -> None:
        """Saves all variables into a new folder; see `flow.checkpoint.save`."""
        save(path, overwrite=overwrite)

    def load(self, path: str) -> None:
        """Loads the variables that a checkpoint has; others keep their values, which is logged.

        A network that begins with the weights of a part of it, and an optimizer that begins anew,
        find less than all.

        Raises:
            CheckpointError: the checkpoint has none of the variables, or some in another shape;
                lists these and all that are missing.
        """
        _load(path)


class SimpleCheckPointManager(CheckpointManager):
    """Numbered checkpoints below one folder, of several processes as the first one sees it.

    Args:
        root_path: the folder; made when it is not there.
        prefix: first part of the names of the checkpoints' folders.
    """

    def __init__(self, root_path: str, prefix: str = "snapshot_") -> None:
        _check_path("flow.train.SimpleCheckPointManager", root_path)
        end_script("making a folder of checkpoints")
        try:
            super().__init__(root_path, prefix, save=save, load=_load)
        except CheckpointError as error:
            raise error.told(at=user_line(2)) from None

    def list_checkpoints(self) -> list[str]:
        """Names of all finished checkpoints, the oldest first.

        Several processes, which must all ask, get the same answer: what they do next depends on it.
        """
        world = default_session().world
        if world is None:
            return super().list_checkpoints()
        found = super().list_checkpoints() if world.rank == 0 else []
        names: list[str] = json.loads(world.gather(json.dumps(found).encode(), "checkpoints")[0])
        return names
