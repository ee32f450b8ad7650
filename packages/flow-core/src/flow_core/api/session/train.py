"""Checkpoints of the session's variables: ``flow.train`` and ``flow.checkpoint``."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from typing import Any, TypeVar

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import DType, as_dtype
from flow_core.base.errors import (
    CheckpointError,
    SourceLine,
    UnsupportedError,
    located,
    shown,
    user_line,
)
from flow_core.base.formats.urls import is_remote, local_path, shown_url
from flow_core.base.host_arrays import HostDLPack, host_array
from flow_core.base.planning import end_script
from flow_core.base.shapes import Shape
from flow_core.checkpoint import remote, store
from flow_core.checkpoint.manager import CheckpointManager
from flow_core.checkpoint.snapshot import Snapshot
from flow_core.frontend.job.train import SYSTEM
from flow_core.frontend.session.rank_zero import load_collectively, save_collectively
from flow_core.frontend.session.session import default_session
from flow_core.ir.graph import TensorType
from flow_core.plugins.specs import FormatSpec

__all__ = ["CheckPoint", "SimpleCheckPointManager", "get", "save"]

T = TypeVar("T")

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

    All processes must call it; the first one writes, and all return when the checkpoint is
    complete.

    Args:
        path: a new or empty folder, or a file whose name ends with ``.safetensors``, a format that
            other programs also read; with ``flow-core[remote]``, also a URL that fsspec knows.
        var_dict: arrays, or objects with ``numpy()``, by name; by default all variables of the
            session.  The arrays of the first process are written.
        overwrite: whether to replace an existing checkpoint.  Other files and folders are never
            replaced.
        format: "snapshot" for OneFlow's folders, "safetensors", or the name of a plugin's format;
            by default derived from the path.

    Raises: CheckpointError: the path exists, or writing fails; existing files are kept.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> @flow.global_function()
    ... def job() -> tp.Numpy:
    ...     return flow.get_variable("w", (2,), initializer=flow.ones_initializer())
    >>> flow.checkpoint.save(f"{folder.name}/model")
    >>> flow.checkpoint.get(f"{folder.name}/model")["w"].numpy()
    array([1., 1.], dtype=float32)
    >>> folder.cleanup()
    """
    path = checked_path("flow.checkpoint.save", path)
    _check_values(var_dict)
    end_script("saving a checkpoint")

    def write(variables: Mapping[str, Array]) -> None:
        options: dict[str, Any] = {"format": format, "overwrite": overwrite}
        if is_remote(path):
            remote.save(path, variables, _formats(), _seconds(), **options)
        else:
            store.save(path, variables, _formats(), **options)

    save_by(write, var_dict)


def save_by(
    write: Callable[[Mapping[str, Array]], None], var_dict: Mapping[str, Array] | None = None
) -> None:
    """Gather variables, and write them on the first process.

    Args:
        write: writes arrays by name; its error is raised in all processes.
        var_dict: arrays by name; by default all variables of the session.
    """
    session = default_session()

    def put(variables: Mapping[str, Any]) -> None:
        arrays, world = _Arrays(variables), session.world
        write(arrays) if world is None else save_collectively(world, arrays, write)

    if var_dict is not None:
        session.sync()  # do not wait for steps here: reading a variable among the values waits
        put(var_dict)
        return
    with session.quiesced():
        put(session.stored())


def checked_path(attempted: str, path: Any, folder: bool = False) -> str:
    """Return a path or URL as text; a URL of the local file system becomes a path.

    Args:
        attempted: description for the error.
        path: what the user passed.
        folder: whether other URLs are refused.

    Raises: CheckpointError: the argument is not a path; the error names the user's line.
    """
    text = local_path(path) if isinstance(path, str) else path
    allowed = "a folder of the file system" if folder else "a path, as text or os.PathLike"
    if isinstance(path, PathLike):
        text = fspath(path)
        if isinstance(text, str) and re.match(r"[A-Za-z][\w+.-]+:[/\\]", text):
            # a pathlib.Path drops one of the slashes of a URL
            allowed, text = "a URL as text", None
    if not isinstance(text, str) or (folder and is_remote(text)):
        found = shown_url(text) if isinstance(text, str) else shown(path)
        raise CheckpointError.at_caller(attempted, found=found, allowed=allowed)
    return text


