"""Which files a save replaces and which it preserves."""

from __future__ import annotations

import errno
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flow_core.base.errors import CheckpointError
from flow_core.builtin.formats_plugin import FORMATS
from flow_core.checkpoint import guard, load, save, snapshot
from flow_core.plugins.specs import FormatSpec

ONE, TWO = {"w": np.ones(3, np.float32)}, {"deep/v": np.zeros(2, np.int64)}
needs_safetensors = pytest.mark.skipif(
    importlib.util.find_spec("safetensors") is None,
    reason="the package safetensors is not installed (an extra of flow-core)",
)


def tree(folder: Path) -> dict[str, bytes | None]:
    """Return the content of every file below a folder."""
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() if p.is_file() else None
        for p in folder.rglob("*")
    }


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def project(folder: Path) -> list[str]:
    """Create a source tree in which a subfolder contains a file ``out``."""
    write(folder, "src/main.py", "build/out", "build/meta", "README")
    return ["README", "build", "src"]


def series(folder: Path) -> list[str]:
    for step in range(3):
        save(folder / f"step{step}", ONE)
    return ["step0", "step1", "step2"]


def marked_series(folder: Path) -> list[str]:
    """Create a folder of checkpoints with its own marker, as ``touch runs/snapshot_done`` does."""
    series(folder)
    write(folder, "snapshot_done")
    return ["step0/flow.sha256", "step0/snapshot_done"]


def with_notes(folder: Path) -> list[str]:
    save(folder, ONE)
    write(folder, "notes.txt", "w/plot.png")
    return ["notes.txt", "w/plot.png"]


def with_a_variable_more(folder: Path) -> list[str]:
    save(folder, ONE)
    write(folder, "mine/out")
    return ["mine/out"]


def with_an_empty_folder(folder: Path) -> list[str]:
    save(folder, ONE)
    (folder / "logs").mkdir()
    return ["logs/"]


def with_a_link(folder: Path) -> list[str]:
    save(folder, ONE)
    (folder / "data").symlink_to(folder.parent)
    return ["data"]


def linked_data(folder: Path) -> list[str]:
    """Create a variable whose data file is a link to an outside file."""
    save(folder, ONE)
    (folder / "w" / "out").rename(folder.parent / "elsewhere")
    (folder / "w" / "out").symlink_to(folder.parent / "elsewhere")
    return ["w/out"]


def of_oneflow_with_notes(folder: Path) -> list[str]:
    write(folder, "w/out", "w/meta", "snapshot_done", "out", "x/meta")
    return ["out", "x/meta"]


def without_mark(folder: Path) -> list[str]:
    save(folder, ONE)
    (folder / "snapshot_done").unlink()
    return ["snapshot_done", "w"]


FOREIGN: list[Callable[[Path], list[str]]] = [
    project, series, marked_series, with_notes, with_a_variable_more, with_an_empty_folder,
    with_a_link, linked_data, of_oneflow_with_notes, without_mark,
]  # fmt: skip


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
@pytest.mark.parametrize("make", FOREIGN, ids=lambda make: make.__name__)
def test_non_checkpoint_is_preserved_and_named(
    tmp_path: Path, make: Callable[[Path], list[str]]
) -> None:
    names, before = make(tmp_path / "there"), tree(tmp_path)
    for overwrite in (True, False):
        with pytest.raises(CheckpointError) as caught:
            save(tmp_path / "there", TWO, FORMATS, overwrite=overwrite)
        message = str(caught.value)
        assert all(repr(name) in message for name in names), message
        assert caught.value.at is not None
        assert caught.value.at.file == __file__
    assert tree(tmp_path) == before


def of_oneflow(folder: Path) -> None:
    write(folder, "w/out", "w/meta", "deep/v/out", "snapshot_done")


def with_a_damaged_list(folder: Path) -> None:
    save(folder, ONE)
    (folder / "flow.sha256").write_text("nonsense")


