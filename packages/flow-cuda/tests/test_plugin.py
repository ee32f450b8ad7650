"""The results of the device probe, and importing the plugin without touching hardware."""

import sys

import processes
import pytest

from flow_core.base.config import Settings
from flow_core.plugins.host import Host
from flow_core.plugins.specs import Available, Unavailable
from flow_cuda import plugin
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
        (Facts("", (12, 8), 2, CUPY12), "cannot run programs on the 2", "ONEFLOW_EMULATE_GPUS"),
    ],
)
def test_obstacles_are_reported(found: Facts, reason: str, hint: str) -> None:
    verdict = judge(found)
    assert isinstance(verdict, Unavailable)
    assert reason in verdict.reason
    assert hint in verdict.hint


@pytest.mark.parametrize("cupy", [CUPY12, CUPY13, ("cupy", "14.0")])
def test_available_if_all_requirements_are_met(cupy: tuple[str, str]) -> None:
    verdict = judge(Facts("", (13, 0), 2, cupy, True))
    assert verdict == Available(2, f"CUDA 13.0, {cupy[0]} 14.0")


def test_probe_runs_on_this_machine() -> None:
    found = plugin.facts()
    assert isinstance(plugin.probe(), Available | Unavailable)
    assert found.devices >= 0
    lines = plugin.flow_doctor()
    named = [line.partition(":")[0] for line in lines]
    assert named == ["NVIDIA driver", "CUDA devices", "CuPy", "cuDNN"]


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