def _seconds() -> float:
    return default_session().settings.url_seconds


def _check_values(values: object) -> None:
    """Raise `CheckpointError` at the user's line unless the argument is None or maps names to
    arrays.
    """
    if values is None:
        return
    found = shown(values)
    if isinstance(values, Mapping):
        wrong = [k for k, v in values.items() if not isinstance(k, str) or not _is_array(v)]
        if not wrong:
            return
        found = f"{shown(wrong[0])}: {shown(values[wrong[0]])}"
    raise CheckpointError.at_caller(
        "flow.checkpoint.save",
        found=f"var_dict with {found}",
        allowed="a dict of arrays, or of objects with numpy(), by variable name",
    )


def _is_array(value: object) -> bool:
    return hasattr(value, "numpy") or np.asarray(value).dtype.kind not in "OSUMm"


class _Arrays(Mapping[str, Any]):
    """A mapping from names to variables' arrays, which copies an array to the host on access."""

    def __init__(self, variables: Mapping[str, Array]) -> None:
        self._variables = variables

    def __getitem__(self, name: str) -> Array:
        return host_array(self._variables[name])

    def __contains__(self, name: object) -> bool:
        return name in self._variables  # the inherited method would copy the array

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)


def get(path: str, strict: bool = True) -> Any:
    """Return the variables of a checkpoint by name, or a single variable from its own folder.

    Each variable has ``shape``, ``dtype`` and ``numpy()``, which reads the value from the opened
    checkpoint and fails if the checkpoint was replaced.  If there are several processes, the first
    one reads all variables at once and broadcasts them.

    Args:
        path: a checkpoint: a folder, or a ``.safetensors`` file.
        strict: whether to fail if the checkpoint is incomplete, or variables were removed or
            added since it was saved.

    Returns: A dictionary from names to variables, whose values are read by ``numpy()``; for the
        folder of a variable, that variable. Tensors of other programs that flow cannot read, such
        as those of 16-bit integers, are among them and raise `UnsupportedError` on access; if there
        are several processes or the path is a URL, they are left out with a warning.

    Raises:
        CheckpointError: the checkpoint does not exist or is damaged; the error lists all problems.
        CheckpointReplacedError: raised by ``numpy()`` if another checkpoint was saved to the path.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> @flow.global_function()
    ... def job() -> tp.Numpy:
    ...     return flow.get_variable("w", (2,), initializer=flow.ones_initializer())
    >>> flow.checkpoint.save(f"{folder.name}/model")
    >>> found = flow.checkpoint.get(f"{folder.name}/model")
    >>> {name: value.shape for name, value in found.items()}
    {'w': (2,)}
    >>> folder.cleanup()
    """
    path = checked_path("flow.checkpoint.get", path)
    world = default_session().world
    with located(user_line(2)):
        if world is None and not is_remote(path):
            found = store.open_path(path, _formats(), strict=strict)
            if isinstance(found, Snapshot):
                return dict(found.variables)
            return dict(_each(found)) if isinstance(found, Mapping) else found
        read = _reader(path, strict)
        arrays = read() if world is None else load_collectively(world, read)
    held = {name: _LoadedVariable(array) for name, array in arrays.items()}
    return held[_ALONE] if [*held] == [_ALONE] else held


def opened(path: str | PathLike[str]) -> Mapping[str, Any]:
    """Return the arrays of a checkpoint in any format; each may be read on access.

    Raises: CheckpointError: the checkpoint does not exist, is damaged, or is a single variable.
    """
    path = checked_path("flow.weights.load", path)
    if is_remote(path):
        return _reader(path, strict=True)()
    found = store.open_path(path, _formats())
    if not isinstance(found, Mapping):
        allowed = "a checkpoint of several variables"
        raise CheckpointError(f"loading {path}", found="a folder of one variable", allowed=allowed)
    return found


