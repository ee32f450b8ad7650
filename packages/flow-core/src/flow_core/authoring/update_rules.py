"""The API of optimizer updates: the table of rules that backends implement."""

from flow_core.ir.update_rules import (
    BY_TYPE,
    COMMON,
    DIFF,
    INDEXED,
    INDEXED_PREFIX,
    MODEL,
    RATE,
    TABLE,
    Update,
    optional_inputs,
)
from flow_core.ops.training.update_references import update_inputs, update_reference

__all__ = [
    "BY_TYPE",
    "COMMON",
    "DIFF",
    "INDEXED",
    "INDEXED_PREFIX",
    "MODEL",
    "RATE",
    "TABLE",
    "Update",
    "optional_inputs",
    "update_inputs",
    "update_reference",
]
