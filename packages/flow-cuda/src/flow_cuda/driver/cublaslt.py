"""Matrix products with cuBLASLt, planned once each with the heuristic's best result.

cuBLASLt expects column-major matrices, so it computes the transposed product: its operand A is
``b`` of this package.

The heuristic proposes algorithms for the alignments that it is told: those of the matrices as
preferences, that of the bias by its address.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flow_cuda.device.hardware import Operands, Product

TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
IN_FLOAT32, IN_FLOAT64, IN_TF32 = 68, 70, 77
TRANSA, TRANSB, EPILOGUE, BIAS = 3, 4, 7, 8
BATCH_COUNT, BATCH_STEP = 5, 6
MAX_WORKSPACE = 1
ALIGNMENTS = (5, 6, 7, 8)
"""The preferences for the minimum alignment of cuBLASLt's matrices A, B, C and D."""
ALIGNED = 256
"""The alignment that cuBLASLt assumes for matrices, and requires of workspaces, in bytes."""

CODES = {"": 1, "bias": 4, "relu_bias": 6, "gelu_bias": 36, "sum_a": 512, "sum_b": 256}
"""cuBLASLt codes of `flow_cuda.device.hardware.EPILOGUES`; operand B of cuBLASLt is ``a`` here."""

RESULT = np.dtype(
    [
        ("algorithm", np.uint64, 8), ("workspace", np.uint64), ("state", np.int32),
        ("waves", np.float32), ("reserved", np.int32, 4),
    ]
)  # fmt: skip
"""The struct ``cublasLtMatmulHeuristicResult_t``."""


@dataclass(frozen=True, eq=False)
class Planned:
    """A planned product."""

    desc: int  # cuBLASLt descriptors; ``a`` and ``b`` describe cuBLASLt's operands A and B
    a: int
    b: int
    c: int
    result: Any  # the selected algorithm, as `RESULT`
    alpha: Any  # scale factors, in host memory
    beta: Any


class LtProducts:
    """A planner that plans each product once, and queues it.

    Args:
        library: a `flow_cuda.driver.cublaslt_library.CublasLt`, or a simulation of it.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._handle = library.create()
        self._plans: dict[tuple[Any, ...], Planned | None] = {}

    def plan(self, product: Product, operands: Operands) -> Planned | None:
        """Return the plan of a product; None if no algorithm computes it in one kernel.

        Products with the same workspace size and equally aligned operands share a plan.
        """
        o = operands
        places = tuple(alignment(address) for address in (o.b, o.a, o.c, o.bias))
        key = (product, o.workspace_bytes, *places)
        if key not in self._plans:
            self._plans[key] = self._create_plan(product, o, places)
        return self._plans[key]

    def queue(self, product: Product, operands: Operands, stream: int) -> None:
        """Queue a product that has a plan."""
        o, plan = operands, self.plan(product, operands)
        if plan is None:
            raise ValueError(f"no cuBLASLt algorithm for {product}")
        self._set_epilogue(plan.desc, o)
        self._library.matmul(
            self._handle, plan.desc, plan.alpha.ctypes.data, o.b, plan.a, o.a, plan.b,
            plan.beta.ctypes.data, o.c, plan.c, o.c, plan.c, plan.result.ctypes.data,
            o.workspace, o.workspace_bytes, stream,
        )  # fmt: skip

    def _set_epilogue(self, desc: int, operands: Operands) -> None:
        if operands.bias:
            self._set_product(desc, BIAS, np.int64(operands.bias))

    def _create_plan(
        self, product: Product, operands: Operands, places: Sequence[int]
    ) -> Planned | None:
        p, library = product, self._library
        wide = np.dtype(p.accumulated)
        desc = library.matmul_desc_create(compute_type(p), TYPES[wide.name])
        self._set_product(desc, TRANSA, np.int32(p.transpose_b))
        self._set_product(desc, TRANSB, np.int32(p.transpose_a))
        self._set_product(desc, EPILOGUE, np.uint32(CODES[p.epilogue]))
        a = self._layout(p, (p.k, p.n) if p.transpose_b else (p.n, p.k), 1)
        b = self._layout(p, (p.m, p.k) if p.transpose_a else (p.k, p.m), 0)
        c = self._layout(p, (p.n, p.m), 2)
        self._set_epilogue(desc, operands)
        result = self._algorithm(desc, (a, b, c), operands.workspace_bytes, places)
        if result is None:
            return None
        alpha, beta = (np.array([x], wide) for x in (p.alpha, 0))
        return Planned(desc, a, b, c, result, alpha, beta)

    def _layout(self, product: Product, shape: tuple[int, int], which: int) -> int:
        lead = product.leads[which] or shape[0]
        kind = TYPES[product.dtypes[which]]
        made: int = self._library.matrix_layout_create(kind, *shape, lead)
        if product.batch > 1:
            for attr, number in (
                (BATCH_COUNT, np.int32(product.batch)),
                (BATCH_STEP, np.int64(product.strides[which])),
            ):
                kept = np.array([number])
                self._library.matrix_layout_set_attribute(made, attr, kept.ctypes.data, kept.nbytes)
        return made

    def _algorithm(
        self, desc: int, layouts: tuple[int, int, int], workspace_bytes: int, places: Sequence[int]
    ) -> Any:
        library, (a, b, c) = self._library, layouts
        preference = library.matmul_preference_create()
        limits: list[tuple[int, Any]] = [(MAX_WORKSPACE, np.uint64(workspace_bytes))]
        limits += zip(ALIGNMENTS, map(np.uint32, (*places[:3], places[2])), strict=True)
        for attr, number in limits:
            kept = np.array([number])
            library.matmul_preference_set_attribute(preference, attr, kept.ctypes.data, kept.nbytes)
        results, found = np.zeros(1, RESULT), np.zeros(1, np.int32)
        try:
            library.matmul_algo_get_heuristic(
                self._handle, desc, a, b, c, c, preference, 1, results.ctypes.data,
                found.ctypes.data,
            )  # fmt: skip
        except Exception as error:
            if "NOT_SUPPORTED" not in str(error).upper():
                raise
            return None
        return results if found[0] else None

    def _set_product(self, desc: int, attr: int, number: Any) -> None:
        kept = np.array([number])
        self._library.matmul_desc_set_attribute(desc, attr, kept.ctypes.data, kept.nbytes)


def alignment(address: int) -> int:
    """Return the largest power of two, at most `ALIGNED`, that divides an address.

    >>> alignment(0), alignment(96), alignment(4096)
    (256, 32, 256)
    """
    return min(address & -address or ALIGNED, ALIGNED)


def compute_type(product: Product) -> int:
    """Return the cuBLAS compute type of a product."""
    if product.dtype == "float64":
        return IN_FLOAT64
    return IN_TF32 if product.tf32 and product.dtype == "float32" else IN_FLOAT32
