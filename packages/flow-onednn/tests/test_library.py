"""Finding and loading the library, and the errors on failure."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import processes
import pytest

from flow_core.base.disk_cache import CacheWarning
from flow_onednn import binding, library, threads
from flow_onednn.library import Missing, OneDnnError, isa_text, state
from flow_onednn.native import compiler

DOCTOR = "from flow_onednn.library import doctor; print(*doctor(), sep='\\n')"


def doctor(**settings: str) -> str:
    command = [sys.executable, "-c", DOCTOR]
    return processes.run(command, env={**os.environ, **settings}, check=True).stdout


def test_missing_file_error_names_the_package_to_install() -> None:
    text = doctor(FLOW_ONEDNN_LIBRARY="/nowhere/libdnnl.so.3")
    assert "not used" in text
    assert "/nowhere/libdnnl.so.3" in text
    assert "flow-onednn[wheel]" in text


@pytest.mark.slow
def test_registration_loads_nothing() -> None:
    code = "import sys; from flow_core.plugins.host import load_plugins as load; load(); "
    code += "assert 'flow_onednn.plugin' in sys.modules and '_cffi_backend' not in sys.modules"
    processes.run([sys.executable, "-c", code], check=True)


SUM = "typedef struct { long count; double *values; ...; } Rows; long abs(long); enum { SIX = 6 };"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "flow-onednn"


def declared(cdef: str) -> Any:
    """Parse declarations as in a new process, without shared state."""
    return compiler.ffi.__wrapped__(cdef)


def test_declarations_are_parsed_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cdef = SUM.replace(" ...;", "")
    first = declared(cdef)
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(compiler, "_parsed", None)
    again = declared(cdef)
    assert first.sizeof("Rows") == again.sizeof("Rows") == 16
    assert again.new("Rows *", {"count": 3}).count == 3
    assert again.dlopen(None).SIX == 6


@pytest.mark.usefixtures("own_temporary_folder")
def test_declarations_use_a_temporary_folder_if_the_cache_is_unusable(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.warns(CacheWarning, match="cannot be used"):
        assert declared("long labs(long);").dlopen(None).labs(-3) == 3
    assert declared("long labs(long);").dlopen(None).labs(-3) == 3
    assert cache.is_file()


@pytest.mark.skipif(not compiler.available(), reason=f"no C compiler: {compiler.state()}")
@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[: len(b) // 2], lambda b: b"x" + b])
def test_damaged_entries_are_recreated(
    cache: Path, damage: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A truncated library would end later processes with SIGBUS, an empty table with KeyError."""
    found = compiler.state()
    assert isinstance(found, compiler.Compiler)

    monkeypatch.setattr(compiler, "ffi", compiler.ffi.__wrapped__)  # as in a new process

    def three() -> Any:
        text = "int three(void) { return 3; }"
        library = compiler.built(found.path, found.version, text, "int three(void);")
        return library.three()

    assert three() == 3
    entries = sorted(cache.iterdir())
    assert [path.suffix for path in entries] in ([".so", ".py"], [".py", ".so"])
    contents = [path.read_bytes() for path in entries]
    for path, content in zip(entries, contents, strict=True):
        path.unlink()  # not rewritten in place: this process has mapped the library
        path.write_bytes(damage(content))
    with pytest.warns(CacheWarning, match="will be replaced") as warned:
        assert three() == 3
    assert len(warned) == 2
    assert [path.stat().st_size for path in entries] == [len(content) for content in contents]
    assert three() == 3


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="libc by its Linux name")
def test_other_library_is_rejected() -> None:
    assert "libc.so.6 is not oneDNN" in doctor(FLOW_ONEDNN_LIBRARY="libc.so.6")


def test_setting_has_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOW_ONEDNN_LIBRARY", "/chosen.so")
    assert list(library.candidates()) == ["/chosen.so"]
    monkeypatch.delenv("FLOW_ONEDNN_LIBRARY")
    assert list(library.candidates())[-1] == library.NAMES[-1]


class OldLibrary:
    """A library that reports an oneDNN version, with or without engines."""

    error = AttributeError

    def __init__(self, version: tuple[int, int, int], engines: int = 1) -> None:
        self.version, self.engines = version, engines

    def dlopen(self, path: str) -> OldLibrary:
        return self

    def dnnl_version(self) -> Any:
        class Raw:
            cpu_runtime = 2

        raw = Raw()
        raw.major, raw.minor, raw.patch = self.version  # type: ignore[attr-defined]
        return raw

    def dnnl_engine_get_count(self, kind: int) -> int:
        return self.engines


