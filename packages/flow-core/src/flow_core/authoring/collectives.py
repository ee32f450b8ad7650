"""The API for collective algorithms: gather plans, which communication backends execute."""

from flow_core.comm.gathers import (
    BoxRef as BoxRef,
    GatherPlan as GatherPlan,
    block_gathers as block_gathers,
    combined_range as combined_range,
    gather_plans as gather_plans,
    local_ranks as local_ranks,
    reductions as reductions,
)
