"""Saving and loading through any checkpoint format, and comparing with what is wanted.

Formats write into an empty folder and read from a finished one; that a save is atomic, refuses to
overwrite what is no checkpoint and cleans up is done here, once for all of them.  See `guard` for
what a save may replace, `origin` for what a load promises while others save.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import (
    CheckpointError,
    CheckpointReplacedError,
    FlowError,
    SourceLine,
    nearest,
    user_line,
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

_INCOMPLETE = "take a checkpoint that is whole; strict=False loads what is there"

SNAPSHOT = FormatSpec(
    "snapshot",
    snapshot.can_open,
    reader="flow_core.checkpoint.snapshot:read",
    writer="flow_core.checkpoint.snapshot:write",
)
"""OneFlow's own layout, the format of every save that names no other."""


def save(
    path: str | Path,
    variables: Mapping[str, Array],
    formats: Iterable[FormatSpec] = (SNAPSHOT,),
    *,
    format: str | None = None,
    overwrite: bool = False,
) -> None:
    """Save variables as a checkpoint, atomically.

    A kill at any moment leaves what was there before, or the new checkpoint, whole; what it
    leaves behind in hidden folders goes with the next save.  Two saves into the same parent
    folder wait for each other.

    Args:
        path: the folder, or the file for a format of single files; missing parents are made.
        variables: arrays by name.
        formats: the formats to choose from.
        format: name of the one to write; if None the one whose files end as ``path`` does
            (``.safetensors``), else OneFlow's folders.
        overwrite: whether a checkpoint that is already there may be replaced.

    Raises:
        CheckpointError: something is there already, which ``overwrite`` does not cover; the format
            cannot write these variables; the file system refuses.

    >>> import tempfile, numpy as np
    >>> folder = Path(tempfile.mkdtemp()) / "model"
    >>> save(folder, {"w": np.ones((2, 2), np.float32)})
    >>> load(folder, [SNAPSHOT])["w"].sum().item()
    4.0
    """
    attempted = f"saving {path!s:.200}"
    target = _resolved(path, attempted)  # what a link points to is replaced, not the link
    known = {spec.name: spec for spec in formats}
    spec, writer = _format_to_write(path, format, known, attempted)
    to_save = _Save(attempted, target, spec, writer, _is_file_of(path, spec), overwrite)
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
    except (TypeError, ValueError, OSError, RuntimeError) as error:  # no path; NUL; links in a ring
        raise CheckpointError(
            attempted, at=user_line(), found=str(error), allowed="a path, as text or os.PathLike"
        ) from None


def _is_file_of(path: str | Path, spec: FormatSpec) -> bool:
    """Whether a save to a path is a single file, as the path's end says."""
    return spec.file is not None and Path(path).suffix == Path(spec.file).suffix


def _format_to_write(
    path: str | Path, format: str | None, known: Mapping[str, FormatSpec], attempted: str
) -> tuple[FormatSpec, Lazy]:
    if format is None:
        format = next((s.name for s in known.values() if _is_file_of(path, s)), SNAPSHOT.name)
    spec = known.get(format) if isinstance(format, str) else None
    if spec is None or spec.writer is None:
        raise CheckpointError(
            attempted,
            at=user_line(),
            found=f"the format {format!r:.60}, which "
            + ("nobody provides" if spec is None else "only reads"),
            allowed=", ".join(name for name, spec in known.items() if spec.writer is not None),
            hint=nearest(str(format), known) or None,
        )
    return spec, spec.writer


