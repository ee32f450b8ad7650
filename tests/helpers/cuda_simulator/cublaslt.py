"""A simulation of cuBLASLt with NumPy, written from cuBLASLt's documentation.

Matrices are column-major.  The simulation rejects the arguments that cuBLASLt rejects.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from typing import Any

import numpy as np
from cuda_references.products import gelu

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype
from flow_cuda.driver.cublaslt import (
    ALIGNED,
    ALIGNMENTS,
    BATCH_COUNT,
    BATCH_STEP,
    CODES,
    EPILOGUE,
    MAX_WORKSPACE,
    RESULT,
    TRANSA,
    TRANSB,
    TYPES,
    alignment,
)
from flow_cuda.driver.cublaslt import BIAS as SUM

NAMES = {code: name for name, code in TYPES.items()}
EPILOGUES = {code: name for name, code in CODES.items()}
_SIZED: dict[int, Any] = {TRANSA: np.int32, TRANSB: np.int32, EPILOGUE: np.uint32, SUM: np.int64}
_LAYOUT: dict[int, Any] = {BATCH_COUNT: np.int32, BATCH_STEP: np.int64}
_PREFERENCE: dict[int, Any] = {MAX_WORKSPACE: np.uint64, **dict.fromkeys(ALIGNMENTS, np.uint32)}


class RefusedError(Exception):
    """The error for an error status of cuBLASLt."""


class SimulatedLt:
    """The `flow_cuda.driver.cublaslt_library.CublasLt` on the host.

    Args:
        refuses: epilogues for which the simulation has no algorithm.

    Attributes:
        calls: number of products computed so far.
        summed_in: the compute types of these products, as cuBLAS codes; they do not affect
            rounding.
    """

    def __init__(self, refuses: Collection[str] = ()) -> None:
        self._refuses = refuses
        self._objects: list[dict[Any, Any]] = []
        self.calls = 0
        self.summed_in: set[int] = set()

    def _new(self, **content: Any) -> int:
        self._objects.append(content)
        return len(self._objects)

    def _set(self, sizes: dict[int, Any], handle: int, attr: int, buf: int, size: int) -> None:
        kind = np.dtype(sizes[attr])
        if size != kind.itemsize:
            raise RefusedError(f"INVALID_VALUE: {size} bytes for attribute {attr}")
        self._objects[handle - 1][attr] = int(np.frombuffer(ctypes.string_at(buf, size), kind)[0])

    def create(self) -> int:
        """Create a library handle."""
        return self._new(kind="library")

    def matmul_desc_create(self, compute_type: int, scale_type: int) -> int:
        """Create a matmul descriptor."""
        return self._new(kind="product", compute=compute_type, scale=scale_type)

    def matmul_desc_set_attribute(self, desc: int, attr: int, buf: int, size: int) -> None:
        """Set an attribute of a matmul descriptor."""
        self._set(_SIZED, desc, attr, buf, size)

    def matrix_layout_create(self, type: int, rows: int, cols: int, ld: int) -> int:
        """Create a matrix layout."""
        if ld < rows:
            raise RefusedError("INVALID_VALUE: the leading dimension is less than the rows")
        return self._new(kind="layout", dtype=NAMES[type], shape=(rows, cols), ld=ld)

    def matrix_layout_set_attribute(self, layout: int, attr: int, buf: int, size: int) -> None:
        """Set an attribute of a matrix layout."""
        self._set(_LAYOUT, layout, attr, buf, size)

    def matmul_preference_create(self) -> int:
        """Create a preference: the limits for algorithms."""
        return self._new(kind="preference")

    def matmul_preference_set_attribute(self, pref: int, attr: int, buf: int, size: int) -> None:
        """Set an attribute of a preference."""
        self._set(_PREFERENCE, pref, attr, buf, size)

    def matmul_algo_get_heuristic(self, *given: int) -> None:
        """Write one algorithm to the results, or raise an error if there is none."""
        _, desc, _, _, _, d, preference, _, results, found = given
        product, layout = self._objects[desc - 1], self._objects[d - 1]
        name = EPILOGUES[product[EPILOGUE]]
        if name in self._refuses or (
            name and (layout["dtype"] == "float64" or layout.get(BATCH_COUNT, 1) > 1)
        ):
            raise RefusedError("NOT_SUPPORTED")
        if name and SUM not in product:
            raise RefusedError(f"INVALID_VALUE: no address for attribute {SUM} of {name}")
        one = np.zeros(1, RESULT)
        limits = self._objects[preference - 1]
        places = [limits.get(attr, ALIGNED) for attr in ALIGNMENTS]
        places.append(alignment(product.get(SUM, 0)))
        one["algorithm"] = [desc, *places, limits[MAX_WORKSPACE], 0]
        ctypes.memmove(results, one.ctypes.data, one.nbytes)
        ctypes.memmove(found, np.array([1], np.int32).ctypes.data, 4)

    def matmul(self, *given: int) -> None:
        """Compute the product immediately; 16-bit types are accumulated in float32."""
        _, desc, alpha, a, a_layout, b, b_layout, _, c, _, d, d_layout, *how = given
        self.calls += 1
        product = self._objects[desc - 1]
        self._check_algorithm(how, (a, b, c, d, product.get(SUM, 0)))
        self.summed_in.add(product["compute"])
        name = EPILOGUES[product[EPILOGUE]]
        x, y, out = (
            self._matrices(address, layout)
            for address, layout in ((a, a_layout), (b, b_layout), (d, d_layout))
        )
        wide = as_dtype(out.dtype).accumulate.numpy
        factor = np.frombuffer(ctypes.string_at(alpha, wide.itemsize), wide)[0]
        left, right = x.astype(wide), y.astype(wide)
        left = left.swapaxes(1, 2) if product[TRANSA] else left
        right = right.swapaxes(1, 2) if product[TRANSB] else right
        result = np.matmul(left, right) * factor
        if name:
            result[0] = _apply_epilogue(name, product, result[0], left[0], right[0], out.dtype)
        out[...] = result

    def _check_algorithm(self, how: Any, addresses: tuple[int, ...]) -> None:
        """Check the alignments and workspace size for which the heuristic chose the algorithm."""
        algorithm, workspace, nbytes, _ = how
        kept = np.frombuffer(ctypes.string_at(algorithm, RESULT.itemsize), RESULT)[0]["algorithm"]
        for address, wanted in zip(addresses, kept[1:6].tolist(), strict=True):
            if address % wanted:
                raise RefusedError(f"INVALID_VALUE: {address:#x} is not aligned to {wanted} bytes")
        if workspace % ALIGNED or nbytes > kept[6]:
            raise RefusedError(f"INVALID_VALUE: a workspace of {nbytes} bytes at {workspace:#x}")

    def _matrices(self, address: int, handle: int) -> Any:
        """Return a view of all matrices of a batch, each in column-major order."""
        layout = self._objects[handle - 1]
        (rows, columns), lead = layout["shape"], layout["ld"]
        count, step = layout.get(BATCH_COUNT, 1), layout.get(BATCH_STEP, 0)
        flat = array_at(address, (count - 1) * step + (columns - 1) * lead + rows, layout["dtype"])
        size = flat.dtype.itemsize
        strides = (step * size, size, lead * size)
        return np.lib.stride_tricks.as_strided(flat, (count, rows, columns), strides)


def array_at(address: int, count: int, dtype: str) -> Array:
    """Return the elements at an address as an array."""
    kind = as_dtype(dtype).numpy
    raw = (ctypes.c_char * (count * kind.itemsize)).from_address(address)
    return np.frombuffer(memoryview(raw), np.uint8).view(kind)


def _apply_epilogue(name: str, product: Any, value: Any, left: Any, right: Any, kind: Any) -> Any:
    """Apply an epilogue; ``value`` is column-major: the transpose of flow-cuda's matrix."""
    dtype = as_dtype(kind).name
    if name in ("sum_a", "sum_b"):
        total = right.sum(0) if name == "sum_a" else left.sum(1)
        array_at(product[SUM], len(total), dtype)[:] = total
        return value
    value = value + array_at(product[SUM], len(value), dtype).astype(value.dtype)[:, None]
    if name.startswith("relu"):
        return np.maximum(value, 0)
    return gelu(value) if name.startswith("gelu") else value
