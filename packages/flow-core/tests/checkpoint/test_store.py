"""Refusal, replacement, cleanup and comparison of checkpoints; checkpoint managers."""

from __future__ import annotations

import threading
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from flow_core.base.dtypes import char, float32, int8, int64
from flow_core.base.errors import CheckpointError
from flow_core.checkpoint import CheckpointManager, load, match, open_path, save, swap
from flow_core.checkpoint import manager as manager_module
from flow_core.checkpoint.store import Mismatch
from flow_core.ir.graph import TensorType

NONE = Mismatch((), ())
ONE, TWO = {"w": np.ones(3, np.float32)}, {"v": np.zeros(2, np.int64)}


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_existing_target_is_rejected(tmp_path: Path) -> None:
    save(tmp_path / "model", ONE)
    with pytest.raises(CheckpointError, match="already exists") as caught:
        save(tmp_path / "model", TWO)
    assert "overwrite=True" in str(caught.value)
    assert set(load(tmp_path / "model")) == {"w"}


def test_empty_folder_is_accepted_and_parents_are_created(tmp_path: Path) -> None:
    (tmp_path / "a" / "model").mkdir(parents=True)
    save(tmp_path / "a" / "model", ONE)
    save(tmp_path / "b" / "c" / "model", ONE)
    assert set(load(tmp_path / "a" / "model")) == set(load(tmp_path / "b" / "c" / "model")) == {"w"}


@pytest.mark.parametrize("in_one_step", [True, False])
def test_overwrite_replaces_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_one_step: bool
) -> None:
    if not in_one_step:
        monkeypatch.setattr(swap, "exchange", lambda *_: False)
    save(tmp_path / "model", ONE)
    save(tmp_path / "model", TWO, overwrite=True)
    assert set(load(tmp_path / "model")) == {"v"}
    assert names(tmp_path) == {"model"}


def test_overwrite_of_the_source_of_loaded_arrays(tmp_path: Path) -> None:
    save(tmp_path / "model", ONE)
    found = load(tmp_path / "model")
    save(tmp_path / "model", found, overwrite=True)
    assert load(tmp_path / "model")["w"].tolist() == [1, 1, 1]


def test_other_folders_are_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    (tmp_path / "file").write_text("text")
    for path in ("home", "file"):
        with pytest.raises(CheckpointError, match="already exists"):
            save(tmp_path / path, ONE, overwrite=True)
    assert names(tmp_path / "home") == {"letter.txt"}


