"""What each process reads of a sharded checkpoint, and which one writes what."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launching import HELPERS, run_script

from flow_core.base.shapes import balanced_range
from flow_dist.recovery import restart, restart_files
from flow_dist.recovery.restart_files import Parts, write_part

ROWS, COLUMNS = 4096, 2048
WEIGHTS = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
RANKS = 4


def regions(of: int, axis: int) -> list[Any]:
    """The regions of a variable that is split over a number of ranks."""
    split = [balanced_range(WEIGHTS.shape[axis], of, rank) for rank in range(of)]
    whole = [(0, ROWS), (0, COLUMNS)]
    return [tuple(ends if a == axis else whole[a] for a in (0, 1)) for ends in split]


def window(region: Any) -> Any:
    return tuple(slice(low, high) for low, high in region)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of ranks that hold rows."""
    folder = tmp_path_factory.mktemp("saved") / "step-000000000001"
    for rank, region in enumerate(regions(RANKS, 0)):
        part = ("w", WEIGHTS.shape, region, WEIGHTS[window(region)])
        write_part(folder, 1, rank, RANKS, "job", [part])
    (folder / "snapshot_done").touch()
    return folder


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of bytes of all reads."""
    sizes: list[int] = []
    read_into = restart_files.read_into

    def counted(file: Any, target: memoryview) -> int:
        sizes.append(len(target))
        return read_into(file, target)

    monkeypatch.setattr(restart_files, "read_into", counted)
    return sizes


@pytest.mark.representative(
    r"\[4-0\]", "rows for as many processes as had saved; the others read more or fewer pieces"
)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("of", [1, 2, 4, 8])
def test_a_process_reads_only_pieces_that_overlap_its_own(
    folder: Path, taken: list[int], of: int, axis: int
) -> None:
    parts = Parts(folder)
    for region in regions(of, axis):
        taken.clear()
        np.testing.assert_array_equal(parts.read("w", region), WEIGHTS[window(region)])
        assert sum(taken) <= max(WEIGHTS.nbytes // of, RANKS * restart_files.PIECE_BYTES)


def test_each_byte_is_verified_by_one_process(folder: Path, taken: list[int]) -> None:
    parts = Parts(folder)
    for rank in range(3):
        before = sum(taken)
        parts.check(rank, 3)
        assert 0 < sum(taken) - before < WEIGHTS.nbytes / 2
    assert sum(taken) == WEIGHTS.nbytes


def test_a_damaged_piece_is_refused_in_its_region_only(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    data = bytearray(restart_files.data_file(copy, 3).read_bytes())
    data[-1] ^= 1
    restart_files.data_file(copy, 3).write_bytes(data)
    parts = Parts(copy)
    *sound, damaged = regions(RANKS, 0)
    for region in sound:
        parts.read("w", region)
    with pytest.raises(restart.CheckpointError, match="wrong checksum"):
        parts.read("w", damaged)


@pytest.mark.parametrize("itemsize", [1, 8])
@pytest.mark.parametrize("shape", [(), (0, 3), (1 << 22,), (3, 5, 1 << 20), (1, 1, 7)])
def test_regions_are_divided_without_gaps(shape: tuple[int, ...], itemsize: int) -> None:
    most = restart_files.PIECE_BYTES // itemsize
    found = list(restart_files.divided(tuple((0, n) for n in shape), most))
    assert restart_files._covers(found, shape)
    sizes = [np.prod([high - low for low, high in region]) for region in found]
    assert max(sizes) <= most


class _Part:
    def __init__(self, region: Any, root: int) -> None:
        self.region, self.root = region, root


class _Variable:
    def __init__(self, *parts: _Part) -> None:
        self.parts = dict(enumerate(parts))


def test_processes_take_turns_writing_what_several_hold() -> None:
    """The same in all processes, without asking them: each knows all holders."""
    whole, halves = ((0, 4),), (((0, 2),), ((2, 4),))
    stored: Any = {
        f"w{n}": _Variable(*(_Part(((0, size),), root) for root in range(4)))
        for n, size in enumerate((5, 100, 100, 7, 100, 100, 6, 8))
    }
    stored["split"] = _Variable(*(_Part(half, root) for root, half in enumerate(halves)))
    stored["one"] = _Variable(_Part(whole, 3))
    writers = restart._writers(stored)
    assert writers["one", whole] == 3
    assert [writers["split", half] for half in halves] == [0, 1]
    loads = [0, 0, 0, 0]
    for (name, ((_, size),)), rank in writers.items():
        loads[rank] += size * name.startswith("w")
    assert loads == [108, 107, 106, 105]


@pytest.mark.slow
@pytest.mark.representative("2-0", "the others differ in the number of processes")
@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize(("ranks", "axis"), [(2, 0), (4, 1)])
def test_ranks_read_their_parts(tmp_path: Path, ranks: int, axis: int) -> None:
    """Four ranks save rows; others read their own part, after each has verified a share."""
    script = HELPERS / "sharded_restart.py"
    outputs = [
        run_script(of, script, *arguments)
        for of, arguments in (
            (4, ("save", str(tmp_path), "0")),
            (ranks, ("load", str(tmp_path), str(axis))),
        )
    ]
    for done in outputs:
        assert done.returncode == 0, done.stderr
    saved, loaded = (done.stderr for done in outputs)
    step, nbytes = 8, 2 * 4096 * 2048 * 4  # the weight and its momentum
    checked = [int(text) for text in re.findall(r"checked (\d+)", loaded)]
    read = [int(text) for text in re.findall(r"read (\d+)", loaded)]
    assert len(checked) == len(read) == ranks
    assert sum(checked) == nbytes + step
    once = sum(read) - sum(checked) - ranks * step
    assert once == nbytes if axis == 0 else nbytes <= once <= 2 * nbytes
    losses = [float.fromhex(text) for text in re.findall(r"loss (\S+)", saved + loaded)]
    assert len(losses) == 4 + ranks
    np.testing.assert_allclose(losses, losses[0], 1e-5)
