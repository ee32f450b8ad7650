"""Kernels compiled by NVRTC through cuda-bindings, kept by content, toolkit, architecture."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from flow_core.base.disk_cache import DiskCache, user_folder
from flow_core.base.errors import FlowError
from flow_cuda.codegen.program import Kernel, unit

OPTIONS = ("--std=c++17", "--disable-warnings")


class NvrtcError(FlowError):
    """NVRTC is not there, or refused CUDA C++ of ours."""


@functools.cache
def library() -> Any:
    """The bindings of NVRTC.

    Raises:
        NvrtcError: the bindings or the library behind them are not installed.
    """
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise NvrtcError(
            "looking for NVRTC",
            found=f"{type(error).__name__}: {error}",
            hint="uv add 'flow-cuda[cu12]' (or [cu13])",
        ) from error
    return nvrtc


def version() -> tuple[int, int]:
    """Major and minor number of the toolkit."""
    major, minor = _checked("asking for the version", library().nvrtcVersion())
    return major, minor


def architectures() -> tuple[int, ...]:
    """What the toolkit compiles for, such as 90 for sm_90."""
    return tuple(_checked("asking for architectures", library().nvrtcGetSupportedArchs())[0])


def compiled(kernels: Sequence[Kernel], architecture: str, cache: DiskCache | None = None) -> bytes:
    """The machine code of some kernels, as one cubin.

    Args:
        kernels: they are named in it as they are called.
        architecture: such as "sm_90".
        cache: where it is kept; default: the user's cache.

    Raises:
        NvrtcError: it does not compile; with NVRTC's own words.
    """
    text = unit(kernels)
    toolkit = ".".join(map(str, version()))
    content = (text, toolkit, architecture, *OPTIONS)
    kept = cache or DiskCache(user_folder("flow-cuda") / f"cuda-{toolkit}-{architecture}", ".cubin")
    return kept.get(content, lambda: compile_text(text, architecture))


def compile_text(text: str, architecture: str) -> bytes:
    """The machine code of some CUDA C++, or the text for virtual ones such as "compute_80"."""
    nvrtc = library()
    doing = f"compiling CUDA C++ for {architecture}"
    (program,) = _checked(doing, nvrtc.nvrtcCreateProgram(text.encode(), b"flow.cu", 0, [], []))
    options = [o.encode() for o in (f"--gpu-architecture={architecture}", *OPTIONS)]
    (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise NvrtcError(doing, found=f"{code.name}\n{_log(nvrtc, program)[:4000]}")
    kind = "PTX" if architecture.startswith("compute") else "CUBIN"
    (size,) = _checked(doing, getattr(nvrtc, f"nvrtcGet{kind}Size")(program))
    made = bytearray(size)
    _checked(doing, getattr(nvrtc, f"nvrtcGet{kind}")(program, made))
    nvrtc.nvrtcDestroyProgram(program)
    return bytes(made)


def _log(nvrtc: Any, program: Any) -> str:
    (size,) = _checked("asking for the log", nvrtc.nvrtcGetProgramLogSize(program))
    text = bytearray(size)
    _checked("asking for the log", nvrtc.nvrtcGetProgramLog(program, text))
    return text.decode(errors="replace").strip("\0")


def _checked(doing: str, answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """The results behind a status.

    Raises:
        NvrtcError: the status is an error.
    """
    status, *results = answer
    if int(status):
        raise NvrtcError(doing, found=status.name)
    return tuple(results)
