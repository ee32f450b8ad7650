"""Checkpoints of the session's variables: ``flow.train`` and ``flow.checkpoint``."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import CheckpointError, shown, user_line
from flow_core.base.planning import end_script
from flow_core.checkpoint import store
from flow_core.checkpoint.manager import CheckpointManager
from flow_core.checkpoint.snapshot import Snapshot
from flow_core.frontend.job.train import SYSTEM
from flow_core.frontend.session.rank_zero import load_collectively, save_collectively
from flow_core.frontend.session.session import default_session
from flow_core.ir.graph import TensorType
from flow_core.plugins.specs import FormatSpec

__all__ = ["CheckPoint", "SimpleCheckPointManager", "get", "save"]

_log = logging.getLogger("flow_core")


def _formats() -> tuple[FormatSpec, ...]:
    return tuple(default_session().registry.formats.values())


def save(
    path: str,
    var_dict: Mapping[str, Array] | None = None,
    overwrite: bool = False,
    format: str | None = None,
) -> None:
    """Save variables as a new checkpoint, atomically.

    Of several processes, which all call it, the first one writes, and all return when the
    checkpoint is complete.

    Args:
        path: folder that does not exist yet or is empty; or a file that ends with
            ``.safetensors``, which other programs read, too.
        var_dict: what to save: arrays, or objects with ``numpy()``, by name; all variables of the
            session when None.  Arrays are saved as the first process has them.
        overwrite: whether a checkpoint that is there may be replaced.  What holds anything else is
            never replaced.
        format: "snapshot", OneFlow's folders, "safetensors", or a plugin's; if None the path tells.

    Raises:
        CheckpointError: something is there already, or writing fails; nothing is lost then.
    """
    _check_path("flow.checkpoint.save", path)
    _check_values(var_dict)
    end_script("saving a checkpoint")
    session = default_session()

    def write(variables: Mapping[str, Array]) -> None:
        store.save(path, variables, _formats(), format=format, overwrite=overwrite)

    def put(variables: Mapping[str, Any]) -> None:
        arrays, world = _Arrays(variables), session.world
        write(arrays) if world is None else save_collectively(world, arrays, write)

    if var_dict is not None:
        session.sync()  # not still: variables among the values wait for that by themselves
        put(var_dict)
        return
    with session.quiesced():
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

    def __init__(self, variables: Mapping[str, Array]) -> None:
        self._variables = variables

    def __getitem__(self, name: str) -> Array:
        value = self._variables[name]
        return value.numpy() if hasattr(value, "numpy") else np.asarray(value)

    def __contains__(self, name: object) -> bool:
        return name in self._variables  # the inherited one would make the array

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)


def get(path: str, strict: bool = True) -> Any:
    """The variables of a checkpoint by name, or the one variable whose own folder is given.

    Each has ``shape``, ``dtype`` and ``numpy()``, which reads it: from the checkpoint that was
    opened, or not at all.  Of several processes the first one reads all of them at once, and gives
    them to the others.

    Args:
        path: a checkpoint: a folder, or a ``.safetensors`` file.
        strict: whether it is an error when the checkpoint is not complete, or variables were
            removed or added since it was saved.

    Raises:
        CheckpointError: there is no checkpoint, or a damaged one; lists all that is wrong.
        CheckpointReplacedError: from ``numpy()``: another checkpoint was saved to the path since.
    """
    _check_path("flow.checkpoint.get", path)
    world = default_session().world
    if world is None:
        found = store.open_path(path, _formats(), strict=strict)
        if isinstance(found, Snapshot):
            return dict(found.variables)
        return dict(_each(found)) if isinstance(found, Mapping) else found
    arrays = load_collectively(world, _reader(path, strict))
    held = {name: _Held(array) for name, array in arrays.items()}
    return held[_ALONE] if [*held] == [_ALONE] else held


def _each(found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The variables of a format that has no objects for them."""
    for name in found:
        kind = store.type_of(found, name)
        yield name, _Found(found, name, kind) if kind is not None else found[name]


_ALONE = ""
"""Name of a variable whose own folder is given."""


