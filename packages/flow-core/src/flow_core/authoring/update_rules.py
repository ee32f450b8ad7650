"""The API for optimizer updates: the rules, their formulas as C or C++, and schedules."""

from flow_core.ir.update_rules import (
    BY_TYPE as BY_TYPE,
    COMMON as COMMON,
    DIFF as DIFF,
    INDEXED as INDEXED,
    INDEXED_PREFIX as INDEXED_PREFIX,
    MODEL as MODEL,
    RATE as RATE,
    TABLE as TABLE,
    Update as Update,
    optional_inputs as optional_inputs,
)
from flow_core.ops.training.schedules import (
    corrected_rate as corrected_rate,
    scheduled_rate as scheduled_rate,
)
from flow_core.ops.training.update_references import (
    update_inputs as update_inputs,
    update_reference as update_reference,
)
from flow_core.ops.training.update_source import Phase as Phase, update_source as update_source
