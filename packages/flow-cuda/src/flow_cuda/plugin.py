"""The plugin of flow-cuda, which detects CUDA without importing CuPy.

The probe queries NVIDIA's driver library and the metadata of installed packages.  It runs only
when a program requests a "gpu", or in ``flow doctor``.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata

from flow_core.authoring.specs import (
    Available,
    DeviceSpec,
    KernelSpec,
    OpSpec,
    PassSpec,
    Unavailable,
)
from flow_core.base.config import Settings
from flow_core.base.errors import install_command

FLOW_PLUGIN_API = "1.0"

CUPY = {"cupy-cuda12x": 12, "cupy-cuda13x": 13}
"""The CUDA major version that each of CuPy's wheels is built for."""

WHEELS = (
    *CUPY, "cuda-bindings", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc", "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu13",
)  # fmt: skip
"""The wheels that work with one major version of CUDA only."""

ALIGNMENT = 256
"""The alignment of ``cudaMalloc`` in bytes, which cuBLASLt also requires for workspaces."""

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
EMULATE = "ONEFLOW_EMULATE_GPUS=N runs the program on the CPU"
_MAJOR_AND_MINOR = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, and _MINOR
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


@dataclass(frozen=True, slots=True)
class Facts:
    """The CUDA installation of this machine."""

    problem: str = ""  # why NVIDIA's driver does not work; empty if it does
    # Newest CUDA version that the driver supports, as (major, minor).
    version: tuple[int, int] = (0, 0)
    devices: int = 0
    # (distribution, version) of the installed CuPy; None if CuPy is not installed.
    cupy: tuple[str, str] | None = None
    capabilities: tuple[int, ...] = ()  # compute capability of each device, times 10
    # The installed packages of `WHEELS` with their versions, by CUDA major version.
    wheels: Mapping[int, Sequence[str]] = field(default_factory=dict)


def facts() -> Facts:
    """Query the machine; this initializes NVIDIA's driver library."""
    problem, version, devices = _query_driver()
    capabilities = tuple(_capabilities(devices))
    return Facts(problem, version, devices, _cupy(), capabilities, _wheels())


