"""Saves to URLs that are killed: the old or the new checkpoint is left, and the next save works."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest

from flow_core.base.errors import CheckpointError
from flow_core.builtin.formats_plugin import FORMATS
from flow_core.checkpoint import load, remote, remote_store, swap

pytest.importorskip("fsspec")
import url_stores

DyingStore, served = url_stores.DyingStore, url_stores.served

OLD = {"w": np.ones(3, np.float32), "deep/old": np.ones(2, np.float32)}
NEW = {"w": np.zeros(3, np.float32), "deep/new": np.zeros(4, np.int64)}
NAMES = ["model", pytest.param("model.safetensors", id="file")]


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Empty the store; for speed, no power failure and no silent server is simulated."""
    monkeypatch.setattr(swap, "sync", lambda _: None)
    monkeypatch.setattr(remote_store, "call_within", lambda _, call, *__: call())
    DyingStore.clear()
    yield
    DyingStore.clear()


def save(url: str, values: Any, overwrite: bool = True) -> None:
    remote.save(url, values, FORMATS, 60, overwrite=overwrite)


def values(url: str) -> dict[str, Any]:
    with remote.downloaded(url, 60) as local:
        return {name: value.tolist() for name, value in load(local, FORMATS).items()}


def plain(values: Any) -> dict[str, Any]:
    return {name: value.tolist() for name, value in values.items()}


def killed(url: str, last: int | None, half: bool = False, overwrite: bool = True) -> int:
    """Save `NEW`, killed at a write; return how many writes there were."""
    DyingStore.reset(last, half)
    if last is None:
        save(url, NEW, overwrite)
    else:
        with pytest.raises(CheckpointError):
            save(url, NEW, overwrite)
    count = DyingStore.writes
    DyingStore.reset()
    return count


def files() -> set[str]:
    return set(DyingStore.store)


def check_next_save(url: str, clean: set[str], overwrite: bool) -> None:
    save(url, OLD, overwrite)
    assert values(url) == plain(OLD)
    assert files() == clean
    assert not [name for name in DyingStore.pseudo_dirs if "saving" in name]


def places(url: str, first: bool) -> tuple[int, set[str]]:
    """Return the number of writes of a save, and the files that one leaves which succeeds."""
    if not first:
        save(url, OLD)
    count = killed(url, None)
    save(url, OLD)
    clean = files()
    DyingStore.clear()
    return count, clean


def sampled(count: int, every: bool) -> list[int]:
    """Return writes at which to kill a save: all, or the first and last and some between."""
    return [*range(1, count + 1)] if every else [1, *range(2, count, 3), count]


EVERY = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])


@EVERY
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_killed_replacement_leaves_the_old_or_the_new(name: str, half: bool, every: bool) -> None:
    url = f"dying://{name}"
    count, clean = places(url, first=False)
    seen = []
    for last in sampled(count, every):
        DyingStore.clear()
        save(url, OLD)
        killed(url, last, half)
        found = values(url)
        assert found in (plain(OLD), plain(NEW))
        seen.append(found == plain(NEW))
        with pytest.raises(CheckpointError, match="a checkpoint, which already exists"):
            save(url, OLD, overwrite=False)
        check_next_save(url, clean, overwrite=True)
    assert seen == sorted(seen), "the old checkpoint never reappears"
    assert set(seen) == {False, True}


@EVERY
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_killed_first_save_is_no_checkpoint(name: str, half: bool, every: bool) -> None:
    url = f"dying://{name}"
    count, clean = places(url, first=True)
    complete = []
    for last in sampled(count, every):
        DyingStore.clear()
        killed(url, last, half, overwrite=False)
        try:
            found = values(url)
        except CheckpointError:
            complete.append(False)
        else:
            assert found == plain(NEW)
            complete.append(True)
        check_next_save(url, clean, overwrite=complete[-1])
    assert complete == sorted(complete)
    assert set(complete) == {False, True}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("first", [False, True])
def test_saves_killed_several_times_in_a_row(name: str, first: bool) -> None:
    url, rng = f"dying://{name}", random.Random(7)
    count, clean = places(url, first)
    for _ in range(30):
        DyingStore.clear()
        known = None if first else plain(OLD)
        if not first:
            save(url, OLD)
        for _ in range(3):
            killed(url, rng.randint(1, count), half=rng.random() < 0.5)
            try:
                found = values(url)
            except CheckpointError:
                assert known is None
            else:
                assert found == plain(NEW) or found == known
                known = found
        check_next_save(url, clean, overwrite=True)


def test_foreign_files_beside_an_interrupted_save_are_kept() -> None:
    """Also those inside of the folder: only the files of its list are replaced."""
    url = "dying://runs/model"
    killed(url, 5, overwrite=False)
    DyingStore.store["/runs/notes.txt"] = DyingStore.store[next(iter(DyingStore.store))]
    save(url, OLD, overwrite=False)
    assert "/runs/notes.txt" in files()
    killed(url, 9)
    DyingStore.store["/runs/model/mine.txt"] = DyingStore.store["/runs/notes.txt"]
    before = files()
    with pytest.raises(CheckpointError, match=r"mine\.txt"):
        save(url, OLD)
    assert files() == before
    assert values(url) == plain(NEW), "the copy is current"


@pytest.mark.parametrize("name", NAMES)
def test_a_load_during_a_save_starts_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"dying://{name}"
    save(url, OLD)
    get, left = DyingStore.get_file, [1]

    def replaced_meanwhile(self: Any, *args: Any, **options: Any) -> None:
        if left:
            left.clear()
            save(url, NEW)
        get(self, *args, **options)

    monkeypatch.setattr(DyingStore, "get_file", replaced_meanwhile)
    assert remote.steadily(lambda: values(url)) == plain(NEW)
    assert not left


# ------------------------------------------------------------------------------ real processes

CHILD = """
import sys
sys.path.insert(0, {folder!r})
import url_stores
import numpy as np
from flow_core.builtin.formats_plugin import FORMATS
from flow_core.checkpoint import remote
values = {{"w": np.zeros(3, np.float32), "deep/new": np.zeros(4, np.int64)}}
remote.save(sys.argv[1], values, FORMATS, 60, overwrite=True)
"""


def in_a_process(url: str, last: int, folder: Path) -> int:
    """Save `NEW` in a process that ends before its write number ``last``."""
    code = CHILD.format(folder=str(Path(url_stores.__file__).parent))
    env = {**os.environ, "FLOW_TEST_WRITES": str(last), "TMPDIR": str(folder)}
    return processes.run([sys.executable, "-W", "ignore", "-c", code, url], env=env).returncode


@pytest.mark.parametrize(
    "last", [14, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 36, 2))]
)
def test_a_process_that_dies_at_a_request_to_a_server(tmp_path: Path, last: int) -> None:
    with served() as (host, stored):
        url = f"tested://{host}/model"
        save(url, OLD)
        clean = set(stored)
        status = in_a_process(url, last, tmp_path)
        assert status in (0, 9)
        assert values(url) in (plain(OLD), plain(NEW))
        save(url, OLD)
        assert values(url) == plain(OLD)
        assert set(stored) == clean
    assert url_stores.HttpStore.writes
