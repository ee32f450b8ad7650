"""Saving and loading checkpoints in any format, and comparing them with the variables of jobs.

The writer of a format writes into an empty folder, and its reader reads from a finished one.  For
all formats, this module makes saves atomic, refuses to overwrite anything but a checkpoint, and
removes the leftovers of killed saves.  The module `guard` defines what a save may replace; the
module `origin` defines what a load guarantees during concurrent saves.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import (
    CheckpointError,
    CheckpointReplacedError,
    FlowError,
    SourceLine,
    UnsupportedError,
    nearest,
)
from flow_core.checkpoint import guard, snapshot, swap
from flow_core.checkpoint.layout import DATA, DONE
from flow_core.checkpoint.origin import TRIES, Array, stamp
from flow_core.checkpoint.snapshot import StoredVariable
from flow_core.checkpoint.sums import read_sums, write_sums
from flow_core.ir.graph import TensorType
from flow_core.plugins.specs import FormatSpec, Lazy
from flow_core.plugins.specs import load as load_target

T = TypeVar("T")

_INCOMPLETE = "use a complete checkpoint; strict=False loads the variables that it has"

SNAPSHOT = FormatSpec(
    "snapshot",
    snapshot.can_open,
    reader="flow_core.checkpoint.snapshot:read",
    writer="flow_core.checkpoint.snapshot:write",
)
"""OneFlow's own layout, the default format of a save."""


def save(
    path: str | Path,  # folder, or the file of a single-file format; missing parents are created
    variables: Mapping[str, Array],
    formats: Iterable[FormatSpec] = (SNAPSHOT,),
    *,
    # Name of the format to write; if None, the format that the suffix of ``path`` selects (such as
    # ``.safetensors``), or else OneFlow's folders.
    format: str | None = None,
    overwrite: bool = False,  # whether an existing checkpoint may be replaced
) -> None:
    """Save variables as a checkpoint, atomically.

    If the process is killed, the path holds either its previous contents or the complete new
    checkpoint; the next save removes leftover hidden folders.  Saves into the same parent folder
    are serialized.

    Raises:
        CheckpointError: the path exists and ``overwrite`` does not allow replacing it; the format
            cannot store these variables; or the file system reports an error.

    >>> import tempfile, numpy as np
    >>> folder = Path(tempfile.mkdtemp()) / "model"
    >>> save(folder, {"w": np.ones((2, 2), np.float32)})
    >>> load(folder, [SNAPSHOT])["w"].sum().item()
    4.0
    """
    attempted = f"saving {path!s:.200}"
    target = _resolved(path, attempted)  # a save replaces the target of a symbolic link
    known = {spec.name: spec for spec in formats}
    spec, writer = format_to_write(path, format, known, attempted)
    to_save = _Save(attempted, target, spec, writer, is_file_of(path, spec), overwrite)
    with _explained(attempted):
        if target.parent == target:
            to_save.check()
        target.parent.mkdir(parents=True, exist_ok=True)
        with swap.locked(target.parent) as alone:
            swap.recover(target)
            to_save.check()
            if alone:
                swap.remove_leftovers(target)
            to_save.write(variables)


def _resolved(path: Any, attempted: str) -> Path:
    try:
        return Path(path).resolve()
    except (
        TypeError,
        ValueError,
        OSError,
        RuntimeError,
    ) as error:  # no path, a path with a NUL character, or cyclic links
        raise CheckpointError.at_caller(
            attempted, found=str(error), allowed="a path, as text or os.PathLike"
        ) from None


def is_file_of(path: str | Path, spec: FormatSpec) -> bool:
    """Return whether the suffix of a path selects a single-file format."""
    return spec.file is not None and Path(path).suffix == Path(spec.file).suffix


def format_to_write(
    path: str | Path, format: str | None, known: Mapping[str, FormatSpec], attempted: str
) -> tuple[FormatSpec, Lazy]:
    """Return the format of a save and its writer, by its name or the suffix of a path.

    Raises `CheckpointError` if the format is not registered, or cannot be written.
    """
    if format is None:
        format = next((s.name for s in known.values() if is_file_of(path, s)), SNAPSHOT.name)
    spec = known.get(format) if isinstance(format, str) else None
    if spec is None or spec.writer is None:
        raise CheckpointError.at_caller(
            attempted,
            found=f"the format {format!r:.60}, which "
            + ("is not registered" if spec is None else "is read-only"),
            allowed=", ".join(name for name, spec in known.items() if spec.writer is not None),
            hint=nearest(str(format), known) or None,
        )
    return spec, spec.writer


@contextmanager
def _explained(attempted: str) -> Iterator[None]:
    """Convert file system errors to `CheckpointError`."""
    try:
        yield
    except OSError as error:
        raise CheckpointError.at_caller(attempted, found=str(error)) from error


