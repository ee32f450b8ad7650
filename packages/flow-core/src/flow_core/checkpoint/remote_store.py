"""The stores of URLs, through the package fsspec: requests with a time limit, and typed errors."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from flow_core.base.errors import CheckpointError, FlowError, described
from flow_core.base.formats.urls import has_secrets, shown_url, without_secrets
from flow_core.base.time_limit import CallTimeoutError, call_within

Result = TypeVar("Result")
Stamp = tuple[str, ...]
"""What a store tells about the contents of a file, in text form; the type is first."""

_TOLD = (
    "type", "size", "etag", "ETag", "mtime", "LastModified", "last_modified", "updated", "created",
    "generation", "md5Hash", "Content-MD5",
)  # fmt: skip
_FILE = "file"
_SLOWEST = 1 << 20
"""Bytes per second of a transfer that reports no progress."""


class Store:
    """The store of a URL.  Paths are relative to the URL's own path; "" is that path itself.

    A path with a leading ``../`` is beside the URL's path.

    Args:
        seconds: how long a request may take, and a transfer may make no progress.

    Attributes:
        shown: the URL without passwords and tokens.

    Raises:
        CheckpointError: fsspec is not installed, or does not know the URL.
    """

    def __init__(self, url: str, seconds: float) -> None:
        self.url, self.shown, self._seconds = url, shown_url(url), seconds
        self.system: Any
        with self.explained(f"use of {self.shown}"):
            connect = _library(self.shown).url_to_fs
            self.system, root = call_within(seconds, lambda: connect(url))
        base, mark, query = root.partition("?") if "://" in root else (root, "", "")
        self.root, self._query = base.rstrip("/"), mark + query

    # ------------------------------------------------------------------------------- requests

    @contextmanager
    def explained(self, attempted: str) -> Iterator[None]:
        """Convert the errors of a ``with`` block to `CheckpointError`, without secrets."""
        try:
            yield
        except FlowError:
            raise
        except CallTimeoutError:
            raise CheckpointError.at_caller(
                attempted,
                found=f"no answer within {self._seconds:g} seconds",
                hint="allow more time: FLOW_URL_SECONDS",
            ) from None
        except Exception as error:  # noqa: BLE001 - the libraries of the protocols raise errors of their own
            hidden = has_secrets(self.url)  # a printed cause would show them
            found = without_secrets(described(_origin(error)), self.url)
            cause = None if hidden else error
            raise CheckpointError.at_caller(attempted, found=found) from cause

    def call(self, method: str, *args: Any, nbytes: int = 0, **options: Any) -> Any:
        """Call a method of the file system with a time limit.

        Args:
            nbytes: number of bytes that it transfers without reporting progress.
        """
        seconds = self._seconds + nbytes / _SLOWEST
        return call_within(seconds, lambda: getattr(self.system, method)(*args, **options))

    def _transfer(self, method: str, source: str, target: str, nbytes: int) -> None:
        """Copy a file; the time limit starts anew whenever the file system reports progress."""
        progress = _library(self.shown, "callbacks").Callback()
        call_within(
            self._seconds + nbytes / _SLOWEST,
            lambda: getattr(self.system, method)(source, target, callback=progress),
            lambda: progress.value,
        )

    def path(self, name: str) -> str:
        """Return the path in the file system of a relative path."""
        root = self.root
        while name.startswith("../"):
            root, name = root.rpartition("/")[0], name[3:]
        return (f"{root}/{name}" if name else root) + self._query

    # ---------------------------------------------------------------------------------- reads

    def kind(self, name: str = "") -> str | None:
        """Return "file", "folder", a description of anything else, or None if nothing exists."""
        self.call("invalidate_cache")
        try:
            kind = self.call("info", self.path(name))["type"]
            if "://" in self.root and self.call("isdir", self.path(name)):
                kind = "directory"  # HTTP servers do not tell folders from files
        except FileNotFoundError as error:
            if _is_missing(error):
                return None
            raise
        return {"directory": "folder", _FILE: _FILE}.get(kind, f"{kind}"[:20])

    def stamp(self, name: str = "") -> Stamp:
        return _stamp(self.call("info", self.path(name)))

    def top(self) -> list[str]:
        """Return the names in the URL's folder."""
        paths = self.call("ls", self.path(""), detail=False)
        names = {self._relative(name, "") for name in paths}
        return sorted(names - {""})

    def listing(self, name: str = "") -> dict[str, Stamp]:
        """Return the stamps of all files and folders below a folder; empty if it does not exist.

        The methods ``find`` and ``walk`` of fsspec leave out folders that cannot be listed, so only
        those of stores that list a whole tree at once are used.
        """
        self.call("invalidate_cache")
        try:
            if not _overrides(self.system, "find"):
                return self._walk(name)
            infos = self.call("find", self.path(name), withdirs=True, detail=True)
        except FileNotFoundError as error:
            if _is_missing(error):
                return {}
            raise
        stamps = {self._relative(path, name): _stamp(info) for path, info in infos.items() if info}
        stamps.pop("", None)
        return stamps

    def _walk(self, name: str) -> dict[str, Stamp]:
        stamps: dict[str, Stamp] = {}
        waiting = [""]
        while waiting:
            above = waiting.pop()
            below = f"{name}/{above}".strip("/")
            for info in self.call("ls", self.path(below), detail=True):
                relative = self._relative(info["name"], below)
                if relative and "?" not in relative:  # index pages have links that sort them
                    path = f"{above}/{relative}".strip("/")
                    stamps[path] = _stamp(info)
                    if is_folder(stamps[path]):
                        waiting.append(path)
        return stamps

    def _relative(self, found: str, below: str) -> str:
        """Return the path of a listed file relative to a listed folder."""
        path, full = self.path(below), f"{found.rstrip('/')}/"
        name = full.removeprefix(f"{path}/").removeprefix(f"{path.removesuffix(self._query)}/")
        name = name.rstrip("/")
        if name == found.rstrip("/") or (name and posixpath.normpath(f"/{name}") != f"/{name}"):
            raise CheckpointError(f"listing {self.shown}", found=f"the file name {found!a:.80}")
        return name

    def text(self, name: str, most: int) -> bytes:
        """Return the contents of a small file; empty if it is larger than ``most`` bytes."""
        size = self.call("info", self.path(name))["size"]
        if size is None or size > most:
            return b""
        data: bytes = self.call("cat_file", self.path(name), nbytes=size)
        return data

    def head(self, name: str, most: int, local: Path) -> None:
        """Write the first bytes of a file to a local one of the same size, filled with zeros."""
        size = self.call("info", self.path(name))["size"] or 0
        count = min(size, most)
        data = self.call("cat_file", self.path(name), start=0, end=count, nbytes=count)
        with local.open("wb") as handle:
            handle.write(data)
            handle.truncate(size)

    def get(self, name: str, local: Path, nbytes: int = 0) -> None:
        """Copy a file of the store to a local path."""
        self._transfer("get_file", self.path(name), str(local), nbytes)

    # --------------------------------------------------------------------------------- writes

    def obstacle(self) -> str | None:
        """Return why a save to the URL is refused whatever is there, or None."""
        if isinstance(self.system, _library(self.shown, "implementations.local").LocalFileSystem):
            return "the local file system by another name"
        inside = self.root.partition("://")[2] if "://" in self.root else self.root
        odd = not {"", ".", ".."}.isdisjoint(inside.split("/")[1:])
        return "a path with an empty component, '.' or '..'" if odd else None

    @property
    def deletes(self) -> bool:
        """Whether files of the store can be deleted; ``http`` lacks this."""
        return _overrides(self.system, "rm_file", "rm")

    def put(self, local: Path, name: str) -> None:
        """Copy a local file to the store."""
        self._make_parent(name)
        self._transfer("put_file", str(local), self.path(name), local.stat().st_size)

    def copy(self, source: str, target: str, local: Path) -> None:
        """Copy a file within the store, or upload an equal local file if the store cannot."""
        self._make_parent(target)
        try:
            nbytes = local.stat().st_size
            self.call("cp_file", self.path(source), self.path(target), nbytes=nbytes)
        except NotImplementedError:
            self.put(local, target)

    def write(self, name: str, data: bytes) -> None:
        self._make_parent(name)
        self.call("pipe_file", self.path(name), data)

    def _make_parent(self, name: str) -> None:
        folder = self.path(name).rpartition("/")[0]
        if folder.strip("/") and not is_top(folder):
            self.call("makedirs", folder, exist_ok=True)

    def remove(self, name: str) -> None:
        """Delete a file; it may be missing."""
        with suppress(FileNotFoundError):
            self.call("rm_file", self.path(name))

    def remove_empty(self, names: Iterable[str]) -> None:
        """Delete folders if they are empty."""
        for name in sorted(names, key=len, reverse=True):
            try:
                self.call("rmdir", self.path(name))
            except CallTimeoutError:
                raise
            except Exception:  # noqa: BLE001 - it is not empty, or the store has no folders
                pass


