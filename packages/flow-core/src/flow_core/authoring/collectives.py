"""The API for collective algorithms: gather plans, which communication backends execute."""

from flow_core.comm.gathers import (
    BoxRef,
    GatherPlan,
    block_gathers,
    combined_range,
    gather_plans,
    local_ranks,
    reductions,
)

__all__ = [
    "BoxRef",
    "GatherPlan",
    "block_gathers",
    "combined_range",
    "gather_plans",
    "local_ranks",
    "reductions",
]