def _reader(path: str, strict: bool) -> Callable[[], Mapping[str, Array]]:
    formats = _formats()

    def read() -> Mapping[str, Array]:
        found = store.open_path(path, formats, strict=strict)
        if not isinstance(found, Mapping):
            return {_ALONE: found.numpy()}
        return {name: found[name] for name in found}

    return lambda: store.steadily(path, read)


class _Found:
    """A variable of a checkpoint, which is read when it is asked for."""

    def __init__(self, found: Mapping[str, Array], name: str, kind: TensorType) -> None:
        self._found, self._name = found, name
        self.shape, self.dtype = kind.shape, kind.dtype

    def numpy(self) -> Array:
        """Its value."""
        return self._found[self._name]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self.numpy(), dtype)

    def __repr__(self) -> str:
        return f"<variable {self._name!r}, {self.dtype}{list(self.shape)}>"


class _Held:
    """A variable of a checkpoint that another process has read."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self.shape = array.shape
        self.dtype = as_dtype(array.dtype)

    def numpy(self) -> Array:
        """Its value, a copy."""
        return self._array.copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self._array, dtype)


def _load(path: str, strict: bool | None = None) -> None:
    _check_path("CheckPoint.load", path)
    end_script("loading a checkpoint")
    session, line, formats = default_session(), user_line(2), _formats()
    wanted, world = session.types(), session.world

    def read() -> dict[str, Array]:
        found = store.load(path, formats, types=wanted, strict=False)
        odd = store.match(
            wanted,
            found,
            missing=strict is not False,
            fewer=strict is None,
            extra=strict is True,
            incomplete=strict is not False,
            attempted=f"loading {path}",
            at=line,
        )
        values = {name: found[name] for name in wanted if name in found}
        if strict is None:
            tell_mismatch(f"loading {path} (at {line})", odd, wanted)
        return values

    def steady() -> dict[str, Array]:
        return store.steadily(path, read)

    session.assign(steady() if world is None else load_collectively(world, steady))


def tell_mismatch(attempted: str, odd: store.Mismatch, wanted: Mapping[str, Any]) -> None:
    """Log in one warning which variables a load left alone, and which names it ignored.

    Not told of are the states that an optimizer keeps for variables which are there: programs that
    do not train have none.
    """
    extra = [name for name in odd.extra if not _is_state(name, wanted)]
    told = [
        f"{len(names)} {what}: {_some(names)}"
        for names, what in (
            (odd.missing, "variables are not in it, and keep their values"),
            (extra, "of its names are of no variable, and are ignored"),
        )
        if names
    ]
    if told:
        _log.warning("%s: %s", attempted, "; ".join(told))


def _is_state(name: str, wanted: Mapping[str, Any]) -> bool:
    return name.startswith(f"{SYSTEM}-") or name.rpartition("-")[0] in wanted


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_TOLD]) + (f" and {len(names) - _TOLD} more" if names[_TOLD:] else "")


_TOLD = 20
"""How many names of a kind a warning has."""


class CheckPoint:
    """Initialises, saves and loads all variables of the session."""

    def init(self) -> None:
        """Gives every variable its initial value."""
        end_script("CheckPoint.init")
        default_session().initialize()

    def save(self, path: str, overwrite: bool = False, format: str | None = None) -> None:
        """Save all variables as a new checkpoint; see `flow.checkpoint.save`."""
        save(path, overwrite=overwrite, format=format)

    def load(self, path: str, strict: bool | None = None) -> None:
        """Load the variables that a checkpoint has; others keep their values.

        A network that begins with the weights of a part of it, and an optimizer that begins anew,
        find less than all; a program that does not train has no use for an optimizer's states.

        Args:
            path: a checkpoint: a folder, or a ``.safetensors`` file.
            strict: what is wrong when names differ.  True: every variable that is missing and
                every name that no variable has.  None: only that nothing fits, or the checkpoint
                is not complete; one warning lists the rest.  False: nothing, silently.

        Raises:
            CheckpointError: see ``strict``; or variables have another shape, or the files are
                damaged.  Lists all that is wrong; nothing is loaded then.
        """
        _load(path, strict)


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
            raise error.with_context(at=user_line(2)) from None

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
