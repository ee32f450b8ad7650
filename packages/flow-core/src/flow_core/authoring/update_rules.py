"""The API for optimizer updates: the rules, their formulas as C or C++, and schedules."""

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
from flow_core.ops.training.schedules import corrected_rate, scheduled_rate
from flow_core.ops.training.update_references import update_inputs, update_reference
from flow_core.ops.training.update_source import Phase, update_source

__all__ = [
    "BY_TYPE",
    "COMMON",
    "DIFF",
    "INDEXED",
    "INDEXED_PREFIX",
    "MODEL",
    "RATE",
    "TABLE",
    "Phase",
    "Update",
    "corrected_rate",
    "optional_inputs",
    "scheduled_rate",
    "update_inputs",
    "update_reference",
    "update_source",
]
