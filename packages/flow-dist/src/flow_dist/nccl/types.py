"""NCCL's numbers of element types and reductions, and what NCCL cannot transfer."""

from __future__ import annotations

from collections.abc import Mapping

from flow_core.authoring.backends import Exchange
from flow_core.base.dtypes import DType
from flow_core.base.errors import UnsupportedError

DTYPES: Mapping[str, int] = {
    "int8": 0,
    "char": 0,
    "uint8": 1,
    "bool": 1,
    "int32": 2,
    "int64": 4,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
"""NCCL's numbers of element types; booleans, which NCCL lacks, travel as bytes 0 and 1."""

SUM, MAX, MIN = 0, 2, 3
OPS: Mapping[str, int] = {"sum": SUM, "max": MAX, "min": MIN}

BETWEEN_KINDS = ("copy_h2d", "copy_d2h", "copy_d2d")
"""Collectives between devices of different types."""


def op_of(combine: str, dtype: DType) -> int:
    """Return NCCL's number of a reduction; booleans are summed as a maximum.

    >>> from flow_core.base.dtypes import bool_, float32
    >>> op_of("sum", float32), op_of("sum", bool_)
    (0, 2)
    """
    return MAX if dtype.kind == "b" and combine == "sum" else OPS[combine]


def check_types(exchange: Exchange) -> None:
    """Reject exchanges that NCCL cannot transfer.

    Raises `UnsupportedError` if the exchange transfers objects, or between devices other than GPUs.
    """
    foreign = sorted({d for d in exchange.devices if d.type != "gpu"})
    names = {t.dtype.name for t in (*exchange.inputs[:1], *exchange.outputs[:1])} - set(DTYPES)
    if exchange.collective in BETWEEN_KINDS or foreign:
        ends = ", ".join(map(str, foreign)) or exchange.collective
        _refuse(exchange, f"devices of other types: {ends}", "GPUs", "copy to the GPU of a process")
    if names:
        found = f"elements of type {', '.join(sorted(names))}"
        _refuse(exchange, found, ", ".join(DTYPES), "decode or pad them where they are read")


def _refuse(exchange: Exchange, found: str, allowed: str, hint: str) -> None:
    where = f" ({exchange.line})" if exchange.line else ""
    raise UnsupportedError(
        f"binding exchange {exchange.name!r} over NCCL{where}",
        found=found,
        allowed=allowed,
        hint=hint,
    )