@dataclass(frozen=True, slots=True)
class _Save:
    """One save of a checkpoint, with its destination and format."""

    attempted: str  # for error messages
    path: Path
    spec: FormatSpec
    writer: Lazy
    single: bool  # whether the checkpoint is a single file
    overwrite: bool  # whether an existing checkpoint may be replaced

    def check(self) -> None:
        """Raise `CheckpointError` if the destination exists and must not be replaced."""
        place = guard.LocalPlace(self.path, load_target(self.spec.reader))
        single = self.spec.name if self.single else None
        guard.check(place, self.attempted, single=single, overwrite=self.overwrite)

    def write(self, variables: Mapping[str, Array]) -> None:
        """Write a hidden folder, check the destination again, and move the folder to it."""
        new = swap.fresh_folder(self.path)
        try:
            self._fill(new, variables)
            swap.sync_tree(new)
            self.check()
            self._put_in_place(new)
        except BaseException:  # on Ctrl-C, too, remove the partial folder
            shutil.rmtree(new, ignore_errors=True)
            raise

    def _fill(self, new: Path, variables: Mapping[str, Array]) -> None:
        load_target(self.writer)(new, variables)
        if not self.single:
            write_sums(new)
            (new / DONE).touch()

    def _put_in_place(self, new: Path) -> None:
        if not self.single:
            swap.put_in_place(new, self.path, guard.remove)
            return
        os.replace(new / str(self.spec.file), self.path)
        swap.sync(self.path.parent)
        shutil.rmtree(new)


def open_path(
    path: str | Path, formats: Iterable[FormatSpec] = (SNAPSHOT,), *, strict: bool = True
) -> Mapping[str, Array] | StoredVariable:
    """Open a checkpoint, or the folder of one variable in OneFlow's layout.

    Raises:
        CheckpointError: for the same reasons as in `load`.
    """
    _resolved(path, f"loading {path!s:.200}")
    if (Path(path) / DATA).is_file():
        with _explained(f"loading {path!s:.200}"):
            return StoredVariable(Path(path).absolute())
    return load(path, formats, strict=strict)


def load(
    path: str | Path,  # a checkpoint folder, or the file of a single-file format
    formats: Iterable[FormatSpec] = (SNAPSHOT,),  # the formats to try
    # Expected shapes and element types, for variables that were saved without them.
    types: Mapping[str, TensorType] | None = None,
    *,
    # Whether to reject a checkpoint that is incomplete, or whose variables were added or removed
    # after the save.
    strict: bool = True,
) -> Mapping[str, Array]:
    """Load the variables of a checkpoint; most formats read each variable on access.

    Raises:
        CheckpointError: the path does not exist, no format or more than one can open it, or the
            checkpoint is damaged; the error lists all problems.
    """
    attempted = f"loading {path!s:.200}"
    known = list(formats)

    def read() -> Mapping[str, Array]:
        with _explained(attempted):
            swap.recover_locked(_resolved(path, attempted))
            spec = _format_to_read(Path(path), known, attempted)
            variables: Mapping[str, Array] = load_target(spec.reader)(Path(path).absolute())
            problems = problems_of(variables) if strict else ()
        if problems:
            raise CheckpointError.at_caller(attempted, found=_indented(problems), hint=_INCOMPLETE)
        return variables

    return typed(steadily(path, read), types or {})


def steadily(path: str | Path, use: Callable[[], T]) -> T:
    """Call a function that loads a checkpoint; retry if a concurrent save replaces the checkpoint.

    After `TRIES` failures, the last call is made while holding the lock that saves to the path
    need.

    Args:
        use: the function, which opens the checkpoint and reads all that it needs.

    Raises:
        CheckpointError: the load fails for another reason.
    """
    source = _resolved(path, f"loading {path!s:.200}")
    for _ in range(TRIES):
        before = _identity(source)
        try:
            return use()
        except CheckpointReplacedError:
            continue
        except CheckpointError:
            if _identity(source) == before:
                raise
    with _explained(f"loading {path!s:.200}"), swap.locked(source.parent):
        return use()


def _identity(path: Path) -> object:
    """Return a key that changes when a save replaces the checkpoint."""
    try:
        status = os.stat(path)
        sums = read_sums(path)
    except (OSError, CheckpointError):
        return None
    return status.st_dev, status.st_ino, stamp(path), sums and sums.own


@runtime_checkable
class Typed(Protocol):
    """A checkpoint that has the types of its variables without their data."""

    def type_of(self, name: str) -> TensorType | None:
        """Return a variable's shape and element type; None if they are not stored."""


def _problems(found: Mapping[str, Any]) -> tuple[str, ...]:
    return found.problems if isinstance(found, snapshot.Snapshot) else ()


def problems_of(found: Mapping[str, Any]) -> tuple[str, ...]:
    """List the problems of a checkpoint as a whole and of its variables' metadata."""
    names = found if isinstance(found, Typed) else ()
    return (*_problems(found), *(line for name in names for line in _unreadable(found, name)))


def _unreadable(found: Mapping[str, Any], name: str) -> Iterator[str]:
    try:
        type_of(found, name)
    except UnsupportedError:  # the tensor is not damaged; a program that does not need it may load
        return
    except CheckpointReplacedError:
        raise
    except FlowError as error:
        yield f"unreadable {name!r}: {error.found or error.attempted}"


def _indented(lines: Iterable[str]) -> str:
    """Join lines of an error message so that each is on an indented line of its own."""
    return "".join(f"\n    {line}" for line in lines)


