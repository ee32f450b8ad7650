"""Entries are validated and recreated if damaged; folders are replaced; sizes are bounded."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import processes
import pytest

from flow_core.base import disk_cache
from flow_core.base.disk_cache import CacheError, CacheWarning, DiskCache, evict, user_folder

KEY = ("source", "compiler")


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache", ".bin")


def refuse() -> bytes:
    raise AssertionError("the entry was made again")


def damage(cache: DiskCache, change: Callable[[bytes], bytes]) -> None:
    entry = cache.entry(KEY)
    entry.write_bytes(change(entry.read_bytes()))


def test_entry_is_created_once(cache: DiskCache) -> None:
    assert cache.read(KEY) is None
    assert cache.get(KEY, lambda: b"content") == b"content"
    assert cache.get(KEY, refuse) == b"content"
    assert cache.path(KEY, refuse).read_bytes().startswith(b"content")
    assert cache.read((*KEY, "other")) is None


@pytest.mark.parametrize("key", [("a", "b"), ("ab",), ("", "ab"), ("a\0b",), ("\ud800",)])
def test_similar_keys_are_distinct(cache: DiskCache, key: tuple[str, ...]) -> None:
    for other in [("a", "b"), ("ab",), ("", "ab"), ("a\0b",), ("\ud800",)]:
        assert (cache.entry(key) == cache.entry(other)) == (key == other)


def test_any_flipped_bit_is_detected(cache: DiskCache) -> None:
    cache.write(KEY, bytes(range(64)))
    whole = cache.entry(KEY).read_bytes()
    for bit in np.random.default_rng(0).permutation(8 * len(whole))[:300].tolist():
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        cache.entry(KEY).write_bytes(flipped)
        with pytest.warns(CacheWarning, match="will be replaced"):
            assert cache.read(KEY) is None


@pytest.mark.parametrize("length", [0, 1, 20, 50])
def test_truncated_entry_is_recreated(cache: DiskCache, length: int) -> None:
    cache.write(KEY, b"content")
    damage(cache, lambda data: data[:length])
    with pytest.warns(CacheWarning, match="incomplete"):
        assert cache.get(KEY, lambda: b"content") == b"content"
    assert cache.get(KEY, refuse) == b"content"


def test_entry_of_another_key_is_recreated(cache: DiskCache) -> None:
    cache.write(("other",), b"other")
    cache.write(KEY, b"content")
    damage(cache, lambda _: cache.entry(("other",)).read_bytes())
    with pytest.warns(CacheWarning, match="digest"):
        assert cache.read(KEY) is None


needs_modes = pytest.mark.skipif(os.name != "posix", reason="file modes of POSIX")
needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away"
)


@needs_modes
def test_entry_writable_by_others_is_not_used(cache: DiskCache) -> None:
    cache.write(KEY, b"content")
    cache.entry(KEY).chmod(0o666)
    with pytest.warns(CacheWarning, match="other users may write"):
        assert cache.read(KEY) is None


@needs_modes
def test_symbolic_link_is_not_followed(cache: DiskCache) -> None:
    cache.write(KEY, b"content")
    elsewhere = cache.entry(KEY).rename(cache.folder / "elsewhere")
    cache.entry(KEY).symlink_to(elsewhere)
    assert cache.read(KEY) is None
    cache.write(KEY, b"content")
    assert not cache.entry(KEY).is_symlink()


@needs_modes
def test_permissions_of_a_folder_writable_by_others_are_restricted(cache: DiskCache) -> None:
    cache.folder.mkdir()
    cache.folder.chmod(0o777)
    cache.write(KEY, b"content")
    assert cache.folder.stat().st_mode & 0o077 == 0o055
    assert cache.read(KEY) == b"content"


@needs_root
def test_entries_of_another_user_are_not_used(cache: DiskCache) -> None:
    cache.write(KEY, b"content")
    os.chown(cache.entry(KEY), 12345, 12345)
    with pytest.warns(CacheWarning, match="belongs to user 12345"):
        assert cache.read(KEY) is None


@needs_root
@pytest.mark.usefixtures("own_temporary_folder")
def test_folder_of_another_user_is_replaced(cache: DiskCache) -> None:
    cache.write(KEY, b"content")
    theirs = cache.folder
    os.chown(theirs, 12345, 12345)
    assert cache.read(KEY) is None
    with pytest.warns(CacheWarning, match="belongs to user 12345"):
        cache.write(KEY, b"mine")
    assert cache.folder != theirs
    assert cache.read(KEY) == b"mine"


@pytest.mark.usefixtures("own_temporary_folder")
def test_unusable_folder_is_replaced_with_one_warning(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    caches = [DiskCache(blocked, suffix) for suffix in (".a", ".b")]
    with pytest.warns(CacheWarning) as warned:
        found = [cache.get(KEY, lambda: b"content") for cache in (*caches, *caches)]
    assert found == [b"content"] * 4
    assert [cache.get(KEY, refuse) for cache in caches] == [b"content"] * 2
    assert len(warned) == 1
    assert str(blocked) in str(warned[0].message)
    assert "XDG_CACHE_HOME" in str(warned[0].message)


@pytest.mark.usefixtures("own_temporary_folder")
def test_full_disk_is_not_an_error(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    full = cache.folder
    write = disk_cache._write_synced

    def write_elsewhere(path: Path, data: bytes) -> None:
        if path.parent == full:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data)

    monkeypatch.setattr(disk_cache, "_write_synced", write_elsewhere)
    with pytest.warns(CacheWarning, match="No space left"):
        assert cache.path(KEY, lambda: b"content").parent != full
    assert cache.get(KEY, refuse) == b"content"


@pytest.mark.usefixtures("own_temporary_folder")
def test_content_is_used_if_no_folder_can_store_it(
    cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk_cache, "_write_synced", fail)
    with pytest.warns(CacheWarning):
        assert cache.get(KEY, lambda: b"content") == b"content"
    with pytest.warns(CacheWarning), pytest.raises(CacheError, match="TMPDIR"):
        cache.path(KEY, lambda: b"content")


def test_failed_write_leaves_no_files(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cache.write(KEY, b"content")
    assert list(cache.folder.iterdir()) == []


def test_the_least_recently_used_entries_are_evicted(tmp_path: Path) -> None:
    now = time.time()
    for hours in range(10):
        path = tmp_path / f"{hours}"
        path.write_bytes(bytes(100))
        os.utime(path, (now - hours * 3600 - 60,) * 2)
    evict(tmp_path, 1000)
    assert len(list(tmp_path.iterdir())) == 10
    evict(tmp_path, 999)
    assert sorted(p.name for p in tmp_path.iterdir()) == [str(hours) for hours in range(7)]
    evict(tmp_path, 0)
    assert [p.name for p in tmp_path.iterdir()] == ["0"], "used within the last hour"


def test_writing_evicts_and_reading_counts_as_use(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, ".bin", limit=1100)
    keys = [(f"{k}",) for k in range(4)]
    for second, key in enumerate(keys):
        cache.write(key, bytes(200))
        os.utime(cache.entry(key), (second, second))
    assert cache.read(keys[0]) is not None
    cache.write(("last",), bytes(200))
    assert [cache.entry(key).exists() for key in keys] == [True, False, False, True]


def test_concurrent_processes_share_one_entry(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from flow_core.base.disk_cache import DiskCache\n"
        "cache = DiskCache(Path(sys.argv[1]), '.bin')\n"
        "for _ in range(100):\n"
        "    cache.write(('key',), bytes(5000))\n"
        "    assert cache.read(('key',)) == bytes(5000)\n"
    )
    command = [sys.executable, "-W", "error", "-c", program, str(tmp_path)]
    ended = processes.run_together([(command, dict(os.environ))] * 3)
    assert [done.returncode for done in ended] == [0, 0, 0], ended
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("base", ["", "relative/path"])
def test_user_folder_requires_an_absolute_base(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", base)
    monkeypatch.setenv("HOME", os.path.abspath(os.sep + "home"))
    assert user_folder("flow-x") == Path(os.path.expanduser("~/.cache"), "flow-x")


def test_temporary_folder_is_removed_at_exit(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("")
    program = (
        "import os, sys; from pathlib import Path\n"
        "from flow_core.base.disk_cache import DiskCache\n"
        "cache = DiskCache(Path(sys.argv[1], 'blocked'), '.bin')\n"
        "cache.write(('key',), b'content')\n"
        "if os.fork() == 0:\n"
        "    sys.exit()\n"
        "os.wait()\n"
        "assert cache.read(('key',)) == b'content'\n"
    )
    if not hasattr(os, "fork"):
        program = program.replace("os.fork()", "1").replace("os.wait()", "")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = processes.run(command, env=environment, check=True)
    assert "cannot be used" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["blocked"]
