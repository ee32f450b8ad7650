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

from flow_core.base.config import Settings
from flow_core.base.errors import DataError, described
from flow_core.base.formats.urls import (
    file_name,
    has_secrets,
    is_remote,
    shown_url,
    without_secrets,
)
from flow_core.base.time_limit import CallTimeoutError, call_within

_local: dict[str, str] = {}
_lock = threading.Lock()
_BLOCK = 1 << 20


def local_files(paths: Sequence[str]) -> list[str]:
    """Return local paths of files; files at URLs are copied once per process.

    The copies are in a temporary folder (below the environment variable ``TMPDIR``), which is
    removed at exit.  Raises `DataError` if fsspec is not installed, or a file cannot be read.
    """
    return [_copied(path) if is_remote(path) else path for path in paths]


def _copied(url: str) -> str:
    with _lock:
        if url not in _local:
            folder = tempfile.mkdtemp(prefix="flow-data-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            path = os.path.join(folder, file_name(url) or "file")
            _copy(url, path)
            _local[url] = path
        return _local[url]


def _copy(url: str, path: str) -> None:
    seconds = Settings.from_env().url_seconds
    attempted = f"reading {shown_url(url)}"
    try:
        with (
            call_within(seconds, lambda: library(url).open(url, "rb").open()) as source,
            open(path, "wb") as target,
        ):
            while block := call_within(seconds, lambda: source.read(_BLOCK)):
                target.write(block)
    except DataError:
        raise
    except CallTimeoutError:
        raise DataError(
            attempted,
            found=f"no answer within {seconds:g} seconds",
            hint="allow more time: FLOW_URL_SECONDS",
        ) from None
    except Exception as error:  # noqa: BLE001 - the libraries of the protocols raise errors of their own
        raise DataError(
            attempted, found=without_secrets(described(error), url), allowed="a readable file"
        ) from (None if has_secrets(url) else error)  # a printed cause would show them


def library(url: str) -> Any:
    """Return fsspec; raise `DataError` if it is not installed."""
    try:
        return import_module("fsspec")
    except ModuleNotFoundError as error:
        if error.name != "fsspec":
            raise
        raise DataError(
            f"reading {shown_url(url)}",
            found="fsspec is not installed",
            hint="install flow-data[remote]",
        ) from None
