"""Mapped files, with pages of 2 MiB where the kernel supports them."""

import gc
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flow_dist.shm import large_pages
from flow_dist.shm.large_pages import LARGE, enlarge, mapped

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memfd_create")


@pytest.fixture
def file() -> Iterator[int]:
    found = os.memfd_create("tested")
    yield found
    os.close(found)


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:tested")


@pytest.mark.slow
@pytest.mark.representative(r"\[2097152\]", "the size of a large page")
@pytest.mark.parametrize("size", [1, 4096, LARGE - 1, LARGE, 3 * LARGE + 12345])
def test_mappings_share_bytes_until_released(file: int, size: int) -> None:
    os.ftruncate(file, size)
    one = mapped(file, size)
    is_large, other = enlarge(one), mapped(file, size)
    assert is_large <= (size >= LARGE)
    assert not one.any()
    drawn = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    one[...] = drawn
    assert (other == drawn).all()
    other[-1] = drawn[-1] ^ 1
    end = one[-1:]
    del one, other
    gc.collect()
    assert mappings() == 1
    assert end[0] == drawn[-1] ^ 1
    del end
    gc.collect()
    assert mappings() == 0


def test_large_ones_lie_at_multiples(file: int) -> None:
    os.ftruncate(file, 2 * LARGE)
    found = [mapped(file, 2 * LARGE) for _ in range(3)]
    assert [array.ctypes.data % LARGE for array in found] == [0, 0, 0]


def test_pages_are_large_where_the_system_says_so(file: int) -> None:
    os.ftruncate(file, 4 * LARGE)
    memory = mapped(file, 4 * LARGE)
    if not enlarge(memory):
        pytest.skip("the system gives shared memory no large pages")
    pages = re.findall(r"memfd:tested.*?ShmemPmdMapped: *(\d+) kB", smaps(), re.DOTALL)
    assert [int(kib) << 10 for kib in pages] == [4 * LARGE]


def test_falls_back_to_small_pages(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages, "_COLLAPSE", 9999)  # as before Linux 6.1
    os.ftruncate(file, LARGE)
    memory = mapped(file, LARGE)
    assert enlarge(memory) is False
    memory[...] = 7
    assert (mapped(file, LARGE) == 7).all()


def smaps() -> str:
    return Path("/proc/self/smaps").read_text()


def test_failed_mappings_raise_and_release_memory(tmp_path: Path) -> None:
    path = tmp_path / "tested"
    path.write_bytes(bytes(2 * LARGE))
    handle = os.open(path, os.O_RDONLY)
    before = len(Path("/proc/self/maps").read_text().splitlines())
    with pytest.raises(PermissionError):
        mapped(handle, 2 * LARGE)
    os.close(handle)
    assert len(Path("/proc/self/maps").read_text().splitlines()) <= before + 1  # the heap may grow
