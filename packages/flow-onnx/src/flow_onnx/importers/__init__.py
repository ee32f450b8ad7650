"""Importers: one function per ONNX operator that adds the ops of a node to a job.

In: a `Node`.  Out: a blob or an array known at compile time, or a tuple of these;
`UnsupportedNode` if flow has no counterpart, `InvalidNode` if ONNX does not permit the node.
"""

from __future__ import annotations

from collections.abc import Mapping

from flow_onnx.importers import (
    arrays,
    control,
    elementwise,
    networks,
    quantize,
    random,
    recurrent,
    reductions,
    sources,
)
from flow_onnx.importers.context import Importer

IMPORTERS: Mapping[str, Importer] = {
    name: importer
    for family in (
        arrays, control, elementwise, networks, quantize, random, recurrent, reductions, sources,
    )
    for name, importer in family.IMPORTERS.items()
}  # fmt: skip
"""Importers by operator."""
