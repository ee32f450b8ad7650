"""cuBLASLt is loaded by its name, or from NVIDIA's wheel if no search path has it."""

from __future__ import annotations

import ctypes
import sys
from types import ModuleType
from typing import Any

import pytest

from flow_cuda.driver.cublaslt_library import SIGNATURES, CublasLt


class Library:
    """A library with all functions."""

    def __init__(self) -> None:
        for name in SIGNATURES:
            setattr(self, f"cublasLt{name}", lambda *_: 0)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of loaded libraries, which alone are found."""
    names: list[str] = []

    def load(name: str) -> Any:
        if name not in names:
            raise OSError(f"{name}: cannot open shared object file")
        return Library()

    monkeypatch.setattr(ctypes, "CDLL", load)
    return names


def wheel(monkeypatch: pytest.MonkeyPatch, load: Any) -> None:
    """Install a package that finds libraries in wheels."""
    found = ModuleType("cuda.pathfinder")
    vars(found)["load_nvidia_dynamic_lib"] = load
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", found)


def file_of(major: int) -> str:
    windows = sys.platform == "win32"
    return f"cublasLt64_{major}.dll" if windows else f"libcublasLt.so.{major}"


def test_the_wheel_is_loaded_once_no_path_has_it(
    monkeypatch: pytest.MonkeyPatch, loaded: list[str]
) -> None:
    asked: list[str] = []

    def load(name: str) -> None:
        asked.append(name)
        loaded.append(file_of(12))

    wheel(monkeypatch, load)
    for _ in range(2):
        CublasLt(12)
    assert asked == ["cublasLt"]


def test_the_wheel_of_another_version_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, loaded: list[str]
) -> None:
    wheel(monkeypatch, lambda _: loaded.append(file_of(13)))
    with pytest.raises(OSError, match="12"):
        CublasLt(12)


def test_no_wheel(monkeypatch: pytest.MonkeyPatch, loaded: list[str]) -> None:
    def fail(_: str) -> None:
        raise RuntimeError("no such library")

    wheel(monkeypatch, fail)
    with pytest.raises(OSError, match="cannot open"):
        CublasLt(12)
    assert not loaded


def test_no_package_that_finds_wheels(monkeypatch: pytest.MonkeyPatch, loaded: list[str]) -> None:
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    with pytest.raises(OSError, match="cannot open"):
        CublasLt(12)
    assert not loaded