@pytest.mark.parametrize("version", [(2, 7, 0), (3, 1, 9), (4, 0, 0)])
def test_unknown_versions_are_rejected(version: tuple[int, int, int]) -> None:
    found = library._open(OldLibrary(version), "old.so")
    assert isinstance(found, Missing)
    assert found.reason == (
        f"old.so is oneDNN {'.'.join(map(str, version))}; 3.2 or a later 3.x is needed"
    )


def test_library_without_a_cpu_engine_is_rejected() -> None:
    found = library._open(OldLibrary((3, 13, 2), engines=0), "sycl.so")
    assert isinstance(found, Missing)
    assert "no CPU engine" in found.reason


@pytest.mark.usefixtures("onednn")
def test_library_with_other_enumeration_values_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = library.library()
    changed = {**binding.NAMES, "alg_kind": {binding.RELU: "eltwise_tanh"}}
    monkeypatch.setattr(binding, "NAMES", changed)
    found = library._open(one.ffi, one.path)
    assert isinstance(found, Missing)
    assert "alg_kind 32 is 'eltwise_relu', not 'eltwise_tanh'" in found.reason


def test_load_error_is_raised_on_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "state", lambda: Missing("it is not there"))
    with pytest.raises(OneDnnError, match="it is not there"):
        library.library()


def test_instruction_sets_are_named() -> None:
    assert isa_text(0x27 | 0x1000) == "AVX512"
    assert isa_text(0) == "no vector unit"


@pytest.mark.usefixtures("onednn")
def test_statuses_become_errors() -> None:
    found = library.library()
    with pytest.raises(OneDnnError, match=r"describing x.*\n.*invalid arguments"):
        found.check(2, "describing x")


@pytest.mark.usefixtures("onednn")
def test_doctor_reports_library_and_thread_count() -> None:
    if threads.runtime() is None:
        pytest.skip("the OpenMP runtime is not libgomp")
    text = doctor(ONEFLOW_CPU_THREADS="3")
    assert "oneDNN: 3." in text
    assert "3 by ONEFLOW_CPU_THREADS" in text


POOLS = """
import ctypes, threading
from flow_core.base.disk_cache import CacheWarning
from flow_onednn import binding, library, threads
library.state()
found = []
pool = threads.runtime()
ask = lambda: found.append(pool.omp_get_max_threads())
ask()
other = threading.Thread(target=ask)
other.start()
other.join()
print(found)
"""


@pytest.mark.parametrize("standard", ["", "1"])
def test_all_threads_that_run_steps_have_the_same_pool_size(standard: str) -> None:
    """This includes the threads of asynchronous jobs and streams."""
    if threads.runtime() is None:
        pytest.skip("the OpenMP runtime is not libgomp")
    env = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}
    env |= {"ONEFLOW_CPU_THREADS": "3"} | ({"OMP_NUM_THREADS": standard} if standard else {})
    done = processes.run([sys.executable, "-c", POOLS], env=env, check=True)
    assert done.stdout.strip() == "[3, 3]"


def test_pool_is_shared_with_other_openmp_code() -> None:
    pool = threads.runtime()
    if pool is None:
        pytest.skip("the OpenMP runtime is not libgomp")
    state()
    assert threads.count() == ctypes.CDLL("libgomp.so.1").omp_get_max_threads()


WIDEST = '''
from flow_onednn.native import compiler
source = """
#ifdef __AVX512F__
int widest(void) { return 512; }
#elif defined __AVX2__
int widest(void) { return 256; }
#else
int widest(void) { return 128; }
#endif
"""
print(compiler.compiled(source, "int widest(void);").widest())
'''


@pytest.mark.slow
def test_loops_are_limited_to_the_instructions_of_the_library() -> None:
    """A processor does not load code from the cache that was compiled for another."""
    if not compiler.available():
        pytest.skip(f"no C compiler: {compiler.state()}")
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("the limits are names of x86 instruction sets")
    found = []
    for limit in ("SSE41", "AVX2", "ALL"):
        env = {**os.environ, compiler.LIMIT: limit}
        done = processes.run([sys.executable, "-c", WIDEST], env=env, check=True)
        found.append(int(done.stdout))
    assert found[0] == 128
    assert found[1] <= 256
    assert found == sorted(found)
