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
]
