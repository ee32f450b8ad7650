"""The API for collective algorithms: gather plans, which communication backends execute."""

from flow_core.comm.gathers import BoxRef as BoxRef
from flow_core.comm.gathers import GatherPlan as GatherPlan
from flow_core.comm.gathers import block_gathers as block_gathers
from flow_core.comm.gathers import combined_range as combined_range
from flow_core.comm.gathers import gather_plans as gather_plans
from flow_core.comm.gathers import local_ranks as local_ranks
from flow_core.comm.gathers import reductions as reductions
