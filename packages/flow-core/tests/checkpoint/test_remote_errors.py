"""Errors of URLs: no secrets, the real cause, and an end if a server does not answer."""

from __future__ import annotations

import http.server
import importlib.util
import socket
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from flow_core.base.config import Settings
from flow_core.base.errors import CheckpointError, ConfigError
from flow_core.base.formats.urls import shown_url, without_secrets
from flow_core.frontend.session.session import default_session

pytestmark = pytest.mark.usefixtures("fsspec_loop")
fsspec = pytest.importorskip("fsspec")
ONES = {"w": np.ones(3, np.float32)}
needs_http = pytest.mark.skipif(
    importlib.util.find_spec("aiohttp") is None,
    reason="aiohttp, the package for HTTP, is not installed",
)


@contextmanager
def silent_server() -> Iterator[str]:
    """Accept connections without answering them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def refusing_host() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def folder_server(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve a folder; yield the host, and the paths that were requested."""
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            asked.append(self.path)

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Handler, directory=str(folder))
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with suppress(ImportError):
        fsspec.get_filesystem_class("http")  # else its import may take longer than the limit
    session = default_session()
    monkeypatch.setattr(session, "settings", replace(session.settings, url_seconds=0.1))


@needs_http
@pytest.mark.usefixtures("short_limit")
@pytest.mark.parametrize("call", [flow.checkpoint.get, lambda url: flow.checkpoint.save(url, ONES)])
def test_a_server_that_never_answers_is_given_up(call: Any) -> None:
    with silent_server() as host, pytest.raises(CheckpointError) as caught:
        call(f"http://{host}/model")
    assert caught.value.found == "no answer within 0.1 seconds"
    assert "FLOW_URL_SECONDS" in str(caught.value.hint)
    assert caught.value.at is not None
    assert caught.value.at.file == __file__


@pytest.mark.usefixtures("short_limit")
def test_a_store_that_waits_while_it_connects_is_given_up() -> None:
    done = threading.Event()

    class Waiting(fsspec.AbstractFileSystem):  # type: ignore[misc]
        protocol = "waiting"
        cachable = False

        def __init__(self, **_: Any) -> None:
            done.wait()

    fsspec.register_implementation("waiting", Waiting, clobber=True)
    with pytest.raises(CheckpointError, match="no answer within"):
        flow.checkpoint.get("waiting://model")
    done.set()


def test_the_limit_is_a_setting() -> None:
    assert Settings.from_env({}).url_seconds == 60
    assert Settings.from_env({"FLOW_URL_SECONDS": "5"}).url_seconds == 5
    with pytest.raises(ConfigError, match="FLOW_URL_SECONDS"):
        Settings.from_env({"FLOW_URL_SECONDS": "soon"})


@needs_http
def test_a_refused_connection_is_no_missing_path() -> None:
    for call in (flow.checkpoint.get, lambda url: flow.checkpoint.save(url, ONES)):
        with pytest.raises(CheckpointError, match=r"Connect") as caught:
            call(f"http://{refusing_host()}/model")
        assert "no such path" not in str(caught.value)


@needs_http
@pytest.mark.parametrize("name", ["model.safetensors", "model"])
def test_a_query_hides_no_suffix_and_is_sent_with_each_request(tmp_path: Path, name: str) -> None:
    flow.checkpoint.save(str(tmp_path / "model.safetensors"), ONES)
    flow.checkpoint.save(str(tmp_path / "model"), ONES)
    with folder_server(tmp_path) as (host, asked):
        found = flow.checkpoint.get(f"http://{host}/{name}?token=sesame")
        assert found["w"].numpy().all()
        assert asked
        assert all("?token=sesame" in path for path in asked)
        with pytest.raises(CheckpointError, match="no such path"):
            flow.checkpoint.get(f"http://{host}/none.safetensors?token=sesame")


@needs_http
@pytest.mark.parametrize(
    "url",
    [
        "http://me:open%20sesame@{}/model",
        "http://{}/model.safetensors?token=open%20sesame&expires=sesame2",
        "http://{}/model?sesame",
    ],
)
def test_errors_show_no_passwords_and_tokens(url: str) -> None:
    for call in (flow.checkpoint.get, lambda url: flow.checkpoint.save(url, ONES)):
        where = url.format(refusing_host())
        with pytest.raises(CheckpointError) as caught:
            call(where)
        text = "".join(traceback.format_exception(caught.value))
        shown = "".join(line for line in text.splitlines() if "where" not in line)
        assert "sesame" not in shown
        assert "..." in str(caught.value)
        assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/a@b/model", "s3://bucket/a@b/model"),
        ("ftp://u:p@ss@h/x", "ftp://...@h/x"),
        ("https://h/x?a=1&b&c=2#d", "https://h/x?a=...&...&c=...#d"),
        ("simplecache::https://u:p@h/x?t=1", "simplecache::https://...@h/x?t=..."),
        ("models/u:p@x?a=1", "models/u:p@x?a=1"),
    ],
)
def test_urls_are_shown_without_secrets(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_decoded_secrets_are_hidden_too() -> None:
    url = "https://me:a%2Fb%20c@host/x?key=d%2Be"
    text = "login of me with 'a/b c' failed; d+e is no key, nor is d%2Be"
    assert without_secrets(text, url) == (
        "login of me with '...' failed; ... is no key, nor is ..."
    )


def test_a_series_of_checkpoints_needs_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="a folder of the file system") as caught:
        flow.train.SimpleCheckPointManager("memory://me:sesame@x/series")
    assert "sesame" not in str(caught.value)
    assert caught.value.at is not None
    assert caught.value.at.file == __file__
    assert not list(tmp_path.iterdir())
    manager = flow.train.SimpleCheckPointManager(f"file://{tmp_path.as_posix()}/series")
    assert (tmp_path / "series").is_dir()
    assert manager.list_checkpoints() == []


def test_a_path_object_of_a_url_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python shortens its slashes, so it would name a folder ``s3:``."""
    monkeypatch.chdir(tmp_path)
    for call in (flow.checkpoint.get, lambda path: flow.checkpoint.save(path, ONES)):
        with pytest.raises(CheckpointError, match="a URL as text"):
            call(Path("s3://bucket/model"))
    assert not list(tmp_path.iterdir())


def test_names_outside_of_a_checkpoint_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/outside/w/out", b"1")
    found = {"/outside/../x": {"name": "/outside/../x", "type": "file"}}
    with monkeypatch.context() as patched:
        patched.setattr(type(memory), "find", lambda *_, **__: found)
        with pytest.raises(CheckpointError, match=r"the file name '/outside/\.\./x'"):
            flow.checkpoint.get("memory://outside")
    memory.rm("/outside", recursive=True)
