"""The results of the device probe, and importing the plugin without touching hardware."""

import sys
from collections.abc import Callable
from importlib import metadata

import processes
import pytest

from flow_core.base.config import Settings
from flow_core.plugins.host import Host
from flow_core.plugins.specs import Available, Unavailable
from flow_cuda import libraries, plugin
from flow_cuda.plugin import Facts, judge

CUPY12, CUPY13 = ("cupy-cuda12x", "14.0"), ("cupy-cuda13x", "14.0")


@pytest.mark.parametrize(
    ("found", "reason", "hint"),
    [
        (Facts("there is no libcuda.so.1"), "libcuda", "ONEFLOW_EMULATE_GPUS"),
        (Facts(version=(12, 8)), "0 CUDA devices", "ONEFLOW_EMULATE_GPUS"),
        (Facts(version=(12, 8), devices=1), "CuPy is not installed", "flow-cuda[cu12]"),
        (Facts(version=(13, 0), devices=1), "CuPy is not installed", "flow-cuda[cu13]"),
        (Facts("", (12, 8), 1, CUPY13), "too new for a driver of CUDA 12.8", "flow-cuda[cu12]"),
    ],
)
def test_obstacles_are_reported(found: Facts, reason: str, hint: str) -> None:
    verdict = judge(found)
    assert isinstance(verdict, Unavailable)
    assert reason in verdict.reason
    assert hint in verdict.hint


BOTH = {12: ["cupy-cuda12x 14.2.0"], 13: ["cuda-bindings 13.5.0", "nvidia-cudnn-cu13 9.28.1"]}


@pytest.mark.parametrize(
    ("driver", "removed", "kept"),
    [
        ((12, 8), "cuda-bindings nvidia-cudnn-cu13", "flow-cuda[cu12]"),
        ((13, 0), "cupy-cuda12x", "flow-cuda[cu13]"),
    ],
)
def test_packages_of_two_versions_are_named(
    driver: tuple[int, int], removed: str, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Facts("", driver, 1, CUPY12, (90,), BOTH)
    verdict = judge(found)
    assert isinstance(verdict, Unavailable)
    assert "of CUDA 12 (cupy-cuda12x 14.2.0) and of CUDA 13 (cuda-b" in verdict.reason
    assert verdict.hint.startswith(f"uv pip uninstall {removed}, then ")
    assert kept in verdict.hint
    monkeypatch.setattr(plugin, "facts", lambda: found)
    assert any(
        line.startswith("CUDA packages: packages of CUDA 12") for line in plugin.flow_doctor()
    )


def test_versions_of_packages_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    present = {"cuda-bindings": "12.9.1", "cupy-cuda13x": "14.2.0", "nvidia-nccl-cu12": "2.32.3"}

    def version(name: str) -> str:
        if name not in present:
            raise metadata.PackageNotFoundError(name)
        return present[name]

    monkeypatch.setattr(metadata, "version", version)
    assert plugin.facts().wheels == {
        13: ["cupy-cuda13x 14.2.0"],
        12: ["cuda-bindings 12.9.1", "nvidia-nccl-cu12 2.32.3"],
    }


@pytest.mark.parametrize("cupy", [CUPY12, CUPY13, ("cupy", "14.0")])
def test_available_if_all_requirements_are_met(cupy: tuple[str, str]) -> None:
    verdict = judge(Facts("", (13, 0), 2, cupy))
    assert verdict == Available(2, f"CUDA 13.0, {cupy[0]} 14.0")


def test_probe_runs_on_this_machine() -> None:
    found = plugin.facts()
    assert isinstance(plugin.probe(), Available | Unavailable)
    assert found.devices >= 0
    lines = plugin.flow_doctor()
    named = [line.partition(":")[0] for line in lines]
    assert named == [
        "NVIDIA driver", "CUDA devices", "CuPy", "packages of cuDNN", "NVRTC", "cuBLASLt", "cuDNN",
    ]  # fmt: skip


FOUND = Available(1, "CUDA 13.0, cupy-cuda13x 14.0")


@pytest.fixture
def toolkit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that stands for an installed toolkit."""

    def install(version: tuple[int, int], *architectures: int, modules: object = None) -> None:
        monkeypatch.setattr(libraries.nvrtc, "version", lambda: version)
        monkeypatch.setattr(libraries.nvrtc, "architectures", lambda: architectures)
        monkeypatch.setattr(libraries, "MODULES", modules or ("flow_cuda.codegen.nvrtc",))

    return install


def test_a_device_that_the_toolkit_supports(toolkit: Callable[..., None]) -> None:
    toolkit((13, 0), 75, 90, 121)
    assert libraries.check(FOUND, (90, 75)) == FOUND


@pytest.mark.parametrize(
    ("lowest", "reason", "hint"),
    [
        (70, "a device has 7.0; NVRTC 13.0 compiles for compute capability 7.5 and newer",
         "flow-cuda[cu12]"),
        (61, "compute capability 6.1: flow-cuda needs 7.0", "CUDA_VISIBLE_DEVICES"),
    ],
)  # fmt: skip
def test_devices_that_the_toolkit_does_not_support(
    toolkit: Callable[..., None], lowest: int, reason: str, hint: str
) -> None:
    toolkit((13, 0), 75, 90)
    found = libraries.check(FOUND, (90, lowest))
    assert isinstance(found, Unavailable)
    assert reason in found.reason
    assert hint in found.hint


def test_modules_that_do_not_load_are_reasons(toolkit: Callable[..., None]) -> None:
    toolkit((13, 0), 75, modules=("flow_cuda.no_driver",))
    found = libraries.check(FOUND, (90,))
    assert isinstance(found, Unavailable)
    words = "flow_cuda.no_driver does not load: ModuleNotFoundError"
    assert found.reason.startswith(words)
    assert "flow-cuda[cu13]" in found.hint


def test_a_missing_compiler_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> tuple[int, ...]:
        raise libraries.nvrtc.NvrtcError("loading NVRTC", found="no such library")

    monkeypatch.setattr(libraries.nvrtc, "architectures", missing)
    monkeypatch.setattr(libraries, "MODULES", ())
    found = libraries.check(FOUND, (90,))
    assert isinstance(found, Unavailable)
    assert found.reason == "NVRTC does not load: no such library"
    assert "NVRTC: does not load: no such library" in list(libraries.lines(13))


def test_missing_library_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "LIBRARY", "libno-such-library.so.1")
    verdict = plugin.probe()
    assert isinstance(verdict, Unavailable)
    assert "libno-such-library.so.1" in verdict.reason


def test_plugin_yields_to_emulated_gpus() -> None:
    assert [spec.type for spec in plugin.flow_register_devices(Settings())] == ["gpu"]
    settings = Settings(plugins=(), emulate_gpus=2)
    registry = Host(settings, [plugin]).load()
    assert registry.probe("gpu") == Available(2, "emulated on the CPU")


def test_import_touches_no_hardware() -> None:
    code = (
        "import ctypes, sys\n"
        "def no(*args, **kwargs): raise SystemExit('a library was opened')\n"
        "import numpy\n"
        "ctypes.CDLL.__init__ = no\n"
        "import flow_cuda.plugin\n"
        "assert 'cupy' not in sys.modules\n"
    )
    processes.run([sys.executable, "-c", code], check=True)