@contextmanager
def _explained(attempted: str) -> Iterator[None]:
    """Turn errors of the file system into ours."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(attempted, at=user_line(), found=str(error)) from error


@dataclass(frozen=True, slots=True)
class _Save:
    """One save.

    Attributes:
        attempted: for messages.
        path: where to.
        spec: the format.
        writer: what writes it.
        single: whether it is a single file.
        overwrite: whether a checkpoint may be replaced.
    """

    attempted: str
    path: Path
    spec: FormatSpec
    writer: Lazy
    single: bool
    overwrite: bool

    def check(self) -> None:
        """Raise `CheckpointError` for what is there and not to be replaced, with its names."""
        if not self.path.exists():
            return
        obstacle = self._file_in_the_way() if self.single else self._folder_in_the_way()
        empty = self.path.is_dir() and not any(self.path.iterdir())
        if obstacle is None and (self.overwrite or empty):
            return
        raise CheckpointError(
            self.attempted,
            at=user_line(),
            found=f"{obstacle or 'a checkpoint'}; it is already there",
            allowed="a path where nothing is"
            + ("" if self.single else ", an empty folder")
            + ", or with overwrite=True a checkpoint that holds nothing else",
            hint="save to another path, or "
            + ("say overwrite=True" if obstacle is None else "move away what is there"),
        )

    def _folder_in_the_way(self) -> str | None:
        if not self.path.is_dir():
            return "a file"
        special = guard.special(self.path)
        if special is not None:
            return f"{special}, which no save replaces"
        return guard.obstacle(self.path) if any(self.path.iterdir()) else None

    def _file_in_the_way(self) -> str | None:
        if not self.path.is_file():
            return "a folder"
        try:
            load_target(self.spec.reader)(self.path)
        except CheckpointError as error:
            return f"a file that is no {self.spec.name} file: {error.found}"
        return None

    def write(self, variables: Mapping[str, Array]) -> None:
        """Write aside and put it in place, if that is still allowed then."""
        new = swap.fresh_folder(self.path)
        try:
            self._fill(new, variables)
            swap.sync_tree(new)
            self.check()
            self._put_in_place(new)
        except BaseException:  # also Ctrl-C: the half-written folder goes, the error goes on
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
    """What a path holds: the variables of a checkpoint, or one variable of the folder layout.

    Raises:
        CheckpointError: as `load`.
    """
    _resolved(path, f"loading {path!s:.200}")
    if (Path(path) / DATA).is_file():
        return StoredVariable(Path(path).absolute())
    return load(path, formats, strict=strict)


def load(
    path: str | Path,
    formats: Iterable[FormatSpec] = (SNAPSHOT,),
    types: Mapping[str, TensorType] | None = None,
    *,
    strict: bool = True,
) -> Mapping[str, Array]:
    """The variables of a checkpoint; most formats read each of them on access.

    Args:
        path: a checkpoint folder, or a file for formats that are one.
        formats: the formats to try.
        types: wanted shapes and element types, for variables that were saved without.
        strict: whether it is an error when the checkpoint is not complete, or variables were
            removed or added since it was saved.

    Raises:
        CheckpointError: there is nothing, nothing that one (and only one) format can open, or the
            checkpoint is damaged; lists all that is wrong.
    """
    attempted = f"loading {path!s:.200}"
    known = list(formats)

    def read() -> Mapping[str, Array]:
        with _explained(attempted):
            swap.recover_locked(_resolved(path, attempted))
            spec = _format_to_read(Path(path), known, attempted)
            found: Mapping[str, Array] = load_target(spec.reader)(Path(path).absolute())
            problems = problems_of(found) if strict else ()
        if problems:
            raise CheckpointError(
                attempted,
                at=user_line(),
                found=_below(problems),
                hint=_INCOMPLETE,
            )
        return found

    return typed(steadily(path, read), types or {})


def steadily(path: str | Path, use: Callable[[], T]) -> T:
    """What a function that loads a checkpoint gives, though others save to its path meanwhile.

    It is called again where it fails because the checkpoint was replaced.  After many failures it
    is called a last time while no save to the path can begin.

    Args:
        path: the checkpoint's.
        use: opens it and reads all that it needs.

    Raises:
        CheckpointError: it fails for another reason.
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
    """What changes when a save replaces a checkpoint."""
    try:
        found = os.stat(path)
        sums = read_sums(path)
    except (OSError, CheckpointError):
        return None
    return found.st_dev, found.st_ino, stamp(path), sums and sums.own


def problems_of(found: Mapping[str, Any]) -> tuple[str, ...]:
    """What is wrong with a checkpoint as a whole, and with what it tells of its variables."""
    problems: tuple[str, ...] = getattr(found, "problems", ())
    names = found if hasattr(found, "type_of") else ()
    return (*problems, *(line for name in names for line in _unreadable(found, name)))