@pytest.mark.parametrize("make", [of_oneflow, with_a_damaged_list], ids=lambda make: make.__name__)
def test_checkpoint_without_other_files_is_replaced(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "model")
    save(tmp_path / "model", TWO, overwrite=True)
    assert set(load(tmp_path / "model")) == {"deep/v"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("path", ["/", "//", "/usr/.."])
def test_root_is_rejected(path: str) -> None:
    with pytest.raises(CheckpointError, match="the root of the file system"):
        save(path, ONE, overwrite=True)
    with pytest.raises(CheckpointError):
        load("/")


@pytest.mark.parametrize("inside", [False, True])
def test_home_and_working_directory_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    """Also if they are checkpoints or empty, and if the target is one of their parents."""
    for name, move in (
        ("home", lambda place: monkeypatch.setenv("HOME", str(place))),
        ("cwd", monkeypatch.chdir),
    ):
        save(tmp_path / name, ONE)
        (tmp_path / f"empty-{name}").mkdir()
        for folder in (tmp_path / name, tmp_path / f"empty-{name}"):
            place = folder / "w" if inside else folder
            place.mkdir(exist_ok=True)
            move(place)
            before = tree(folder)
            with pytest.raises(CheckpointError, match=r"home folder|working directory"):
                save(folder, TWO, overwrite=True)
            assert tree(folder) == before
        monkeypatch.chdir(tmp_path)


def test_files_created_during_a_save_are_preserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the last check and the exchange: the old folder is moved aside, not removed."""
    save(tmp_path / "model", ONE)
    in_time = guard.obstacle

    def too_late(place: guard.LocalPlace) -> str | None:
        found = in_time(place)
        write(place.path, "notes.txt")
        return found if found is None or "notes" not in found else None

    monkeypatch.setattr(guard, "obstacle", too_late)
    with pytest.raises(CheckpointError, match=r"notes\.txt.*\n.*nothing is lost") as caught:
        save(tmp_path / "model", TWO, overwrite=True)
    assert set(load(tmp_path / "model")) == {"deep/v"}
    (kept,) = tmp_path.glob("kept-*")
    assert str(kept) in str(caught.value)
    assert (kept / "notes.txt").read_text() == "notes.txt"


@pytest.mark.parametrize("overwrite", [True, False])
def test_files_created_while_a_format_writes_are_preserved(tmp_path: Path, overwrite: bool) -> None:
    def slow(path: Path, variables: Any) -> None:
        write(tmp_path / "model", "notes.txt")
        snapshot.write(path, variables)

    spec = FormatSpec("slow", snapshot.can_open, "flow_core.checkpoint.snapshot:read", slow)
    if overwrite:
        save(tmp_path / "model", ONE)
    with pytest.raises(CheckpointError, match=r"notes\.txt"):
        save(tmp_path / "model", TWO, [spec], format="slow", overwrite=overwrite)
    assert (tmp_path / "model" / "notes.txt").exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


# ------------------------------------------------------------------------------ single files


@needs_safetensors
def test_other_programs_can_read_the_file(tmp_path: Path) -> None:
    import safetensors
    import safetensors.numpy

    file = tmp_path / "model.safetensors"
    save(file, {**ONE, **TWO}, FORMATS)
    assert file.is_file()
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.safetensors"]
    found = safetensors.numpy.load_file(file)
    assert {n: (v.dtype, v.tolist()) for n, v in found.items()} == {
        n: (v.dtype, v.tolist()) for n, v in {**ONE, **TWO}.items()
    }
    with safetensors.safe_open(file, framework="numpy") as opened:
        assert opened.metadata()["flow.version"] == "1"


@needs_safetensors
def test_files_of_other_programs_load(tmp_path: Path) -> None:
    import safetensors.numpy

    safetensors.numpy.save_file(ONE, tmp_path / "blob", {"format": "pt"})
    (tmp_path / "model.safetensors").symlink_to("blob")  # as download caches store files
    found = load(tmp_path / "model.safetensors", FORMATS)
    assert found["w"].tolist() == [1, 1, 1]
    safetensors.numpy.save_file({"w": np.zeros(3, np.float32)}, tmp_path / "blob")
    with pytest.raises(CheckpointError, match="another program wrote"):
        found["w"]


@needs_safetensors
def test_file_is_replaced_only_by_the_same_format(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save(file, ONE, FORMATS)
    with pytest.raises(CheckpointError, match="overwrite=True"):
        save(file, TWO, FORMATS)
    save(file, TWO, FORMATS, overwrite=True)
    assert set(load(file, FORMATS)) == {"deep/v"}
    file.write_text("a thesis")
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        save(file, ONE, FORMATS, overwrite=True)
    with pytest.raises(CheckpointError, match="a file"):
        save(file, ONE, FORMATS, format="snapshot", overwrite=True)
    assert file.read_text() == "a thesis"
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(CheckpointError, match="a folder"):
        save(tmp_path / "folder.safetensors", ONE, FORMATS, overwrite=True)
    save(tmp_path / "other.safetensors", ONE, FORMATS, format="snapshot")
    assert (tmp_path / "other.safetensors" / "w" / "out").is_file()


# ---------------------------------------------------------------------------- paths and names


@pytest.mark.parametrize("path", ["a\0b", None, 3, b"bytes"])
def test_invalid_paths_are_rejected(path: Any) -> None:
    for call in (lambda: save(path, ONE), lambda: load(path)):
        with pytest.raises(CheckpointError, match="a path"):
            call()


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_link_cycles_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for call in (lambda: save(tmp_path / "a", ONE), lambda: load(tmp_path / "a")):
        with pytest.raises(CheckpointError):
            call()


NAMES = ["..", "a/out", "a/meta/b", "a\0b", "\ud800", "a\\b", "snapshot_done", "flow.sha256/x"]
NAMES += ["__metadata__", "x" * 256, "x/" * 1000 + "x"]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:20])
@pytest.mark.parametrize(
    "path", ["model", pytest.param("model.safetensors", marks=needs_safetensors)]
)
def test_invalid_names_are_rejected_by_every_format(tmp_path: Path, path: str, name: str) -> None:
    with pytest.raises(CheckpointError, match="a name with"):
        save(tmp_path / path, {name: np.ones(1)}, FORMATS)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["out", "meta", "x" * 255, "ünï/çode", "a\nb", "con", ".a"])
@pytest.mark.parametrize(
    "path", ["model", pytest.param("model.safetensors", marks=needs_safetensors)]
)
def test_valid_names_are_saved_by_every_format(tmp_path: Path, path: str, name: str) -> None:
    if sys.platform == "win32" and name != "out":
        pytest.skip("names of files are others there")
    save(tmp_path / path, {name: np.ones(1)}, FORMATS)
    assert {**load(tmp_path / path, FORMATS)} == {name: np.ones(1)}


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write all")
def test_missing_permissions_raise_a_typed_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(CheckpointError, match="Permission denied"):
        save(tmp_path / "model", ONE)
    tmp_path.chmod(0o700)


@needs_safetensors
def test_failed_write_raises_a_typed_error(tmp_path: Path) -> None:
    """The exception of the safetensors package is converted to one of ours."""
    from flow_core.checkpoint import safetensors_format

    (tmp_path / safetensors_format.FILE).mkdir()
    with pytest.raises(CheckpointError, match="saving"):
        safetensors_format.write(tmp_path, ONE)


def test_search_for_checkpoints_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a/b/c/d/out")
    monkeypatch.setattr(snapshot, "MOST_SEARCHED", 4)
    assert not snapshot.can_open(tmp_path)
    monkeypatch.setattr(snapshot, "MOST_SEARCHED", 5)
    assert snapshot.can_open(tmp_path)


@pytest.mark.parametrize("fails", ["out", "flow.sha256", "snapshot_done"])
def test_full_disk_preserves_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """Whichever file does not fit."""
    save(tmp_path / "model", ONE)
    before = tree(tmp_path)

    def full(write: Callable[..., Any]) -> Callable[..., Any]:
        def written(self: Path, *args: Any) -> Any:
            if self.name == fails:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
            return write(self, *args)

        return written

    for name in ("write_bytes", "touch"):
        monkeypatch.setattr(Path, name, full(getattr(Path, name)))
    with pytest.raises(CheckpointError, match="No space left") as caught:
        save(tmp_path / "model", TWO, overwrite=True)
    assert caught.value.at is not None
    assert tree(tmp_path) == before
