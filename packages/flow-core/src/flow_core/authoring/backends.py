"""The API for kernels, drivers and communication backends."""

from flow_core.base.arrays import Array as Array
from flow_core.comm.described import places as places, present as present
from flow_core.comm.exchange import (
    BOXING as BOXING,
    COMBINE as COMBINE,
    Block as Block,
    DevicePair as DevicePair,
    Exchange as Exchange,
    Meter as Meter,
    Steps as Steps,
    check_arrays as check_arrays,
    neutral as neutral,
    pack as pack,
    sent_by as sent_by,
    unpack as unpack,
)
from flow_core.device import (
    ALIGN as ALIGN,
    SLAB_BYTES as SLAB_BYTES,
    AgreedJob as AgreedJob,
    Arena as Arena,
    Comm as Comm,
    DeviceCopier as DeviceCopier,
    Driver as Driver,
    Event as Event,
    Joinable as Joinable,
    Launch as Launch,
    Loop as Loop,
    Repeatable as Repeatable,
    Result as Result,
    Scratch as Scratch,
    Stream as Stream,
    Strided as Strided,
    World as World,
    strided as strided,
)
from flow_core.plugins.batchable import (
    Parts as Parts,
    elementwise_batchable as elementwise_batchable,
    is_split as is_split,
    repeated as repeated,
    rowwise as rowwise,
    rowwise_in_first as rowwise_in_first,
    rowwise_in_last as rowwise_in_last,
    side_by_side as side_by_side,
)
from flow_core.plugins.staging import StagedComm as StagedComm
from flow_core.plugins.trials import (
    bitwise_equal_in_trials as bitwise_equal_in_trials,
    canceling_operands as canceling_operands,
    multiplications as multiplications,
)