def _unreadable(found: Mapping[str, Any], name: str) -> Iterator[str]:
    try:
        type_of(found, name)
    except CheckpointReplacedError:
        raise
    except FlowError as error:
        yield f"unreadable {name!r}: {error.found or error.attempted}"


def _below(lines: Iterable[str]) -> str:
    """Lines of an error, one below the other."""
    return "".join(f"\n    {line}" for line in lines)


def _format_to_read(path: Path, formats: list[FormatSpec], attempted: str) -> FormatSpec:
    known = [format for format in formats if format.can_open(path)]
    if len(known) == 1:
        return known[0]
    there = "nothing" if not path.exists() else f"a {'folder' if path.is_dir() else 'file'}"
    claimed = " and ".join(format.name for format in known)
    raise CheckpointError(
        attempted,
        at=user_line(),
        found=f"what {claimed} both can open" if known else there,
        allowed=f"a checkpoint in one of the formats {', '.join(f.name for f in formats)}",
        hint=None if known else _beside(path),
    )


def _beside(path: Path) -> str:
    """What to try in place of a path that holds no checkpoint."""
    others = path.parent.iterdir() if path.parent.is_dir() and not path.exists() else ()
    similar = nearest(path.name, [other.name for other in others])
    return similar or "look where it was saved; relative paths start at the working directory"


def typed(found: Mapping[str, Array], types: Mapping[str, TensorType]) -> Mapping[str, Array]:
    """Gives shapes and element types to variables that were saved without."""
    return found.typed(types) if isinstance(found, snapshot.Snapshot) else found


def type_of(found: Mapping[str, Any], name: str) -> TensorType | None:
    """Shape and element type of a found variable, without reading it where the format can."""
    ask = getattr(found, "type_of", None)
    if ask is not None:
        kind: TensorType | None = ask(name)
        return kind
    value = found[name]
    if isinstance(value, StoredVariable):
        return value.type
    return TensorType(tuple(value.shape), as_dtype(value.dtype))


@dataclass(frozen=True, slots=True)
class Mismatch:
    """What a checkpoint and the jobs do not have in common.

    Attributes:
        missing: wanted names that are not there.
        extra: names that no job has.
    """

    missing: tuple[str, ...]
    extra: tuple[str, ...]


def match(
    wanted: Mapping[str, TensorType],
    found: Mapping[str, Any],
    *,
    missing: bool = True,
    fewer: bool = False,
    extra: bool = False,
    incomplete: bool = True,
    attempted: str = "loading variables",
    at: SourceLine | None = None,
) -> Mismatch:
    """Hold found variables against the wanted ones; one error lists all that is wrong.

    Args:
        wanted: variables of the jobs.
        found: arrays or `StoredVariable` records by name.
        missing: whether a wanted variable that is not there is an error.
        fewer: whether it is none where others are there, and all that are there fit.
        extra: whether a variable that no job has is an error.  OneFlow ignores these by default,
            as a model that was saved while training has variables of its optimizer.
        incomplete: whether it is an error when the checkpoint as a whole is not as it was saved.
        attempted, at: for the message.

    Returns:
        What is missing and what no job has.

    Raises:
        CheckpointError: lists what is missing, misshapen, damaged and (then always) extra.
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
    whole: tuple[str, ...] = getattr(found, "problems", ()) if incomplete else ()
    enough = not missing or (fewer and len(absent) < len(wanted))
    if whole or wrong or (absent and not enough) or (extra and more):
        told = absent if missing else ()
        lines = [*whole, *wrong, *(_absent_line(name, wanted[name], more) for name in told)]
        lines += [f"extra      {name!r}, which no job has" for name in more]
        raise CheckpointError(
            attempted,
            at=at,
            found=_below(lines),
            hint=_INCOMPLETE
            if whole
            else "compare the names, shapes and element types of the jobs with those saved",
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
    """Files of their own tell their size without being read."""
    value = found.variables[name] if isinstance(found, snapshot.Snapshot) else None
    if isinstance(found, dict):
        value = found[name]
    if isinstance(value, StoredVariable):
        value.typed(kind).check_size()
