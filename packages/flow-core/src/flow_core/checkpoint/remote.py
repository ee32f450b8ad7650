"""Checkpoints at URLs, through the package fsspec (``flow-core[remote]``).

A checkpoint is written to a temporary folder and copied.  Other storages than file systems cannot
move a folder at once, so a folder is complete when it has the file ``snapshot_done``: it is
copied last, and removed first when the checkpoint is replaced.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from flow_core.base.errors import CheckpointError, FlowError, described, user_line
from flow_core.checkpoint.layout import DONE


def is_remote(path: str | PathLike[str]) -> bool:
    """Return whether a path is a URL.

    >>> is_remote("s3://bucket/model"), is_remote("model")
    (True, False)
    """
    return isinstance(path, str) and "://" in path


@contextmanager
def downloaded(path: str | PathLike[str]) -> Iterator[str]:
    """Yield a local path of a checkpoint; a copy of a remote one is removed afterwards.

    Raises:
        CheckpointError: fsspec is not installed, or the checkpoint cannot be copied.
    """
    if not is_remote(path):
        yield fspath(path)
        return
    url = fspath(path)
    with _explained(f"loading {url}"):
        system, root = _system(url)
        folder = tempfile.TemporaryDirectory(prefix="flow-checkpoint-")
    with folder as temporary:
        local = Path(temporary) / _name(url)
        with _explained(f"loading {url}"):
            if not system.exists(root):
                raise CheckpointError(f"loading {url}", at=user_line(), found="no such path")
            if system.isdir(root):
                _fetch_folder(system, root, local)
            else:
                system.get_file(root, str(local))
        try:
            yield str(local)
        except FlowError as error:
            attempted = error.attempted.replace(str(local), url)
            raise error.with_context(attempted=attempted) from None


def _fetch_folder(system: Any, root: str, local: Path) -> None:
    local.mkdir()
    for name in system.find(root):
        target = local / name[len(root) :].lstrip("/")
        if not target.resolve().is_relative_to(local.resolve()):
            raise CheckpointError("loading a checkpoint", found=f"the file name {name!r:.80}")
        target.parent.mkdir(parents=True, exist_ok=True)
        system.get_file(name, str(target))


def save(url: str, overwrite: bool, write: Callable[[str], None]) -> None:
    """Write a checkpoint to a temporary path, and copy it to a URL.

    Args:
        url: the destination.
        overwrite: whether an existing checkpoint may be replaced.
        write: writes the checkpoint to a local path, whose name is that of the URL.

    Raises:
        CheckpointError: the destination exists and may not be replaced, or a copy fails; a folder
            that was being replaced is then incomplete.
    """
    attempted = f"saving {url}"
    with _explained(attempted):
        system, root = _system(url)
        _check(system, root, attempted, overwrite)
    with tempfile.TemporaryDirectory(prefix="flow-checkpoint-") as temporary:
        local = Path(temporary) / _name(url)
        write(str(local))
        with _explained(attempted):
            if local.is_file():
                system.makedirs(system._parent(root), exist_ok=True)
                system.put_file(str(local), root)
            else:
                _put_folder(system, root, local)


def _check(system: Any, root: str, attempted: str, overwrite: bool) -> None:
    if not system.exists(root) or (system.isdir(root) and not system.find(root)):
        return
    is_checkpoint = system.isfile(root) or system.exists(f"{root}/{DONE}")
    if not (overwrite and is_checkpoint):
        raise CheckpointError(
            attempted,
            at=user_line(),
            found=f"{'a checkpoint' if is_checkpoint else 'a folder'}, which already exists",
            allowed="a path that does not exist, or with overwrite=True a checkpoint",
        )


def _put_folder(system: Any, root: str, local: Path) -> None:
    if system.exists(root):
        if system.exists(f"{root}/{DONE}"):
            system.rm_file(f"{root}/{DONE}")
        system.rm(root, recursive=True)
    files = sorted(path for path in local.rglob("*") if path.is_file())
    for path in sorted(files, key=lambda path: path == local / DONE):
        target = f"{root}/{path.relative_to(local).as_posix()}"
        system.makedirs(target.rpartition("/")[0], exist_ok=True)
        system.put_file(str(path), target)


def _name(url: str) -> str:
    return url.rstrip("/").rpartition("/")[2] or "checkpoint"


def _system(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path in it."""
    try:
        core = import_module("fsspec.core")
    except ModuleNotFoundError as error:
        if error.name != "fsspec":
            raise
        raise CheckpointError(
            f"use of {url}", found="fsspec is not installed", hint="install flow-core[remote]"
        ) from None
    system, root = core.url_to_fs(url)
    return system, root.rstrip("/")


@contextmanager
def _explained(attempted: str) -> Iterator[None]:
    """Convert the errors of fsspec's file systems to `CheckpointError`."""
    try:
        yield
    except FlowError:
        raise
    except Exception as error:  # the libraries of the protocols raise errors of their own
        raise CheckpointError(attempted, at=user_line(), found=described(error)) from error