def test_link_is_preserved_by_overwrite(tmp_path: Path) -> None:
    save(tmp_path / "real", ONE)
    (tmp_path / "link").symlink_to("real")
    save(tmp_path / "link", TWO, overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert set(load(tmp_path / "real")) == {"v"}


def test_failed_save_leaves_no_files(tmp_path: Path) -> None:
    save(tmp_path / "model", ONE)
    with pytest.raises(CheckpointError, match="'odd'"):
        save(tmp_path / "model", {"a": ONE["w"], "odd": np.array(["x"])}, overwrite=True)
    assert names(tmp_path) == {"model"}
    assert set(load(tmp_path / "model")) == {"w"}


def test_file_system_errors_become_typed_errors(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises(CheckpointError, match=r"saving .*model"):
        save(tmp_path / "file" / "model", ONE)


def test_next_save_removes_leftovers(tmp_path: Path) -> None:
    for name in (
        "model",
        ".model.saving-0123456789abcdef",
        ".model.replaced",
        ".other.saving-4",
        ".model.saving-mine",
    ):
        save(tmp_path / name, ONE)
    save(tmp_path / "model", TWO, overwrite=True)
    assert names(tmp_path) == {"model", ".other.saving-4", ".model.saving-mine"}


def test_checkpoint_moved_aside_is_restored(tmp_path: Path) -> None:
    save(tmp_path / ".model.replaced", ONE)
    assert set(load(tmp_path / "model")) == {"w"}
    assert names(tmp_path) == {"model"}
    save(tmp_path / ".model.replaced", TWO)  # now a leftover: the model exists
    assert set(load(tmp_path / "model")) == {"w"}
    save(tmp_path / "model", TWO, overwrite=True)
    assert names(tmp_path) == {"model"}


def test_two_steps_with_an_older_leftover(tmp_path: Path) -> None:
    for name in ("model", ".model.replaced", "new"):
        save(tmp_path / name, ONE if name != "new" else TWO)
    swap._replace_in_two_steps(tmp_path / "new", tmp_path / "model")
    assert set(load(tmp_path / "model")) == {"v"}


def test_concurrent_saves_into_one_folder_are_serialized(tmp_path: Path) -> None:
    values = {f"v{i}": np.full(1000, i, np.float32) for i in range(5)}
    threads = [
        threading.Thread(
            target=save,
            args=(tmp_path / "model", dict.fromkeys(values, v)),
            kwargs={"overwrite": True},
        )
        for v in values.values()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = load(tmp_path / "model")
    assert len({float(x) for name in found for x in found[name]}) == 1
    assert names(tmp_path) == {"model"}


# ----------------------------------------------------------------------------- comparison


def test_one_error_lists_all_differences() -> None:
    wanted = {
        "dense-weight": TensorType((2, 3), float32),
        "dense-bias": TensorType((3,), float32),
        "count": TensorType((), int64),
        "fine": TensorType((2,), float32),
    }
    found = {
        "dense-weight": np.ones((3, 2), np.float32),
        "dense-bais": np.ones(3, np.float32),
        "count": np.float32(3).reshape(()),
        "fine": np.ones(2, np.float32),
        "momentum": np.ones(2, np.float32),
    }
    with pytest.raises(CheckpointError) as caught:
        match(wanted, found)
    message = str(caught.value)
    for words in (
        "missing    'dense-bias', float32[3]; did you mean dense-bais?",
        "misshapen  'dense-weight': saved float32[3,2], wanted float32[2,3]",
        "misshapen  'count': saved float32[], wanted int64[]",
        "extra      'dense-bais', which no job has",
        "extra      'momentum', which no job has",
    ):
        assert words in message
    assert "'fine'" not in message


def test_which_mismatches_are_errors() -> None:
    wanted, more = {"w": TensorType((3,), float32)}, {**ONE, "m": np.ones(1)}
    assert match(wanted, more) == Mismatch((), ("m",))
    with pytest.raises(CheckpointError, match="'m'"):
        match(wanted, more, extra=True)
    with pytest.raises(CheckpointError, match="missing"):
        match(wanted, {})
    assert match(wanted, {}, missing=False) == Mismatch(("w",), ())


def test_char_and_int8_have_the_same_bytes() -> None:
    assert match({"a": TensorType((2,), char)}, {"a": np.zeros(2, np.int8)}) == NONE
    assert int8.numpy == char.numpy


def test_older_layout_has_no_shape_mismatch(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "out").write_bytes(bytes(12))
    wanted = {"w": TensorType((3,), float32)}
    (tmp_path / "snapshot_done").touch()
    assert match(wanted, load(tmp_path)) == NONE
    assert match(wanted, load(tmp_path, types=wanted)) == NONE
    assert match(wanted, {"w": open_path(tmp_path / "w")}) == NONE
    with pytest.raises(CheckpointError, match=r"12 bytes, wanted float32\[4\]"):
        match({"w": TensorType((4,), float32)}, load(tmp_path))


# --------------------------------------------------------------------------------- series


def make_manager(root: Path, loaded: list[str]) -> CheckpointManager:
    return CheckpointManager(root, save=lambda path: save(path, ONE), load=loaded.append)


def test_manager_saves_and_lists_checkpoints(tmp_path: Path) -> None:
    loaded: list[str] = []
    manager = make_manager(tmp_path / "snapshots", loaded)
    assert manager.latest_checkpoint() is None
    manager.initialize_or_restore()
    manager.save()
    first, second = manager.list_checkpoints()
    assert first < second == manager.latest_checkpoint()
    make_manager(tmp_path / "snapshots", loaded).initialize_or_restore()
    assert loaded == [str(tmp_path / "snapshots" / second)]


def test_manager_ignores_unfinished_and_foreign_folders(tmp_path: Path) -> None:
    (tmp_path / "snapshot_20990101_000000_000000" / "w").mkdir(parents=True)
    (tmp_path / "snapshot_note.txt").touch()
    save(tmp_path / "best", ONE)
    assert make_manager(tmp_path, []).list_checkpoints() == []


def test_manager_order_is_independent_of_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return datetime(2001, 1, 1)

    save(tmp_path / "snapshot_20990101_000000_000009", ONE)
    monkeypatch.setattr(manager_module, "datetime", Clock)
    manager = make_manager(tmp_path, [])
    manager.save()
    assert manager.latest_checkpoint() == "snapshot_20990101_000000_000010"


def test_manager_of_a_removed_folder(tmp_path: Path) -> None:
    manager = make_manager(tmp_path / "snapshots", [])
    (tmp_path / "snapshots").rmdir()
    with pytest.raises(CheckpointError, match="No such file"):
        manager.list_checkpoints()
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="Not a directory"):
        make_manager(tmp_path / "file" / "below", [])


def test_manager_path_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="a file"):
        make_manager(tmp_path / "file", [])
