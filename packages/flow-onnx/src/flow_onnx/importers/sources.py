"""Importers of operators whose results are known while the job is defined."""

from __future__ import annotations

import math
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from flow_onnx.importers.context import Importer, Node
from flow_onnx.reading import array_of, dense_array


def _constant(n: Node) -> Any:
    if "value" in n.attrs:
        return array_of(n.attr("value"))
    if "sparse_value" in n.attrs:
        return dense_array(n.attr("sparse_value"))
    for name, kind in (("int", np.int64), ("float", np.float32)):
        for key in (f"value_{name}", f"value_{name}s"):
            if key in n.attrs:
                return np.array(n.attr(key), kind)
    n.unsupported("text")


def _filled(n: Node) -> Any:
    shape = n.ints(0, "a shape") or []
    if min(shape, default=0) < 0:
        n.invalid(f"shape {shape}", "sizes of at least 0")
    value = array_of(n.attr("value")) if "value" in n.attrs else np.zeros(1, np.float32)
    if value.size != 1:
        n.invalid(f"value of shape {value.shape}", "one number")
    n.folder.allow(shape, value.itemsize)
    return np.full(shape, value.reshape(-1)[0], value.dtype)


def _range(n: Node) -> Any:
    start, limit, delta = (n.number(i, "a limit", None) for i in range(3))
    if not delta or not all(map(math.isfinite, (start, limit, delta))):
        n.invalid(f"start {start}, limit {limit}, delta {delta}", "finite numbers, delta not 0")
    whole = n.value(0).dtype.kind in "iu"  # whose quotients may exceed the precision of floats
    count = max(0, -((start - limit) // delta) if whole else math.ceil((limit - start) / delta))
    kind = n.value(0).dtype
    n.folder.allow((count,), 8)
    places = np.arange(count, dtype=np.int64 if whole else np.float64)
    return (start + places * delta).astype(kind)


IMPORTERS: Mapping[str, Importer] = {
    "Constant": _constant,
    "ConstantOfShape": _filled,
    "Range": _range,
    "Shape": lambda n: np.array(n.shape()[slice(n.attr("start", 0), n.attr("end"))], np.int64),
    "Size": lambda n: np.array(prod(n.shape()), np.int64),
}
