"""Kernels are compiled together, kept, and compiled to PTX for devices newer than NVRTC."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cuda_cases import DeviceKernels, simulated_registry
from cuda_simulator import host_compiler

from flow_core.plugins.registry import Registry
from flow_core.testing.rig import Rig
from flow_cuda.codegen import nvrtc
from flow_cuda.codegen.program import Kernel, make_kernel
from flow_cuda.device.launch import KernelLaunch
from flow_cuda.driver.gpu import GpuDriver
from flow_cuda.driver.modules import PER_MODULE, Modules
from flow_cuda.families import FAMILIES


def kernels(count: int) -> list[Kernel]:
    return [make_kernel("k", (), f"// {i}") for i in range(count)]


class Loaded:
    """A module: the names of its kernels are in its code."""

    def __init__(self, code: bytes) -> None:
        self.names = re.findall(r"void (k_\w+)\(", code.decode())

    def get_function(self, name: str) -> Any:
        return SimpleNamespace(ptr=1 + self.names.index(name))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str]]:
    """The texts and architectures that NVRTC compiles; its code is the text."""
    found: list[tuple[str, str]] = []

    def compile_text(text: str, architecture: str) -> bytes:
        found.append((text, architecture))
        return text.encode()

    monkeypatch.setattr(nvrtc, "compile_text", compile_text)
    monkeypatch.setattr(nvrtc, "version", lambda: (13, 0))
    monkeypatch.setattr(nvrtc, "architectures", lambda: (75, 80, 90, 120))
    monkeypatch.setattr(nvrtc, "user_folder", lambda name: tmp_path)
    return found


def loaded(count: int, architecture: str = "sm_90") -> list[Any]:
    modules = Modules(architecture, Loaded)
    functions = [modules.function(kernel) for kernel in kernels(count)]
    assert not any(f.pointer for f in functions)
    modules.finish()
    assert all(f.pointer for f in functions)
    assert all(modules.function(f.kernel) is f for f in functions)
    return functions


def test_kernels_are_compiled_together(compiled: list[tuple[str, str]]) -> None:
    functions = loaded(100)
    assert 100 / PER_MODULE <= len(compiled) <= 8
    names = [name for text, _ in compiled for name in Loaded(text.encode()).names]
    assert sorted(names) == sorted(f.kernel.name for f in functions)
    assert len({id(f.module) for f in functions}) == len(compiled)


def test_kernels_are_kept_for_the_next_start(compiled: list[tuple[str, str]]) -> None:
    loaded(100)
    compiled.clear()
    loaded(100)
    assert not compiled
    loaded(101)
    assert len(compiled) == 1  # the group of the additional kernel


@pytest.mark.parametrize(
    ("architecture", "wanted"),
    [("sm_90", "sm_90"), ("sm_103", "compute_90"), ("sm_130", "compute_120")],
)
def test_newer_devices_get_ptx(
    compiled: list[tuple[str, str]], architecture: str, wanted: str
) -> None:
    loaded(1, architecture)
    assert [found for _, found in compiled] == [wanted]


def test_older_devices_are_refused(compiled: list[tuple[str, str]]) -> None:
    with pytest.raises(nvrtc.NvrtcError, match=r"sm_75 and newer(.|\n)*flow-cuda\[cu12\]"):
        loaded(1, "sm_70")
    assert not compiled


class Names:
    """A compiler and a launch that only keep names."""

    def __init__(self) -> None:
        self.launched: set[str] = set()

    def function(self, kernel: Kernel) -> host_compiler.HostFunction:
        def call(*_: object) -> int:
            self.launched.add(kernel.name)
            return 0

        return host_compiler.HostFunction(kernel, call)


@pytest.mark.parametrize("family", sorted({*FAMILIES} - {"dnn", "matmul"}))
def test_what_is_preloaded_is_launched(family: str) -> None:
    kit = family_kit(family)
    names = Names()
    driver = GpuDriver(kit.hardware(names), chunk=64)
    cases = [c for op in kit.covered_ops() for t in kit.dtypes_of(op) for c in kit.cases(op, t)]
    for case in cases:
        rig = Rig(driver, case.kernel, case.asked, mutates=case.mutates)
        for launch in kernel_launches(rig):
            names.launched.add(launch.function.kernel.name)
    asked = {kernel.name for kernel in kit.all_kernels(copies=(1,))}
    assert asked
    assert asked == names.launched


def kernel_launches(rig: Rig) -> list[KernelLaunch]:
    """Return the launches of kernels that a GPU queues for a step."""
    launches: Any = rig.launch
    works = (work for part in launches.parts for work in part.queued)
    return [work for work in works if isinstance(work, KernelLaunch)]


def family_kit(family: str) -> Any:
    module = importlib.import_module(f"flow_cuda.kernels.{family}")

    class Few(DeviceKernels):
        plugin = "cuda_simulator.plugin"
        dtypes = ("float32",)
        ops = tuple(sorted({spec.op for spec in module.KERNELS}))

        def registry(self) -> Registry:
            return simulated_registry()

    return Few()
