"""Files at URLs, through the package fsspec (``flow-data[remote]``)."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from flow_core.base.errors import DataError, described

_local: dict[str, str] = {}
_lock = threading.Lock()


def is_remote(path: str) -> bool:
    """Return whether a path is a URL.

    >>> is_remote("s3://bucket/part-0"), is_remote("/data/part-0")
    (True, False)
    """
    return "://" in path


def local_files(paths: Sequence[str]) -> list[str]:
    """Return local paths of files; files at URLs are copied once per process.

    The copies are in a temporary folder (below the environment variable ``TMPDIR``), which is
    removed at exit.

    Raises:
        DataError: fsspec is not installed, or a file cannot be read.
    """
    return [_copied(path) if is_remote(path) else path for path in paths]


def _copied(url: str) -> str:
    with _lock:
        if url not in _local:
            folder = tempfile.mkdtemp(prefix="flow-data-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            path = os.path.join(folder, url.rstrip("/").rpartition("/")[2] or "file")
            _copy(url, path)
            _local[url] = path
        return _local[url]


def _copy(url: str, path: str) -> None:
    try:
        with library(url).open(url, "rb") as source, open(path, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    except DataError:
        raise
    except Exception as error:  # the libraries of fsspec's protocols raise errors of their own
        raise DataError(
            f"reading {url}", found=described(error), allowed="a readable file"
        ) from error


def library(url: str) -> Any:
    """Return fsspec.

    Raises:
        DataError: it is not installed.
    """
    try:
        return import_module("fsspec")
    except ModuleNotFoundError as error:
        if error.name != "fsspec":
            raise
        raise DataError(
            f"reading {url}", found="fsspec is not installed", hint="install flow-data[remote]"
        ) from None
