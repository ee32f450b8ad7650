"""Compile kernels with NVRTC through cuda-bindings.

Cubins are cached on disk, keyed by content, toolkit version and architecture.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from flow_core.base.disk_cache import DiskCache, user_folder
from flow_core.base.errors import FlowError, install_command
from flow_cuda.codegen.program import Kernel, translation_unit

OPTIONS = (
    "--std=c++17", "--disable-warnings", "--fmad=false", "--device-as-default-execution-space",
)  # fmt: skip
"""Without contraction of ``a * b + c``, fused groups round as the single ops do.  CUDA 12.2 takes
lambdas with ``auto`` parameters for functions of the host, which the last option changes."""


class NvrtcError(FlowError):
    """NVRTC is not installed, or rejected generated CUDA C++."""


@functools.cache
def library() -> Any:
    """Return the NVRTC bindings.

    Raises `NvrtcError` if the bindings or the library are not installed.
    """
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise NvrtcError(
            "loading NVRTC",
            found=f"{type(error).__name__}: {error}",
            hint=f"{install_command('flow-cuda[cu12]')} (or [cu13])",
        ) from error
    return nvrtc


def version() -> tuple[int, int]:
    """Return the major and minor version of NVRTC."""
    major, minor = _check("querying the NVRTC version", library().nvrtcVersion())
    return major, minor


def architectures() -> tuple[int, ...]:
    """Return the supported compute capabilities, such as 90 for sm_90."""
    return tuple(_check("querying architectures", library().nvrtcGetSupportedArchs())[0])


def target(architecture: str) -> str:
    """Return what to compile for a device: its architecture, or PTX of the next older one.

    The driver compiles PTX for a device that is newer than NVRTC.

    Raises:
        NvrtcError: the device is older than all architectures of NVRTC.
    """
    number, known = int(architecture.removeprefix("sm_")), architectures()
    if number in known:
        return architecture
    older = [a for a in known if a < number]
    if not older:
        text, least = ".".join(map(str, version())), min(known)
        raise NvrtcError(
            f"compiling for {architecture}",
            found=f"NVRTC {text}, for sm_{least} and newer",
            hint=f"{install_command('flow-cuda[cu12]')}: CUDA 12 supports sm_70 and newer",
        )
    return f"compute_{max(older)}"


def compile_kernels(
    kernels: Sequence[Kernel], architecture: str, cache: DiskCache | None = None
) -> bytes:
    """Compile kernels to one cubin, or to PTX for a device that is newer than NVRTC.

    Args:
        kernels: the kernels; their names are the symbol names.
        cache: cache of cubins; default: the user's cache directory.

    Raises:
        NvrtcError: compilation failed; the error contains NVRTC's log.
    """
    text, architecture = translation_unit(kernels), target(architecture)
    toolkit = ".".join(map(str, version()))
    content = (text, toolkit, architecture, *OPTIONS)
    kept = cache or DiskCache(user_folder("flow-cuda") / f"cuda-{toolkit}-{architecture}", ".cubin")
    return kept.get(content, lambda: compile_text(text, architecture))


def compile_text(text: str, architecture: str) -> bytes:
    """Compile CUDA C++ to a cubin, or to PTX for virtual architectures such as "compute_80"."""
    nvrtc = library()
    doing = f"compiling CUDA C++ for {architecture}"
    (program,) = _check(doing, nvrtc.nvrtcCreateProgram(text.encode(), b"flow.cu", 0, [], []))
    options = [o.encode() for o in (f"--gpu-architecture={architecture}", *OPTIONS)]
    (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise NvrtcError(doing, found=f"{code.name}\n{_log(nvrtc, program)[:4000]}")
    kind = "PTX" if architecture.startswith("compute") else "CUBIN"
    (size,) = _check(doing, getattr(nvrtc, f"nvrtcGet{kind}Size")(program))
    made = bytearray(size)
    _check(doing, getattr(nvrtc, f"nvrtcGet{kind}")(program, made))
    nvrtc.nvrtcDestroyProgram(program)
    return bytes(made)


def _log(nvrtc: Any, program: Any) -> str:
    (size,) = _check("reading the log", nvrtc.nvrtcGetProgramLogSize(program))
    text = bytearray(size)
    _check("reading the log", nvrtc.nvrtcGetProgramLog(program, text))
    return text.decode(errors="replace").strip("\0")


def _check(doing: str, answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the results that follow the status code.

    Raises `NvrtcError` if the status is an error.
    """
    status, *results = answer
    if int(status):
        raise NvrtcError(doing, found=status.name)
    return tuple(results)
