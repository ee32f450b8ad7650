"""cuBLASLt as its documentation has it, with numpy: what simulators call in its place.

Matrices have columns one after the other.  What the real one refuses is refused here, too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from typing import Any

import numpy as np

from flow_core.base.dtypes import as_dtype
from flow_cuda.driver.cublaslt import (
    BATCH_COUNT,
    BATCH_STEP,
    CODES,
    EPILOGUE,
    RESULT,
    SAVED,
    SAVED_LEAD,
    TRANSA,
    TRANSB,
    TYPES,
)
from flow_cuda.driver.cublaslt import BIAS as SUM
from flow_cuda.ops import gelu, gelu_slope

NAMES = {code: name for name, code in TYPES.items()}
EPILOGUES = {code: name for name, code in CODES.items()}
_SIZED: dict[int, Any] = {
    TRANSA: np.int32, TRANSB: np.int32, EPILOGUE: np.uint32, SUM: np.int64, SAVED: np.int64,
    SAVED_LEAD: np.int64,
}  # fmt: skip
_LAYOUT: dict[int, Any] = {BATCH_COUNT: np.int32, BATCH_STEP: np.int64}
_PREFERENCE: dict[int, Any] = {1: np.uint64}


class RefusedError(Exception):
    """What cuBLASLt answers with a status."""


class SimulatedLt:
    """`flow_cuda.driver.cublaslt.Library` on the host.

    Args:
        refuses: epilogues that it has no algorithm for.

    Attributes:
        calls: how many products it has made.
        summed_in: the compute types of these, cuBLASLt's numbers.  Numbers are not rounded for any.
    """

    def __init__(self, refuses: Collection[str] = ()) -> None:
        self._refuses = refuses
        self._made: list[dict[Any, Any]] = []
        self.calls = 0
        self.summed_in: set[int] = set()

    def _new(self, **content: Any) -> int:
        self._made.append(content)
        return len(self._made)

    def _set(self, sizes: dict[int, Any], handle: int, attr: int, buf: int, size: int) -> None:
        kind = np.dtype(sizes[attr])
        if size != kind.itemsize:
            raise RefusedError(f"INVALID_VALUE: attribute {attr} of {size} bytes")
        self._made[handle - 1][attr] = int(np.frombuffer(ctypes.string_at(buf, size), kind)[0])

    def create(self) -> int:
        """A handle."""
        return self._new(kind="library")

    def matmul_desc_create(self, compute_type: int, scale_type: int) -> int:
        """A product."""
        return self._new(kind="product", compute=compute_type, scale=scale_type)

    def matmul_desc_set_attribute(self, desc: int, attr: int, buf: int, size: int) -> None:
        """Sets one of its attributes."""
        self._set(_SIZED, desc, attr, buf, size)

    def matrix_layout_create(self, type: int, rows: int, cols: int, ld: int) -> int:
        """A matrix."""
        if ld < rows:
            raise RefusedError("INVALID_VALUE: a leading dimension below the rows")
        return self._new(kind="layout", dtype=NAMES[type], shape=(rows, cols), ld=ld)

    def matrix_layout_set_attribute(self, layout: int, attr: int, buf: int, size: int) -> None:
        """Sets one of its attributes."""
        self._set(_LAYOUT, layout, attr, buf, size)

    def matmul_preference_create(self) -> int:
        """What an algorithm may use."""
        return self._new(kind="preference")

    def matmul_preference_set_attribute(self, pref: int, attr: int, buf: int, size: int) -> None:
        """Sets one of its attributes."""
        self._set(_PREFERENCE, pref, attr, buf, size)

    def matmul_algo_get_heuristic(self, *given: int) -> None:
        """One algorithm, or a refusal."""
        _, desc, _, _, _, d, _, _, results, found = given
        product, layout = self._made[desc - 1], self._made[d - 1]
        name = EPILOGUES[product[EPILOGUE]]
        if name in self._refuses or (
            name and (layout["dtype"] == "float64" or layout.get(BATCH_COUNT, 1) > 1)
        ):
            raise RefusedError("NOT_SUPPORTED")
        lead = product.get(SAVED_LEAD, 0)
        if lead and (lead < layout["shape"][0] or lead % (128 if "relu" in name else 8)):
            raise RefusedError("INVALID_VALUE: the leading dimension of what is saved")
        one = np.zeros(1, RESULT)
        one["algorithm"] = desc
        ctypes.memmove(results, one.ctypes.data, one.nbytes)
        ctypes.memmove(found, np.array([1], np.int32).ctypes.data, 4)

    def matmul(self, *given: int) -> None:
        """The product, at once; half types are summed in float32."""
        _, desc, alpha, a, a_layout, b, b_layout, _, _, _, d, d_layout, *_ = given
        self.calls += 1
        product = self._made[desc - 1]
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
            result[0] = _finished(name, product, result[0], left[0], right[0], out.dtype)
        out[...] = result

    def _matrices(self, address: int, handle: int) -> Any:
        """A view of all matrices of a batch, columns one after the other."""
        layout = self._made[handle - 1]
        (rows, columns), lead = layout["shape"], layout["ld"]
        count, step = layout.get(BATCH_COUNT, 1), layout.get(BATCH_STEP, 0)
        flat = array_at(address, (count - 1) * step + (columns - 1) * lead + rows, layout["dtype"])
        size = flat.dtype.itemsize
        strides = (step * size, size, lead * size)
        return np.lib.stride_tricks.as_strided(flat, (count, rows, columns), strides)


def array_at(address: int, count: int, dtype: str) -> Any:
    """The elements at an address."""
    kind = as_dtype(dtype).numpy
    raw = (ctypes.c_char * (count * kind.itemsize)).from_address(address)
    return np.frombuffer(memoryview(raw), np.uint8).view(kind)


def _finished(name: str, product: Any, value: Any, left: Any, right: Any, kind: Any) -> Any:
    """An epilogue; ``value`` has a column per row of ours."""
    dtype, (rows, columns) = as_dtype(kind).name, value.shape
    if name in ("sum_a", "sum_b"):
        total = right.sum(0) if name == "sum_a" else left.sum(1)
        array_at(product[SUM], len(total), dtype)[:] = total
        return value
    if "grad" in name:
        value = value * _slope(name, product, (rows, columns), dtype)
        if name.endswith("sum"):
            array_at(product[SUM], rows, dtype)[:] = value.sum(1)
        return value
    value = value + array_at(product[SUM], rows, dtype).astype(value.dtype)[:, None]
    if name.endswith("saved"):
        _save(name, product, value, dtype)
    if name.startswith("relu"):
        return np.maximum(value, 0)
    return gelu(value) if name.startswith("gelu") else value


def _save(name: str, product: Any, value: Any, dtype: str) -> None:
    rows, columns = value.shape
    lead = product[SAVED_LEAD]
    if name.startswith("gelu"):
        array_at(product[SAVED], columns * lead, dtype).reshape(columns, lead)[:, :rows] = value.T
        return
    bits = np.zeros((columns, lead), bool)
    bits[:, :rows] = value.T > 0
    packed = np.packbits(bits, axis=1, bitorder="little").reshape(-1)
    array_at(product[SAVED], packed.size, "uint8")[:] = packed


def _slope(name: str, product: Any, shape: tuple[int, int], dtype: str) -> Any:
    rows, columns = shape
    lead = product[SAVED_LEAD]
    if name.startswith("gelu"):
        saved = array_at(product[SAVED], columns * lead, dtype).reshape(columns, lead)[:, :rows]
        return gelu_slope(saved.T.astype(np.float64))
    packed = array_at(product[SAVED], columns * lead // 8, "uint8").reshape(columns, -1)
    return np.unpackbits(packed, axis=1, bitorder="little")[:, :rows].T
