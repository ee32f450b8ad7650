"""NVRTC compiles every function for every architecture and every kernel for one."""

import pytest
from cuda_cases import CudaKit

from flow_core.base.disk_cache import DiskCache
from flow_cuda.codegen import nvrtc
from flow_cuda.codegen.program import Kernel, make_kernel, translation_unit
from flow_cuda.libraries import LEAST

VIRTUAL = "compute_80"
PIECES = 8


def _toolkit() -> str:
    """Return why NVRTC is unavailable, or an empty string."""
    try:
        nvrtc.library()
    except nvrtc.NvrtcError as error:
        return str(error).replace("\n", " ")
    return ""


MISSING = _toolkit()
needs_nvrtc = pytest.mark.skipif(bool(MISSING), reason=MISSING)
ARCHITECTURES = () if MISSING else [a for a in nvrtc.architectures() if a >= LEAST]


class Kit(CudaKit):
    preloaded = False


def all_kernels() -> list[Kernel]:
    """Return the kernels required by all samples in all element types."""
    return Kit.once("kernels", lambda: Kit().all_kernels())


def one_of_each() -> list[Kernel]:
    """Return one kernel per function and op: float32 if possible, with the fewest arguments."""
    found: dict[str, list[Kernel]] = {}
    for kernel in all_kernels():
        found.setdefault(kernel.name.rpartition("_")[0], []).append(kernel)
    return [min(row, key=_plainness) for row in found.values()]


def _plainness(kernel: Kernel) -> tuple[bool, int]:
    return not any("float *" in kind for kind, _ in kernel.parameters), len(kernel.parameters)


@needs_nvrtc
def test_toolkit_lists_architectures() -> None:
    assert nvrtc.version()[0] in (12, 13)
    assert 90 in ARCHITECTURES


@needs_nvrtc
@pytest.mark.representative(r"\[(75|90)\]", "an old and a recent architecture of both toolkits")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_function_compiles(architecture: int) -> None:
    kernels = one_of_each()
    assert len(kernels) > 150
    assert nvrtc.compile_text(translation_unit(kernels), f"sm_{architecture}")[:4] == b"\x7fELF"


@needs_nvrtc
@pytest.mark.representative(r"\[[0-3]\]", "half of the kernels, in any order")
@pytest.mark.parametrize("piece", range(PIECES))
def test_every_kernel_compiles(piece: int) -> None:
    """To the virtual architecture, which checks everything that depends on the element type."""
    kernels = all_kernels()[piece::PIECES]
    assert b".entry" in nvrtc.compile_text(translation_unit(kernels), VIRTUAL)


@needs_nvrtc
def test_products_and_sums_are_not_contracted() -> None:
    """A fused group then has the bits of its single ops."""
    body = "EACH(i, 8) x[i] = x[i] * x[i] + x[i];"
    text = translation_unit([make_kernel("both", (("float *", "x"),), body)])
    code = nvrtc.compile_text(text, VIRTUAL)
    assert b"mul.rn.f32" in code
    assert b"fma" not in code


@needs_nvrtc
def test_code_is_cached_by_content(tmp_path) -> None:
    cache = DiskCache(tmp_path / "code", ".cubin")
    kernel = make_kernel("nothing", (("float *", "x"),), "x[0] = 1;")
    first = nvrtc.compile_kernels([kernel], "sm_90", cache)
    (file,) = cache.folder.iterdir()
    made = file.stat().st_ino
    assert nvrtc.compile_kernels([kernel], "sm_90", cache) == first
    assert file.stat().st_ino == made
    other = make_kernel("nothing", (("float *", "x"),), "x[0] = 2;")
    assert nvrtc.compile_kernels([other], "sm_90", cache) != first
    nvrtc.compile_kernels([kernel], "sm_80", cache)
    assert len(list(cache.folder.iterdir())) == 3


@needs_nvrtc
def test_error_contains_the_nvrtc_log(tmp_path) -> None:
    broken = make_kernel("broken", (("float *", "x"),), "no_such_name = 1;")
    with pytest.raises(nvrtc.NvrtcError, match="no_such_name"):
        nvrtc.compile_kernels([broken], "sm_90", DiskCache(tmp_path / "code", ".cubin"))
    assert not (tmp_path / "code").exists(), "failed code is not cached"


@pytest.mark.skipif(not MISSING, reason="NVRTC is here")
def test_missing_nvrtc_error_names_the_package_to_install() -> None:
    with pytest.raises(nvrtc.NvrtcError, match="flow-cuda"):
        nvrtc.library()
