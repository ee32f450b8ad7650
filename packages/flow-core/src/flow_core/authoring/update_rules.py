"""The API for optimizer updates: the rules, their formulas as C or C++, and schedules."""

from flow_core.ir.update_rules import BY_TYPE as BY_TYPE
from flow_core.ir.update_rules import COMMON as COMMON
from flow_core.ir.update_rules import DIFF as DIFF
from flow_core.ir.update_rules import INDEXED as INDEXED
from flow_core.ir.update_rules import INDEXED_PREFIX as INDEXED_PREFIX
from flow_core.ir.update_rules import MODEL as MODEL
from flow_core.ir.update_rules import RATE as RATE
from flow_core.ir.update_rules import TABLE as TABLE
from flow_core.ir.update_rules import Update as Update
from flow_core.ir.update_rules import optional_inputs as optional_inputs
from flow_core.ops.training.schedules import corrected_rate as corrected_rate
from flow_core.ops.training.schedules import scheduled_rate as scheduled_rate
from flow_core.ops.training.update_references import update_inputs as update_inputs
from flow_core.ops.training.update_references import update_reference as update_reference
from flow_core.ops.training.update_source import Phase as Phase
from flow_core.ops.training.update_source import update_source as update_source