def _query_driver() -> tuple[str, tuple[int, int], int]:
    """Return (problem, CUDA version, number of devices) from NVIDIA's driver library."""
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError:
        return f"NVIDIA's driver is not installed: {LIBRARY} not found", (0, 0), 0
    number = ctypes.c_int()
    code = cuda.cuDriverGetVersion(ctypes.byref(number))
    version = (number.value // 1000, number.value % 1000 // 10)
    code = code or cuda.cuInit(0)
    if code == _NO_DEVICE:
        return "", version, 0
    code = code or cuda.cuDeviceGetCount(ctypes.byref(number))
    if code:
        return f"NVIDIA's driver failed to initialize: CUDA error {code}", version, 0
    return "", version, number.value


def _capabilities(devices: int) -> Iterator[int]:
    """Yield the compute capability of each device, times 10."""
    cuda, number = ctypes.CDLL(LIBRARY) if devices else None, ctypes.c_int()
    for index in range(devices):
        parts = []
        for attribute in _MAJOR_AND_MINOR:
            if cuda is not None and not cuda.cuDeviceGetAttribute(
                ctypes.byref(number), attribute, index
            ):
                parts.append(number.value)
        if len(parts) == 2:
            yield 10 * parts[0] + parts[1]


def _cupy() -> tuple[str, str] | None:
    for name in (*CUPY, "cupy"):
        try:
            return name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _wheels() -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for name in WHEELS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            version = metadata.version(name)
            suffix = name.rpartition("-cu")[2]
            major = CUPY.get(name) or int(suffix if suffix.isdigit() else version.split(".")[0])
            found.setdefault(major, []).append(f"{name} {version}")
    return found


def mixture(wheels: Mapping[int, Sequence[str]]) -> str:
    """Return which packages are of different major versions of CUDA; empty if all are of one.

    >>> mixture({12: ["cupy-cuda12x 14.2.0"], 13: ["cuda-bindings 13.5.0"]})
    'packages of CUDA 12 (cupy-cuda12x 14.2.0) and of CUDA 13 (cuda-bindings 13.5.0)'
    """
    parts = (f"of CUDA {major} ({', '.join(wheels[major])})" for major in sorted(wheels))
    return f"packages {' and '.join(parts)}" if len(wheels) > 1 else ""


def remedy(wheels: Mapping[int, Sequence[str]], wanted: int) -> str:
    """Return the commands that leave packages of one major version of CUDA."""
    kept = wanted if wanted in wheels else max(wheels)
    others = [row.split()[0] for major in wheels if major != kept for row in wheels[major]]
    extra = install_command(f"flow-cuda[cu{kept}]")
    return f"uv pip uninstall {' '.join(others)}, then {extra}"


def judge(found: Facts) -> Available | Unavailable:
    """Decide, without loading libraries, whether programs can use CUDA devices.

    The first obstacle is the reason.

    >>> print(judge(Facts(version=(12, 8), devices=2)).hint)
    uv pip install '...packages/flow-cuda[cu12]'...
    """
    extra = install_command(f"flow-cuda[cu{13 if found.version[0] >= 13 else 12}]")
    if found.problem:
        return Unavailable(found.problem, EMULATE)
    if not found.devices:
        return Unavailable("NVIDIA's driver found 0 CUDA devices", EMULATE)
    if found.cupy is None:
        return Unavailable("CuPy is not installed", extra)
    name, version = found.cupy
    if CUPY.get(name, 0) > found.version[0]:
        return Unavailable(f"{name} {version} is too new for a driver of {_cuda(found)}", extra)
    if mixed := mixture(found.wheels):
        return Unavailable(mixed, remedy(found.wheels, min(13, found.version[0])))
    return Available(found.devices, f"{_cuda(found)}, {name} {version}")


def _cuda(found: Facts) -> str:
    return f"CUDA {found.version[0]}.{found.version[1]}"


def probe() -> Available | Unavailable:
    """Probe whether programs can use CUDA devices, and load the libraries that they need."""
    found = facts()
    verdict = judge(found)
    if isinstance(verdict, Unavailable):
        return verdict
    libraries = importlib.import_module("flow_cuda.libraries")
    return libraries.check(verdict, found.capabilities)  # type: ignore[no-any-return]


def flow_register_devices(config: Settings) -> Iterable[DeviceSpec]:
    """Return the device type "gpu"; nothing while GPUs are emulated."""
    if config.emulate_gpus:
        return ()
    driver = "flow_cuda.driver.cupy_hardware:CudaDriver"
    return (
        DeviceSpec(
            "gpu",
            "flow_cuda.plugin:probe",
            driver,
            records_launches=True,
            alignment=ALIGNMENT,
            host_fallback="warn",
        ),
    )


def flow_register_kernels(config: Settings) -> Iterable[KernelSpec]:
    """Return the kernels of the device type "gpu"; nothing while GPUs are emulated."""
    if config.emulate_gpus:
        return ()
    return importlib.import_module("flow_cuda.families").kernels()  # type: ignore[no-any-return]


def flow_register_ops(config: Settings) -> Iterable[OpSpec]:
    """Return the ops that the passes create."""
    if config.emulate_gpus:
        return ()
    return importlib.import_module("flow_cuda.ops").OPS  # type: ignore[no-any-return]


def flow_register_passes(config: Settings) -> Iterable[PassSpec]:
    """Return the passes: fusion for the installed libraries, layouts, and update scheduling."""
    if config.emulate_gpus:
        return ()
    found = importlib.util.find_spec
    return tuple(spec for library, spec in PASSES if not library or found(library) is not None)


def _pass(
    name: str,
    load: str,
    before: tuple[str, ...] = ("fuse_elementwise",),
    after: tuple[str, ...] = (),
) -> PassSpec:
    return PassSpec(name, "physical", f"flow_cuda.passes.{load}", before, after)


PLANNED = ("cuda_layout", "cudnn_convolutions")
PASSES = (
    ("cupy", _pass("cuda_products", "products:configured")),
    # layouts are chosen before cuDNN's plans, and before ops that hide convolutions are fused
    ("cudnn", _pass("cuda_layout", "layout:configured", ("cudnn_convolutions", "cudnn_norms",
                                                         "cuda_products", "fuse_elementwise"))),
    ("cudnn", _pass("cudnn_convolutions", "convolutions:configured")),
    ("cudnn", _pass("cudnn_norms", "norms:configured")),
    ("cudnn", _pass("cudnn_attention", "attention:configured")),
    # norms that cannot be folded into weights and biases become elementwise ops
    ("", _pass("cuda_fold_norms", "fold_norms:configured", (*PLANNED, "cuda_plain_norms"))),
    ("", _pass("cuda_plain_norms", "plain_norms:PlainNorms", after=(*PLANNED, "cudnn_norms"))),
    # behind all passes that rename values
    ("", _pass("cuda_late_updates", "late_updates:LateUpdates", (),
               ("fuse_elementwise", "bucket_all_reduces"))),
)  # fmt: skip
"""The library that a pass needs, empty for none, and the pass."""


def flow_describe_machine() -> dict[str, str]:
    """Describe CUDA and the devices, on which plans of cuDNN depend, and the settings of passes."""
    if Settings.from_env().emulate_gpus:
        return {}
    from flow_cuda.device.config import settings

    found = facts()
    return {
        "CUDA": found.problem or _cuda(found),
        "devices": ", ".join(_models(found.devices)),
        "CuPy": " ".join(found.cupy) if found.cupy else "not installed",
        "cuDNN": _cudnn_version(),
        "settings": str(settings()),
    }


def _models(devices: int) -> Iterator[str]:
    cuda, text = ctypes.CDLL(LIBRARY) if devices else None, ctypes.create_string_buffer(256)
    for index in range(devices):
        if cuda is not None and cuda.cuDeviceGetName(text, len(text), index) == 0:
            yield text.value.decode(errors="replace")


def flow_doctor() -> list[str]:
    """Return lines that describe the CUDA installation."""
    found = facts()
    cupy = " ".join(found.cupy) if found.cupy else "not installed"
    devices = [f"{c // 10}.{c % 10}" for c in found.capabilities]
    major = CUPY.get(found.cupy[0] if found.cupy else "", found.version[0] or 13)
    mixed = mixture(found.wheels)
    wrong = (f"CUDA packages: {mixed}; {remedy(found.wheels, major)}",) if mixed else ()
    return [
        f"NVIDIA driver: {found.problem or f'up to {_cuda(found)}'}",
        f"CUDA devices: {', '.join((str(found.devices), *devices))}",
        f"CuPy: {cupy}",
        *wrong,
        f"packages of cuDNN: {_cudnn_version()}",
        *importlib.import_module("flow_cuda.libraries").lines(major),
    ]


CUDNN = ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
"""The wheels of cuDNN; cuDNN may be installed system-wide instead."""


def _cudnn_version() -> str:
    try:
        found = f"cudnn-frontend {metadata.version('nvidia-cudnn-frontend')}"
    except metadata.PackageNotFoundError:
        return "nvidia-cudnn-frontend is not installed: convolutions use the kernels of flow-cuda"
    for name in CUDNN:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return f"{found}, {name} {metadata.version(name)}"
    return f"{found}, with the system's cuDNN if installed; otherwise the kernels of flow-cuda"