def is_top(path: str) -> bool:
    """Return whether a path in a file system names a whole bucket, server or file system."""
    return "/" not in (path.partition("://")[2] if "://" in path else path).rstrip("/")


def _stamp(info: Mapping[str, Any]) -> Stamp:
    return tuple(f"{info.get(key)}" for key in _TOLD)


def is_file(stamp: Stamp) -> bool:
    """Return whether a stamp is that of a regular file."""
    return stamp[0] == _FILE


def is_folder(stamp: Stamp) -> bool:
    """Return whether a stamp is that of a folder."""
    return stamp[0] == "directory"


def size_of(stamp: Stamp) -> int | None:
    """Return a file's size in bytes; None if the store does not tell."""
    return int(stamp[1]) if stamp[1].isdigit() else None


def _origin(error: BaseException) -> BaseException:
    """Return the first of a chain of errors; fsspec reports any error as a missing file."""
    while isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _is_missing(error: BaseException) -> bool:
    origin = _origin(error)
    return isinstance(origin, FileNotFoundError) or getattr(origin, "status", None) in (404, 410)


def _overrides(system: Any, *methods: str) -> bool:
    """Return whether a file system has its own version of one of some methods."""
    bases = (_library("", "spec").AbstractFileSystem, _library("", "asyn").AsyncFileSystem)
    names = {*methods, *(f"_{name}" for name in methods)}
    known = {getattr(base, name, None) for base in bases for name in names}
    return any(getattr(type(system), name, None) not in known for name in names)


def _library(shown: str, module: str = "core") -> Any:
    try:
        return import_module(f"fsspec.{module}")
    except ModuleNotFoundError as error:
        if error.name != "fsspec":
            raise
        raise CheckpointError(
            f"use of {shown}", found="fsspec is not installed", hint="install flow-core[remote]"
        ) from None