def _each(found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Wrap the arrays of a checkpoint whose format has no objects for variables."""
    for name in found:
        kind = _type_or_error(found, name)
        yield name, found[name] if kind is None else _LazyVariable(found, name, kind)


def _type_or_error(found: Mapping[str, Any], name: str) -> TensorType | UnsupportedError | None:
    """Return the type of a stored tensor, or the error if flow has no such type."""
    try:
        return store.type_of(found, name)
    except UnsupportedError as error:
        return error


_ALONE = ""
"""Return the name of a variable from its own folder."""


def _reader(path: str, strict: bool) -> Callable[[], Mapping[str, Array]]:
    formats = _formats()

    def read() -> Mapping[str, Array]:
        with _local(path) as local:
            found = store.open_path(local, formats, strict=strict)
            if not isinstance(found, Mapping):
                return {_ALONE: found.numpy()}
            kinds = {name: _type_or_error(found, name) for name in found}
            skipped = {k: None for k, v in kinds.items() if isinstance(v, UnsupportedError)}
            if skipped:
                _log.warning("%s: not read, of unsupported types: %s", path, _some([*skipped]))
            return {name: found[name] for name in found if name not in skipped}

    return lambda: _steadily(path, read)


@contextmanager
def _local(path: str) -> Iterator[str]:
    """Yield a path; for a URL, that of a copy."""
    if not is_remote(path):
        yield path
        return
    with remote.downloaded(path, _seconds()) as local:
        yield local


def _steadily(path: str, read: Callable[[], T]) -> T:
    return remote.steadily(read) if is_remote(path) else store.steadily(path, read)


class _LazyVariable(HostDLPack):
    """A variable of a checkpoint, read on access."""

    def __init__(
        self, found: Mapping[str, Array], name: str, kind: TensorType | UnsupportedError
    ) -> None:
        self._found, self._name, self._kind = found, name, kind

    @property
    def shape(self) -> Shape:
        """The shape."""
        return self._known(user_line(2)).shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self._known(user_line(2)).dtype

    def _known(self, line: SourceLine | None) -> TensorType:
        if isinstance(self._kind, UnsupportedError):
            raise self._kind.with_context(at=line)
        return self._kind

    def numpy(self) -> Array:
        """Return the variable's value."""
        with located(user_line(2)):
            return self._found[self._name]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self.numpy(), dtype)

    def __repr__(self) -> str:
        kind = self._kind if isinstance(self._kind, TensorType) else self._kind.found
        return f"<variable {self._name!r}, {kind}>"


class _LoadedVariable(HostDLPack):
    """A variable of a checkpoint that another process read."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self.shape = array.shape
        self.dtype = as_dtype(array.dtype)

    def numpy(self) -> Array:
        """Return a copy of the variable's value."""
        return self._array.copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self._array, dtype)


def _load(path: str, strict: bool | None = None) -> None:
    path = checked_path("CheckPoint.load", path)
    end_script("loading a checkpoint")
    session, line, formats = default_session(), user_line(2), _formats()
    wanted, world = session.types(), session.world

    def read() -> dict[str, Array]:
        with _local(path) as local:
            return matched(local)

    def matched(local: str) -> dict[str, Array]:
        found = store.load(local, formats, types=wanted, strict=False)
        odd = store.match(
            wanted,
            found,
            missing=strict is not False,
            fewer=strict is None,
            extra=strict is True,
            incomplete=strict is not False,
            attempted=f"loading {shown_url(path)}",
            at=line,
        )
        values = {name: found[name] for name in wanted if name in found}
        if strict is None:
            log_mismatch(f"loading {shown_url(path)} (at {line})", odd, wanted)
        return values

    def steady() -> dict[str, Array]:
        return _steadily(path, read)

    session.assign(steady() if world is None else load_collectively(world, steady))


