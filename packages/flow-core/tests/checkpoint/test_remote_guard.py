"""What a save to a URL replaces: the same as a save to a path, by the same guard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from flow_core.base.errors import CheckpointError
from flow_core.builtin.formats_plugin import FORMATS
from flow_core.checkpoint import load, remote, save

fsspec = pytest.importorskip("fsspec")
ONE, TWO = {"w": np.ones(3, np.float32)}, {"deep/v": np.zeros(2, np.int64)}


@pytest.fixture
def system() -> Iterator[Any]:
    memory = fsspec.filesystem("memory")
    for _ in range(2):
        memory.store.clear()
        memory.pseudo_dirs[:] = [""]
        if not _:
            yield memory


def put(url: str, values: Any = TWO, overwrite: bool = True, **options: Any) -> None:
    remote.save(url, values, FORMATS, 60, overwrite=overwrite, **options)


def contents(system: Any) -> dict[str, Any]:
    return {name: file.getvalue() for name, file in system.store.items()}


def project(system: Any) -> str:
    system.pipe({"/there/src/main.py": b"x", "/there/build/out": b"y", "/there/README": b"z"})
    return "README"


def marked_series(system: Any) -> str:
    """Create a folder of checkpoints with its own marker."""
    put("memory://there/step0", ONE)
    system.pipe("/there/snapshot_done", b"")
    return "step0/flow.sha256"


def with_notes(system: Any) -> str:
    put("memory://there", ONE)
    system.pipe("/there/w/notes.txt", b"mine")
    return "w/notes.txt"


def with_a_variable_more(system: Any) -> str:
    put("memory://there", ONE)
    system.pipe("/there/mine/out", b"mine")
    return "mine/out"


def without_mark(system: Any) -> str:
    put("memory://there", ONE)
    system.rm_file("/there/snapshot_done")
    return "flow.sha256"


def placeholder_folders(system: Any) -> str:
    system.makedirs("/there/empty/placeholder")
    return "empty"


def placeholder_in_a_checkpoint(system: Any) -> str:
    put("memory://there", ONE)
    system.makedirs("/there/logs")
    return "logs/"


def file(system: Any) -> str:
    system.pipe("/there", b"a thesis")
    return "a file"


MAKERS: list[Callable[[Any], str]] = [
    project, marked_series, with_notes, with_a_variable_more, without_mark, placeholder_folders,
    placeholder_in_a_checkpoint, file,
]  # fmt: skip


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_what_is_no_checkpoint_is_kept_and_named(make: Callable[[Any], str], system: Any) -> None:
    name = make(system)
    before, folders = contents(system), [*system.pseudo_dirs]
    for overwrite in (True, False):
        with pytest.raises(CheckpointError, match="which already exists") as caught:
            put("memory://there", overwrite=overwrite)
        assert name in str(caught.value.found)
        assert caught.value.at is not None
        assert caught.value.at.file == __file__
    assert contents(system) == before
    assert system.pseudo_dirs == folders


def test_a_file_is_replaced_by_the_same_format_only(system: Any) -> None:
    pytest.importorskip("safetensors")
    url = "memory://model.safetensors"
    put(url, ONE)
    put(url, TWO)
    with remote.downloaded(url, 60) as local:
        assert set(load(local, FORMATS)) == {"deep/v"}
    system.pipe("/model.safetensors", b"a thesis")
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        put(url)
    with pytest.raises(CheckpointError, match="a file"):
        put(url, format="snapshot")
    system.pipe("/folder.safetensors/x", b"1")
    with pytest.raises(CheckpointError, match="a folder"):
        put("memory://folder.safetensors")
    assert system.cat("/model.safetensors") == b"a thesis"


@pytest.mark.parametrize("url", ["memory://", "memory:///"])
@pytest.mark.parametrize("full", [False, True])
def test_the_root_of_a_bucket_is_rejected(url: str, full: bool, system: Any) -> None:
    if full:
        put("memory://model", ONE)
        for name in [*system.store]:
            system.mv(name, name.removeprefix("/model"))
    before = contents(system)
    with pytest.raises(CheckpointError, match="the root of a bucket"):
        put(url)
    assert contents(system) == before


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("memory://a/../model", r"'\.\.'"),
        ("memory://a//model", "an empty component"),
        ("simplecache::memory://model", "a chain of stores"),
        ("dir::file:///model", "a chain of stores"),
    ],
)
def test_urls_whose_place_is_unclear_are_rejected(url: str, found: str, system: Any) -> None:
    with pytest.raises(CheckpointError, match=found):
        put(url)
    assert not system.store


@pytest.mark.parametrize("how", ["file://{}", "local://{}"])
def test_urls_of_the_file_system_are_paths(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    url = how.format(model.as_posix())
    flow.checkpoint.save(url, ONE)
    assert set(load(model)) == {"w"} == set(flow.checkpoint.get(url))
    (tmp_path / "link").symlink_to("model")
    flow.checkpoint.save(how.format((tmp_path / "link").as_posix()), TWO, overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert set(load(model)) == {"deep/v"}
    monkeypatch.chdir(model / "deep")
    with pytest.raises(CheckpointError, match="a parent of the working directory"):
        flow.checkpoint.save(url, ONE, overwrite=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(model))
    with pytest.raises(CheckpointError, match="the home folder"):
        flow.checkpoint.save(url, ONE, overwrite=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    (model / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"notes\.txt"):
        flow.checkpoint.save(url, ONE, overwrite=True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link", "model"]


def test_the_same_place_has_the_same_answer_by_path_and_by_url(system: Any, tmp_path: Path) -> None:
    """Whichever of a checkpoint's files is missing, or is there in addition."""
    save(tmp_path / "model", ONE)
    files = {p.relative_to(tmp_path).as_posix(): p for p in tmp_path.rglob("*") if p.is_file()}
    for missing in (None, *files):
        for more in (None, "model/x", "model/v/out", "model/v/meta", "model/out"):
            here = {k: p.read_bytes() for k, p in files.items() if k != missing}
            here |= {more: b"x"} if more else {}
            system.store.clear()
            system.pseudo_dirs[:] = [""]
            system.pipe({f"/{name}": data for name, data in here.items()})
            target = tmp_path / f"{missing}{more}".replace("/", "_") / "model"
            for name, data in here.items():
                (target.parent / name).parent.mkdir(parents=True, exist_ok=True)
                (target.parent / name).write_bytes(data)
            assert answer(lambda: put("memory://model")) == answer(
                lambda target=target: save(target, TWO, overwrite=True)
            ), (missing, more)


def answer(call: Callable[[], None]) -> object:
    try:
        call()
    except CheckpointError as error:
        return error.found
    return None
