"""cuBLASLt through ctypes."""

from __future__ import annotations

import ctypes
import importlib
import sys
from contextlib import suppress
from ctypes import byref, c_int, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any

from flow_core.base.errors import FlowError

STATUS = {
    1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH",
    11: "MAPPING_ERROR", 13: "EXECUTION_FAILED", 14: "INTERNAL_ERROR", 15: "NOT_SUPPORTED",
    16: "LICENSE_ERROR",
}  # fmt: skip
"""Names of ``cublasStatus_t``."""

_ATTRIBUTE = (c_void_p, c_int, c_void_p, c_size_t)
_MATRICES = (c_void_p,) * 4
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "Create": (c_void_p,),
    "MatmulDescCreate": (c_void_p, c_int, c_int),
    "MatmulDescSetAttribute": _ATTRIBUTE,
    "MatrixLayoutCreate": (c_void_p, c_int, c_uint64, c_uint64, c_int64),
    "MatrixLayoutSetAttribute": _ATTRIBUTE,
    "MatmulPreferenceCreate": (c_void_p,),
    "MatmulPreferenceSetAttribute": _ATTRIBUTE,
    "MatmulAlgoGetHeuristic": (
        c_void_p, c_void_p, *_MATRICES, c_void_p, c_int, c_void_p, c_void_p,
    ),
    "Matmul": (
        c_void_p, c_void_p, c_void_p, *_MATRICES, c_void_p, *_MATRICES, c_void_p, c_void_p,
        c_size_t, c_void_p,
    ),
}  # fmt: skip
"""The parameter types of each function, without the prefix ``cublasLt``."""


class CublasLtError(FlowError):
    """The error for a status of cuBLASLt other than success."""


def _library(major: int) -> ctypes.CDLL:
    """Load the library by its name or, if no search path has it, from NVIDIA's wheel."""
    windows = sys.platform == "win32"
    name = f"cublasLt64_{major}.dll" if windows else f"libcublasLt.so.{major}"
    try:
        return ctypes.CDLL(name)
    except OSError:
        with suppress(ImportError, RuntimeError):  # RuntimeError: no wheel has it, either
            pathfinder = importlib.import_module("cuda.pathfinder")
            pathfinder.load_nvidia_dynamic_lib("cublasLt")
        return ctypes.CDLL(name)  # which is found without a search path once it is loaded


class CublasLt:
    """The cuBLASLt of a CUDA major version.

    Args:
        major: the CUDA major version, which is in the name of the library file.

    Raises:
        OSError: the library is not installed.
    """

    def __init__(self, major: int) -> None:
        library = _library(major)
        self._functions = {key: getattr(library, f"cublasLt{key}") for key in SIGNATURES}
        for key, types in SIGNATURES.items():
            self._functions[key].argtypes = types

    def _call(self, name: str, *arguments: Any) -> None:
        if status := self._functions[name](*arguments):
            found = STATUS.get(status, f"status {status}")
            raise CublasLtError(f"calling cublasLt{name}", found=found)

    def _create(self, name: str, *arguments: Any) -> int:
        made = c_void_p()
        self._call(name, byref(made), *arguments)
        return made.value or 0

    def create(self) -> int:
        return self._create("Create")

    def matmul_desc_create(self, compute_type: int, scale_type: int) -> int:
        return self._create("MatmulDescCreate", compute_type, scale_type)

    def matmul_desc_set_attribute(self, desc: int, attr: int, buf: int, size: int) -> None:
        self._call("MatmulDescSetAttribute", desc, attr, buf, size)

    def matrix_layout_create(self, type: int, rows: int, cols: int, ld: int) -> int:
        return self._create("MatrixLayoutCreate", type, rows, cols, ld)

    def matrix_layout_set_attribute(self, layout: int, attr: int, buf: int, size: int) -> None:
        self._call("MatrixLayoutSetAttribute", layout, attr, buf, size)

    def matmul_preference_create(self) -> int:
        """Create a preference: the limits for algorithms."""
        return self._create("MatmulPreferenceCreate")

    def matmul_preference_set_attribute(self, pref: int, attr: int, buf: int, size: int) -> None:
        self._call("MatmulPreferenceSetAttribute", pref, attr, buf, size)

    def matmul_algo_get_heuristic(self, *given: int) -> None:
        """Write the algorithms that the heuristic proposes, best first."""
        self._call("MatmulAlgoGetHeuristic", *given)

    def matmul(self, *given: int) -> None:
        """Queue a matrix product."""
        self._call("Matmul", *given)
