"""Stores for tests of checkpoints at URLs: one that dies at a chosen write, one behind HTTP.

Neither can rename, and a write that is interrupted leaves the first half of the file.
"""

from __future__ import annotations

import http.client
import http.server
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import fsspec
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem


class Killed(Exception):
    """The program was killed: none of its requests has an effect any more."""


class DyingStore(MemoryFileSystem):  # type: ignore[misc]
    """Files in memory; the write number ``last`` is half done, and later requests fail.

    Attributes:
        writes: number of writes so far.
        last: number of the write that fails, None for none.
        half: whether that write leaves half of a file, instead of nothing.
        at_write: called before each write.
    """

    protocol = "dying"
    store: dict[str, Any] = {}  # noqa: RUF012 - as fsspec declares it
    pseudo_dirs = [""]  # noqa: RUF012
    writes = 0
    last: int | None = None
    half = False
    at_write: Callable[[], object] | None = None

    @classmethod
    def reset(cls, last: int | None = None, half: bool = False) -> None:
        """Start a program: count its writes anew."""
        cls.writes, cls.last, cls.half, cls.at_write = 0, last, half, None

    @classmethod
    def clear(cls) -> None:
        """Remove all files."""
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]
        cls.reset()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("dying://", "memory://", 1)))

    def _alive(self) -> None:
        if self.last is not None and type(self).writes >= self.last:
            raise Killed

    def _write(self, undo: Callable[[], object] = lambda: None) -> None:
        """Count a write that was done; undo a part of it if the program is killed there."""
        type(self).writes += 1
        if type(self).writes == self.last:
            undo()
            raise Killed
        if self.at_write is not None:
            type(self).at_write, call = None, self.at_write
            call()

    def _half(self, path: str, before: Any) -> Callable[[], object]:
        def undo() -> None:
            if not self.half:
                self.store.pop(path, None)
                if before is not None:
                    self.store[path] = before
            elif len(data := self.store[path].getvalue()) > 1:
                self.store[path] = MemoryFile(self, path, data[: len(data) // 2])

        return undo

    def _changed(self, path: str, change: Callable[[], object]) -> None:
        self._alive()
        path = self._strip_protocol(path)
        before = self.store.get(path)
        change()
        self._write(self._half(path, before))

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        self._changed(rpath, lambda: super(DyingStore, self).put_file(lpath, rpath, **options))

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        self._changed(path, lambda: super(DyingStore, self).pipe_file(path, value, **options))

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        self._changed(path2, lambda: super(DyingStore, self).cp_file(path1, path2, **options))

    def rm_file(self, path: str) -> None:
        self._alive()
        super().rm_file(path)
        self._write()

    def info(self, path: str, **options: Any) -> Any:
        self._alive()
        return super().info(path, **options)

    def find(self, path: str, *args: Any, **options: Any) -> Any:
        self._alive()
        return super().find(path, *args, **options)


class HttpStore(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Files of a server of `served`.  FLOW_TEST_WRITES is the number of writes before the end."""

    protocol = "tested"
    cachable = False
    writes = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("tested://").rstrip("/")

    def _ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        if method != "GET":
            type(self).writes += 1
            if str(type(self).writes) == os.environ.get("FLOW_TEST_WRITES"):
                os._exit(9)
        host, _, name = path.partition("/")
        connection = http.client.HTTPConnection(host, timeout=60)
        try:
            connection.request(method, f"/{quote(name)}", body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        host, _, name = self._strip_protocol(path).partition("/")
        names = json.loads(self._ask("GET", f"{host}/?list")[1])
        if name in names:
            found = {name: (names[name], "file")}
        else:
            start = f"{name}/" if name else ""
            below = {n: n[len(start) :].split("/") for n in names if n.startswith(start)}
            found = {
                start + parts[0]: (names[n], "file" if len(parts) == 1 else "directory")
                for n, parts in below.items()
            }
        if name and not found:
            raise FileNotFoundError(path)
        infos = [{"name": f"{host}/{n}", "size": s, "type": t} for n, (s, t) in found.items()]
        return infos if detail else [info["name"] for info in infos]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        found = self.ls(path)
        alone = [info for info in found if info["name"] == path]
        return alone[0] if alone else {"name": path, "size": 0, "type": "directory"}

    def cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        status, data = self._ask("GET", self._strip_protocol(path))
        if status != http.client.OK:
            raise FileNotFoundError(path)
        return data[start:end]

    def get_file(self, rpath: str, lpath: str, **_: Any) -> None:
        Path(lpath).write_bytes(self.cat_file(rpath))

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes())

    def pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        self._ask("PUT", self._strip_protocol(path), value)

    def rm_file(self, path: str) -> None:
        self._ask("DELETE", self._strip_protocol(path))


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Any

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, status: int, data: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        files: dict[str, bytes] = self.server.files
        name = unquote(urlsplit(self.path).path)[1:]
        if self.path in ("/?list", "/%3Flist"):
            self._answer(200, json.dumps({n: len(d) for n, d in files.items()}).encode())
        else:
            self._answer(200 if name in files else 404, files.get(name, b""))

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.files[unquote(self.path)[1:]] = data
        self._answer(200)

    def do_DELETE(self) -> None:
        self.server.files.pop(unquote(self.path)[1:], None)
        self._answer(200)


@contextmanager
def served() -> Iterator[tuple[str, dict[str, bytes]]]:
    """Run a server of files; yield its host and port, and the files by path."""
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.files = {}
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", server.files
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


fsspec.register_implementation("dying", DyingStore, clobber=True)
fsspec.register_implementation("tested", HttpStore, clobber=True)