def log_mismatch(attempted: str, odd: store.Mismatch, wanted: Mapping[str, Any]) -> None:
    """Log one warning with the variables that a load did not change, and the names it ignored.

    The warning omits optimizer states of existing variables, since programs that do not train have
    no such states.
    """
    extra = [name for name in odd.extra if not is_state(name, wanted)]
    told = [
        f"{len(names)} {what}: {_some(names)}"
        for names, what in (
            (odd.missing, "variables are missing from it, and keep their values"),
            (extra, "of its names belong to no variable, and are ignored"),
        )
        if names
    ]
    if told:
        _log.warning("%s: %s", attempted, "; ".join(told))


def is_state(name: str, wanted: Mapping[str, Any]) -> bool:
    """Return whether a variable is a state of the training, such as of an optimizer."""
    return name.startswith(f"{SYSTEM}-") or name.rpartition("-")[0] in wanted


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_TOLD]) + (f" and {len(names) - _TOLD} more" if names[_TOLD:] else "")


_TOLD = 20
"""Maximum number of names of each kind that a warning lists."""


class CheckPoint:
    """Initialization, saving and loading of all variables of the session.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> @flow.global_function()
    ... def job() -> tp.Numpy:
    ...     return flow.get_variable("w", (2,), initializer=flow.ones_initializer())
    >>> checkpoint = flow.train.CheckPoint()
    >>> checkpoint.save(f"{folder.name}/model")
    >>> checkpoint.load(f"{folder.name}/model")
    >>> folder.cleanup()
    """

    def init(self) -> None:
        """Set every variable to its initial value."""
        end_script("CheckPoint.init")
        default_session().initialize()

    def save(self, path: str, overwrite: bool = False, format: str | None = None) -> None:
        """Save all variables as a new checkpoint; see `flow.checkpoint.save`."""
        save(path, overwrite=overwrite, format=format)

    def load(self, path: str, strict: bool | None = None) -> None:
        """Load the variables of a checkpoint; others keep their values.

        A checkpoint may lack some of the program's variables (if the network grew, or the optimizer
        is new), and may contain variables that the program does not use (such as an optimizer's
        states).

        Args:
            path: a checkpoint: a folder, or a ``.safetensors`` file.
            strict: what to do if names differ.  True: fail if any variable is missing or any name
                is unknown.  None: fail only if no name matches or the checkpoint is incomplete, and
                list other differences in one warning.  False: never fail or warn.

        Raises:
            CheckpointError: names differ (see ``strict``), a variable has another shape, or a file
                is damaged.  The error lists all problems, and nothing is loaded.
        """
        _load(path, strict)


class SimpleCheckPointManager(CheckpointManager):
    """Numbered checkpoints below one folder of the first process's file system.

    Args:
        root_path: the folder, which is created if it does not exist.
        prefix: first part of the names of the checkpoints' folders.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> @flow.global_function()
    ... def job() -> tp.Numpy:
    ...     return flow.get_variable("w", (2,), initializer=flow.ones_initializer())
    >>> manager = flow.train.SimpleCheckPointManager(folder.name)
    >>> manager.save()
    >>> len(manager.list_checkpoints())
    1
    >>> folder.cleanup()
    """

    def __init__(self, root_path: str, prefix: str = "snapshot_") -> None:
        attempted = "flow.train.SimpleCheckPointManager"
        root_path = checked_path(attempted, root_path, folder=True)
        end_script("creating a folder of checkpoints")
        try:
            super().__init__(root_path, prefix, save=save, load=_load)
        except CheckpointError as error:
            raise error.with_context(at=user_line(2)) from None

    def list_checkpoints(self) -> list[str]:
        """Return the names of all complete checkpoints, the oldest first.

        All processes must call this method, and all get the same result.
        """
        world = default_session().world
        if world is None:
            return super().list_checkpoints()
        found = super().list_checkpoints() if world.rank == 0 else []
        names: list[str] = json.loads(world.gather(json.dumps(found).encode(), "checkpoints")[0])
        return names
