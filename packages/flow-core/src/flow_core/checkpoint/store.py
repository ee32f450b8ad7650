"""Saving and loading through any checkpoint format, and comparing with what is wanted.

Formats write into an empty folder and read from a finished one; that a save is atomic, refuses to
overwrite and cleans up is done here, once for all of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flow_core.checkpoint import snapshot, swap
from flow_core.checkpoint.layout import DATA, DONE
from flow_core.checkpoint.snapshot import Array, StoredVariable
from flow_core.dtypes import as_dtype
from flow_core.errors import CheckpointError, FlowError, SourceLine, nearest, user_line
from flow_core.ir import TensorType
from flow_core.plugins.specs import FormatSpec, Lazy
from flow_core.plugins.specs import load as load_target

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
    format: str = SNAPSHOT.name,
    overwrite: bool = False,
) -> None:
    """Saves variables as a checkpoint folder, atomically.

    A kill at any moment leaves what was there before, or the new checkpoint, whole; what it
    leaves behind in hidden folders goes with the next save.  Two saves into the same parent
    folder wait for each other.

    Args:
        path: the folder; missing parents are made.
        variables: arrays by name.
        formats: the formats to choose from, any of which counts as a checkpoint.
        format: name of the one to write.
        overwrite: whether a checkpoint that is already there may be replaced, folder and all.

    Raises:
        CheckpointError: something is there already, the format cannot write these variables, or
            the file system refuses.

    >>> import tempfile, numpy as np
    >>> folder = Path(tempfile.mkdtemp()) / "model"
    >>> save(folder, {"w": np.ones((2, 2), np.float32)})
    >>> load(folder, [SNAPSHOT])["w"].sum().item()
    4.0
    """
    target = Path(path).resolve()  # what a link points to is replaced, not the link
    known = {spec.name: spec for spec in formats}
    writer = _writer(path, format, known)
    with _explained(f"saving {path}"):
        target.parent.mkdir(parents=True, exist_ok=True)
        with swap.locked(target.parent) as alone:
            swap.recover(target)
            _refuse_overwriting(target, known.values(), overwrite)
            if alone:
                swap.remove_leftovers(target)
            _write(target, variables, writer)


def _writer(path: str | Path, format: str, known: Mapping[str, FormatSpec]) -> Lazy:
    spec = known.get(format)
    if spec is None or spec.writer is None:
        raise CheckpointError(
            f"saving {path}",
            at=user_line(),
            found=f"the format {format!r}, which "
            + ("nobody provides" if spec is None else "only reads"),
            allowed=", ".join(name for name, spec in known.items() if spec.writer is not None),
            hint=nearest(format, known) or None,
        )
    return spec.writer


@contextmanager
def _explained(attempted: str) -> Any:
    """Turns errors of the file system into ours."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(attempted, at=user_line(), found=str(error)) from error


def _refuse_overwriting(path: Path, formats: Iterable[FormatSpec], overwrite: bool) -> None:
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    is_checkpoint = path.is_dir() and (
        (path / DONE).is_file() or any(format.can_open(path) for format in formats)
    )
    if overwrite and is_checkpoint:
        return
    what = "a checkpoint" if is_checkpoint else "a folder with other files"
    raise CheckpointError(
        f"saving {path}",
        at=user_line(),
        found=f"{what if path.is_dir() else 'a file'} that is already there",
        allowed="a path where nothing is, an empty folder"
        + (", or with overwrite=True a checkpoint" if overwrite else ""),
        hint="remove it first, save to another path"
        + (", or say overwrite=True" if is_checkpoint else ""),
    )


def _write(path: Path, variables: Mapping[str, Array], writer: Lazy) -> None:
    new = swap.fresh_folder(path)
    try:
        load_target(writer)(new, variables)
        (new / DONE).touch()
        swap.sync_tree(new)
        swap.put_in_place(new, path)
    except BaseException:  # also Ctrl-C: the half-written folder goes, the error goes on
        shutil.rmtree(new, ignore_errors=True)
        raise


def open_path(
    path: str | Path, formats: Iterable[FormatSpec] = (SNAPSHOT,)
) -> Mapping[str, Array] | StoredVariable:
    """What a path holds: the variables of a checkpoint, or one variable of the folder layout.

    Raises:
        CheckpointError: there is nothing, or nothing that one (and only one) format can open.
    """
    folder = Path(path)
    if (folder / DATA).is_file():
        return StoredVariable(folder)
    return load(path, formats)


def load(
    path: str | Path,
    formats: Iterable[FormatSpec] = (SNAPSHOT,),
    types: Mapping[str, TensorType] | None = None,
) -> Mapping[str, Array]:
    """The variables of a checkpoint; most formats read each of them on access.

    Args:
        path: a checkpoint folder, or a file for formats that are one.
        formats: the formats to try.
        types: wanted shapes and element types, for variables that were saved without.

    Raises:
        CheckpointError: there is nothing, or nothing that one (and only one) format can open.
    """
    source = Path(path).resolve()
    with _explained(f"loading {path}"):
        swap.recover_locked(source)
        found: Mapping[str, Array] = load_target(_format_of(source, list(formats)).reader)(source)
    return typed(found, types or {})


def _format_of(path: Path, formats: list[FormatSpec]) -> FormatSpec:
    known = [format for format in formats if format.can_open(path)]
    if len(known) == 1:
        return known[0]
    there = "nothing" if not path.exists() else f"a {'folder' if path.is_dir() else 'file'}"
    claimed = " and ".join(format.name for format in known)
    raise CheckpointError(
        f"loading {path}",
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


def match(
    wanted: Mapping[str, TensorType],
    found: Mapping[str, Any],
    *,
    missing: bool = True,
    fewer: bool = False,
    extra: bool = False,
    attempted: str = "loading variables",
    at: SourceLine | None = None,
) -> tuple[str, ...]:
    """Holds found variables against the wanted ones; one error lists all that is wrong.

    Args:
        wanted: variables of the jobs.
        found: arrays or `StoredVariable` records by name.
        missing: whether a wanted variable that is not there is an error.
        fewer: whether it is none where others are there, and all that are there fit.
        extra: whether a variable that no job has is an error.  OneFlow ignores these by default,
            as a model that was saved while training has variables of its optimizer.
        attempted, at: for the message.

    Returns:
        The names that no job has.

    Raises:
        CheckpointError: lists what is missing, misshapen, truncated and (then always) extra.

    >>> from flow_core.dtypes import float32
    >>> import numpy as np
    >>> match({"w": TensorType((2,), float32)}, {"w": np.ones(2, np.float32), "old": np.ones(1)})
    ('old',)
    """
    more = tuple(name for name in found if name not in wanted)
    absent = [name for name in wanted if name not in found] if missing else []
    wrong = [line for line in (_misfit(n, wanted[n], found) for n in wanted) if line]
    if fewer and not wrong and len(absent) < len(wanted):
        absent = []
    if absent or wrong or (extra and more):
        lines = [*wrong, *(_absent_line(name, wanted[name], more) for name in absent)]
        lines += [f"extra      {name!r}, which no job has" for name in more]
        raise CheckpointError(
            attempted,
            at=at,
            found="".join(f"\n    {line}" for line in lines),
            hint="compare the names, shapes and element types of the jobs with those saved",
        )
    return more


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
