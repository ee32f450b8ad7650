"""Checkpoints at URLs, through the package fsspec (``flow-core[remote]``).

A checkpoint is written to a temporary folder and copied; a load copies it to a temporary folder.
URLs of the local file system are paths.  The module `remote_swap` replaces a checkpoint such that
an interrupted save loses nothing; the module `guard` defines what may be replaced.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from flow_core.base.errors import CheckpointError, CheckpointReplacedError, FlowError
from flow_core.base.formats.urls import file_name, shown_url
from flow_core.base.time_limit import CallTimeoutError
from flow_core.checkpoint import guard, store
from flow_core.checkpoint.origin import TRIES, Array
from flow_core.checkpoint.remote_store import Stamp, Store, is_file, size_of
from flow_core.checkpoint.remote_swap import Journal, RemotePlace
from flow_core.plugins.specs import FormatSpec
from flow_core.plugins.specs import load as load_target

T = TypeVar("T")

_HEAD = (1 << 25) + 8
"""Number of bytes of a file that tell whether it is in a single-file format."""


def _local_name(url: str) -> str:
    """Return a name with the suffixes of a URL, which tell its format."""
    return "checkpoint" + "".join(PurePosixPath(file_name(url)).suffixes)


@contextmanager
def _naming(local: Path, url: str) -> Iterator[None]:
    """Name a URL instead of its local copy in errors."""
    try:
        yield
    except FlowError as error:
        shown, parts = shown_url(url), ("attempted", "found", "hint")
        texts = {part: getattr(error, part) for part in parts}
        changed = {k: t.replace(str(local), shown) for k, t in texts.items() if isinstance(t, str)}
        raise error.with_context(**changed) from None


# ---------------------------------------------------------------------------------------- loads


@contextmanager
def downloaded(url: str, seconds: float) -> Iterator[str]:
    """Yield the path of a local copy of a checkpoint, which is removed afterwards.

    Args:
        seconds: how long a request may take, and a transfer may make no progress.

    Raises:
        CheckpointError: fsspec is not installed, or the checkpoint cannot be copied.
        CheckpointReplacedError: a save replaced the checkpoint while it was copied.
    """
    source = Store(url, seconds)
    attempted = f"loading {source.shown}"
    with tempfile.TemporaryDirectory(prefix="flow-checkpoint-") as temporary:
        local = Path(temporary) / _local_name(url)
        with source.explained(attempted):
            _fetch(source, local, attempted)
        with _naming(local, url):
            yield str(local)


def _fetch(source: Store, local: Path, attempted: str) -> None:
    """Copy all files of the current checkpoint, none of another one."""
    place, files = before = _current(source, attempted)
    if "" not in files:
        local.mkdir()
    try:
        for name, stamp in files.items():
            if is_file(stamp):
                target = local / name
                target.parent.mkdir(parents=True, exist_ok=True)
                path = f"{place}/{name}".strip("/")
                source.get(path, target, size_of(stamp) or 0)
        changed = _current(source, attempted) != before
    except CallTimeoutError:  # do not wait again
        raise
    except Exception:
        if _current(source, attempted) == before:
            raise
        changed = True
    if changed:
        raise CheckpointReplacedError.at_caller(
            attempted,
            found="files that another program replaced in the meantime",
            allowed="a checkpoint that does not change while it is copied",
            hint="load it again",
        )


def _current(source: Store, attempted: str) -> tuple[str, dict[str, Stamp]]:
    """Return the path of the current checkpoint, relative to the URL, and its files' stamps."""
    journal = Journal(source)
    if journal.current:
        return journal.current, journal.contents()
    kind = source.kind()
    if kind is None:
        raise CheckpointError.at_caller(attempted, found="no such path")
    return "", source.listing() if kind == "folder" else {"": source.stamp()}


def steadily(use: Callable[[], T]) -> T:
    """Call a function that loads a checkpoint; retry if a concurrent save replaces it."""
    for _ in range(TRIES):
        try:
            return use()
        except CheckpointReplacedError:
            continue
    return use()


# ---------------------------------------------------------------------------------------- saves


def save(
    url: str,
    variables: Mapping[str, Array],
    formats: Iterable[FormatSpec],
    seconds: float,  # how long a request may take, and a transfer may make no progress
    *,
    format: str | None = None,  # as in `store.save`
    overwrite: bool = False,
) -> None:
    """Save variables as a checkpoint at a URL.

    If it is interrupted, the URL holds its previous checkpoint or the new one, and the next save
    removes what is left.  Saves to one URL are not serialized.

    Raises:
        CheckpointError: the URL exists and ``overwrite`` does not allow replacing it; the format
            cannot store these variables; or the store reports an error.
    """
    formats = tuple(formats)
    attempted = f"saving {shown_url(url)}"
    target = _destination(url, seconds, attempted)
    known = {spec.name: spec for spec in formats}
    spec, _ = store.format_to_write(file_name(url), format, known, attempted)
    single = spec.name if store.is_file_of(file_name(url), spec) else None

    def checked() -> RemotePlace:
        place = RemotePlace(target, partial(_opened, spec, attempted))
        guard.check(place, attempted, single=single, overwrite=overwrite)
        return place

    with target.explained(attempted):
        checked()
    with tempfile.TemporaryDirectory(prefix="flow-checkpoint-") as temporary:
        local = Path(temporary) / _local_name(url)
        with _naming(local, url):
            store.save(local, variables, formats, format=spec.name)
        files = {"": local} if local.is_file() else dict(_files(local))
        with target.explained(attempted):
            place = checked()
            place.journal.replace(files, place.old, place.first)


def _destination(url: str, seconds: float, attempted: str) -> Store:
    """Return the store of a URL; raise `CheckpointError` if the guard cannot tell what is there."""
    store = None if "::" in url else Store(url, seconds)
    found = "a chain of stores" if store is None else store.obstacle()
    if store is None or found is not None:
        raise CheckpointError.at_caller(
            attempted,
            found=found,
            allowed="a path, or a URL of one store, such as s3://bucket/model",
        )
    return store


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path


def _opened(spec: FormatSpec, attempted: str, source: Store, name: str) -> Any:
    """Open the start of a file in a store with the reader of a format."""
    with tempfile.TemporaryDirectory(prefix="flow-checkpoint-") as temporary:
        local = Path(temporary) / str(spec.file)
        with source.explained(attempted):
            source.head(name, _HEAD, local)
        with _naming(local, source.url):
            return load_target(spec.reader)(local)
