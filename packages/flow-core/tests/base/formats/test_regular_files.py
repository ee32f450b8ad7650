"""Readers open regular files only: pipes, sockets and devices are refused at once."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flow_core.base.formats import regular_files
from flow_core.base.formats.regular_files import open_regular, read_regular

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs pipes with names")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(path))  # the path of a socket has at most 107 bytes


def _nothing(path: Path) -> None:
    assert not path.exists()


OTHERS: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "a folder": os.mkdir,
    "a character device": lambda path: path.symlink_to("/dev/zero"),
    "No such file": _nothing,
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_files_are_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "file"
    OTHERS[kind](path)
    with pytest.raises(OSError, match=f"{kind}.*{path}"):
        open_regular(path)
    with pytest.raises(OSError, match=kind):
        read_regular(path, 10)


def test_a_file_that_becomes_a_pipe_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, pipe = tmp_path / "file", tmp_path / "pipe"
    file.write_bytes(b"12")
    os.mkfifo(pipe)
    before, found = set(os.listdir("/dev/fd")), os.stat(file)
    monkeypatch.setattr(regular_files.os, "stat", lambda _: found)
    with pytest.raises(OSError, match="a pipe"):
        open_regular(pipe)
    assert set(os.listdir("/dev/fd")) == before


@pytest.mark.parametrize("name", ["a\0b", "a\ud800", "a" * 5000])
def test_names_that_no_file_has(name: str) -> None:
    with pytest.raises(OSError, match=r"Errno") as found:
        open_regular(name)
    assert not isinstance(found.value, UnicodeError)


def test_a_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular(str(path), 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_regular(path, 4)