def _format_to_read(path: Path, formats: list[FormatSpec], attempted: str) -> FormatSpec:
    known = [format for format in formats if format.can_open(path)]
    if len(known) == 1:
        return known[0]
    other = "no such path" if not path.exists() else f"a {'folder' if path.is_dir() else 'file'}"
    claimed = " and ".join(format.name for format in known)
    raise CheckpointError.at_caller(
        attempted,
        found=f"a path that both {claimed} can open" if known else other,
        allowed=f"a checkpoint in one of the formats {', '.join(f.name for f in formats)}",
        hint=None if known else _alternative(path),
    )


def _alternative(path: Path) -> str:
    """Suggest another path for a path that holds no checkpoint."""
    others = path.parent.iterdir() if path.parent.is_dir() and not path.exists() else ()
    similar = nearest(path.name, [other.name for other in others])
    return similar or "check the path of the save; relative paths start at the working directory"


def typed(found: Mapping[str, Array], types: Mapping[str, TensorType]) -> Mapping[str, Array]:
    """Set shapes and element types of variables that were saved without them."""
    return found.typed(types) if isinstance(found, snapshot.Snapshot) else found


def type_of(found: Mapping[str, Any], name: str) -> TensorType | None:
    """Return a variable's shape and element type, without reading its data where possible."""
    if isinstance(found, Typed):
        return found.type_of(name)
    value = found[name]
    if isinstance(value, StoredVariable):
        return value.type
    return TensorType(tuple(value.shape), as_dtype(value.dtype))


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Differences between the variables of a checkpoint and of the jobs."""

    missing: tuple[str, ...]  # variables of the jobs that the checkpoint lacks
    extra: tuple[str, ...]  # variables of the checkpoint that no job has


def match(
    wanted: Mapping[str, TensorType],  # variables of the jobs
    found: Mapping[str, Any],  # arrays or `StoredVariable` records by name
    *,
    missing: bool = True,  # whether to reject a checkpoint that lacks a variable
    # Whether, if ``missing`` is set, to accept a checkpoint that has at least one of the variables.
    fewer: bool = False,
    # Whether to reject variables that no job has.  OneFlow ignores them by default, as checkpoints
    # that were saved during training contain optimizer state.
    extra: bool = False,
    # Whether to reject a checkpoint whose contents differ from what was saved.
    incomplete: bool = True,
    attempted: str = "loading variables",  # description and source line for the error message
    at: SourceLine | None = None,
) -> Mismatch:
    """Compare the variables of a checkpoint with those of the jobs; report all problems at once.

    Returns:
        The missing and the extra variables.

    Raises:
        CheckpointError: variables are missing, damaged or have another shape; the error lists these
            variables, and extra variables, too.
        CheckpointReplacedError: another checkpoint was saved to the path in the meantime.

    >>> from flow_core.base.dtypes import float32
    >>> import numpy as np
    >>> arrays = {"w": np.ones(2, np.float32), "old": np.ones(1)}
    >>> match({"w": TensorType((2,), float32)}, arrays)
    Mismatch(missing=(), extra=('old',))
    """
    more = tuple(name for name in found if name not in wanted)
    absent = tuple(name for name in wanted if name not in found)
    wrong = [line for line in (_misfit(n, wanted[n], found) for n in wanted) if line]
    whole = _problems(found) if incomplete else ()
    enough = not missing or (fewer and len(absent) < len(wanted))
    if whole or wrong or (absent and not enough) or (extra and more):
        reported = absent if missing else ()
        lines = [*whole, *wrong, *(_absent_line(name, wanted[name], more) for name in reported)]
        lines += [f"extra      {name!r}, which no job has" for name in more]
        raise CheckpointError(
            attempted,
            at=at,
            found=_indented(lines),
            hint=_INCOMPLETE
            if whole
            else "compare the names, shapes and element types of the jobs' variables with those "
            "saved",
        )
    return Mismatch(absent, more)


def _absent_line(name: str, kind: TensorType, others: Iterable[str]) -> str:
    close = nearest(name, others, count=1)
    return f"missing    {name!r}, {kind}" + (f"; {close}" if close else "")


def _misfit(name: str, kind: TensorType, found: Mapping[str, Any]) -> str | None:
    if name not in found:
        return None
    try:
        saved = type_of(found, name) or kind
        if saved.shape != kind.shape or saved.dtype.numpy != kind.dtype.numpy:
            return f"misshapen  {name!r}: saved {saved}, wanted {kind}"
        _check_size(found, name, kind)
    except CheckpointReplacedError:
        raise
    except FlowError as error:
        return f"unreadable {name!r}: {error.found or error.attempted}, wanted {kind}"
    return None


def _check_size(found: Mapping[str, Any], name: str, kind: TensorType) -> None:
    """Check the size of the file of a variable with its own file, without reading the file."""
    value = found.variables[name] if isinstance(found, snapshot.Snapshot) else None
    if isinstance(found, dict):
        value = found[name]
    if isinstance(value, StoredVariable):
        value.typed(kind).check_size()
