"""Sharded checkpoints: invalid lists, and checkpoints replaced by another save."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_core.base.errors import CheckpointError, CheckpointReplacedError
from flow_core.base.shapes import num_elements
from flow_core.checkpoint import load, swap
from flow_core.checkpoint.store import steadily
from flow_dist.plugin import flow_register_checkpoint_formats
from flow_dist.recovery import restart_files
from flow_dist.recovery.restart import Checkpoints
from flow_dist.recovery.restart_files import Parts, _covers, list_file, read_list, write_part

WHOLE = np.arange(12, dtype=np.float32).reshape(4, 3)


def saved(folder: Path, value: Any = WHOLE, job: str = "job") -> Path:
    """A checkpoint of two processes."""
    for rank in range(2):
        low, high = 2 * rank, 2 * rank + 2
        part = [("w", (4, 3), ((low, high), (0, 3)), value[low:high])]
        write_part(folder, 7, rank, 2, job, part)
    (folder / "snapshot_done").touch()
    return folder


def body(folder: Path, rank: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.loads(list_file(folder, rank).read_text())["body"])
    return found


def put(folder: Path, changed: object, rank: int = 0) -> None:
    """A list with a right checksum, whatever is in it."""
    text = changed if isinstance(changed, str) else json.dumps(changed)
    outer = {"crc": zlib.crc32(text.encode("utf-8", "replace")), "body": text}
    list_file(folder, rank).write_text(json.dumps(outer))


NONSENSE: dict[str, Callable[[dict[str, Any]], object]] = {
    "a list": lambda body: [body],
    "nested": lambda body: "[" * 100_000,
    "no pieces": lambda body: {**body, "pieces": None},
    "a billion processes": lambda body: {**body, "of": 10**9},
    "no process": lambda body: {**body, "of": 0},
    "half a process": lambda body: {**body, "of": 1.5},
    "another rank": lambda body: {**body, "rank": 1},
    "a job that is a number": lambda body: {**body, "job": 7},
    "a step that is true": lambda body: {**body, "step": True},
    "a number of 5,000 digits": lambda body: json.dumps(body).replace(": 7", ": " + "7" * 5000),
    "pieces that are numbers": lambda body: {**body, "pieces": [1]},
}
PIECES: dict[str, dict[str, Any]] = {
    "a field more": {"more": 1},
    "objects": {"dtype": "tensor_buffer"},
    "no type": {"dtype": ["float32"]},
    "a name that is a number": {"name": 7},
    "a terabyte": {"shape": [1 << 38, 3], "region": [[0, 1 << 38], [0, 3]], "nbytes": 12 << 38},
    "a terabyte elsewhere": {"offset": 1 << 40},
    "more bytes than there are numbers": {"shape": [1 << 62, 1 << 62], "region": [[0, 1], [0, 1]]},
    "a negative size": {"shape": [-4, -3]},
    "axes": {"shape": [1] * 20_000, "region": [[0, 1]] * 20_000},
    "another number of axes": {"region": [[0, 2]]},
    "a region outside": {"region": [[3, 5], [0, 3]]},
    "a region backwards": {"region": [[2, 0], [0, 3]]},
    "bytes of another number": {"nbytes": 8},
    "the part of another process": {"region": [[2, 4], [0, 3]]},
}


def check_refused(folder: Path) -> None:
    """A typed error, soon, with little memory, from all that reads the folder."""
    tracemalloc.start()
    begun = time.process_time()
    try:
        with pytest.raises(CheckpointError):
            Parts(folder)
        with pytest.raises(CheckpointError):
            load(folder, flow_register_checkpoint_formats())
        assert time.process_time() - begun < processes.scaled(2)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("case", NONSENSE)
def test_lists_that_make_no_sense(tmp_path: Path, case: str) -> None:
    folder = saved(tmp_path / "parts")
    put(folder, NONSENSE[case](body(folder)))
    check_refused(folder)


@pytest.mark.parametrize("case", [case for case in PIECES if case != "a field more"])
def test_pieces_that_make_no_sense(tmp_path: Path, case: str) -> None:
    folder = saved(tmp_path / "parts")
    changed = body(folder)
    changed["pieces"][0] |= PIECES[case]
    put(folder, changed)
    check_refused(folder)


def test_a_field_that_a_later_version_adds_does_no_harm(tmp_path: Path) -> None:
    folder = saved(tmp_path / "parts")
    changed = body(folder)
    changed["pieces"][0] |= PIECES["a field more"]
    put(folder, changed)
    np.testing.assert_array_equal(Parts(folder)["w"], WHOLE)


@pytest.mark.slow
def test_pieces_that_share_bytes_take_no_more_memory_than_the_file(tmp_path: Path) -> None:
    folder = saved(tmp_path / "parts")
    changed = body(folder)
    (piece,) = changed["pieces"]
    changed["pieces"] = [
        {**piece, "name": "v", "shape": [200_000, 3], "region": [[2 * n, 2 * n + 2], [0, 3]]}
        for n in range(100_000)
    ]
    put(folder, changed)
    with pytest.raises(CheckpointError, match="but its list needs"):
        Parts(folder)


@pytest.mark.slow
def test_mutated_lists(tmp_path: Path) -> None:
    folder = saved(tmp_path / "parts")
    good, rng, refused = json.dumps(body(folder)), random.Random(16), 0
    for _ in range(1500):
        at, length = rng.randrange(len(good)), rng.choice((1, 1, 2, 8))
        new = rng.choice(("", "9", "-", "[", "null", good[at : at + length] * 2, "\ud800", '"'))
        put(folder, good[:at] + new + good[at + length :])
        try:
            {**Parts(folder)}
        except CheckpointError:
            refused += 1
    assert refused > 1000
    list_file(folder, 0).write_bytes(b"\xff" + good.encode())
    with pytest.raises(CheckpointError):
        read_list(list_file(folder, 0))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.randoms(), st.integers(0, 3))
def test_regions_cover_a_shape_as_counting_says(
    shape: list[int], rng: random.Random, cuts: int
) -> None:
    """Against counting how often each element is covered."""
    regions = [tuple((0, n) for n in shape)]
    for _ in range(cuts):
        one = regions.pop(rng.randrange(len(regions)))
        axis = rng.randrange(len(shape))
        at = rng.randint(*one[axis])
        for ends in ((one[axis][0], at), (at, one[axis][1])):
            regions.append((*one[:axis], ends, *one[axis + 1 :]))
    if rng.random() < 0.5:
        odd = rng.randrange(len(regions))
        regions[odd] = tuple(sorted((rng.randint(0, n), rng.randint(0, n))) for n in shape)  # type: ignore[misc]
    times = np.zeros(shape, int)
    for region in regions:
        times[tuple(slice(*ends) for ends in region)] += 1
    distinct = [r for r in regions if num_elements([high - low for low, high in r])]
    assert _covers(distinct, shape) == bool((times == 1).all())


def test_a_replaced_checkpoint_raises(tmp_path: Path) -> None:
    folder = saved(tmp_path / "parts")
    found = Parts(folder)
    shutil.rmtree(folder)
    saved(folder, WHOLE + 1, "other")
    with pytest.raises(CheckpointReplacedError, match="another checkpoint"):
        found["w"]
    np.testing.assert_array_equal(Parts(folder)["w"], WHOLE + 1)


def replace_again_and_again(path: Path, first: int, stop: threading.Event) -> None:
    """Saves of one step, each of its own number."""
    for number in itertools.count(first, 2):
        if stop.is_set():
            break
        aside = saved(path.with_name(f".saving-{number}"), np.full((4, 3), number, np.float32))
        with swap.locked(path.parent):
            swap.put_in_place(aside, path)


def load_beside_saves(path: Path, loads: int) -> None:
    """All loads, and more until several saves were seen, while two threads replace the folder."""
    stop, seen, done = threading.Event(), set(), 0
    saved(path, np.zeros((4, 3), np.float32))
    writers = [
        threading.Thread(target=replace_again_and_again, args=(path, first, stop))
        for first in (1, 2)
    ]
    for writer in writers:
        writer.start()
    try:
        while done < loads or len(seen) < 5:
            formats = flow_register_checkpoint_formats()
            value = steadily(path, lambda formats=formats: load(path, formats)["w"])
            assert len(np.unique(value)) == 1
            seen.add(float(value[0, 0]))
            done += 1
    finally:
        stop.set()
        for writer in writers:
            writer.join()


def test_a_sample_of_loads_beside_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swap, "sync", lambda _: None)  # only speed
    monkeypatch.setattr(restart_files, "sync", lambda _: None)
    load_beside_saves(tmp_path / "step-000000000007", 20)


@pytest.mark.exhaustive
def test_two_thousand_loads_beside_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swap, "sync", lambda _: None)
    monkeypatch.setattr(restart_files, "sync", lambda _: None)
    load_beside_saves(tmp_path / "step-000000000007", 2000)


def test_only_checkpoints_are_replaced_or_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step in (1, 2):
        saved(tmp_path / f"step-{step:012d}")
    notes = tmp_path / "step-000000000001" / "notes.txt"
    notes.write_text("dear diary")
    checkpoints.save(3)
    checkpoints.wait()
    assert notes.read_text() == "dear diary"
    assert "notes.txt" in caplog.text
    assert not (tmp_path / "step-000000000002").exists()
    checkpoints.save(1)
    with pytest.raises(CheckpointError, match=r"notes\.txt"):
        checkpoints.wait()
    assert notes.read_text() == "dear diary"
    checkpoints.close()
