"""The names of ``oneflow`` itself, without its modules; ``oneflow`` imports this on first use.

Each import is of a form that type checkers take for a re-export.
"""

from flow_core.api.array.assignment import assign as assign
from flow_core.api.array.assignment import count_not_finite as count_not_finite
from flow_core.api.array.assignment import multi_count_not_finite as multi_count_not_finite
from flow_core.api.array.conditional import *
from flow_core.api.array.dtypes import *
from flow_core.api.array.dynamic import *
from flow_core.api.array.encoding import categorical_ordinal_encode as categorical_ordinal_encode
from flow_core.api.array.index import *
from flow_core.api.array.initializers import *
from flow_core.api.array.padding import *
from flow_core.api.array.parts import *
from flow_core.api.array.scanning import *
from flow_core.api.array.select import *
from flow_core.api.array.shape import *
from flow_core.api.array.source import *
from flow_core.api.calls.published import publish as _publish
from flow_core.api.compat.later_session import empty_initializer as empty_initializer
from flow_core.api.compat.older_names import eager_nccl_all_reduce as eager_nccl_all_reduce
from flow_core.api.compat.older_names import (
    inter_job_reuse_mem_strategy as inter_job_reuse_mem_strategy,
)
from flow_core.api.compat.user_op import *
from flow_core.api.deprecation import is_deprecated as is_deprecated
from flow_core.api.math.binary import cast as cast
from flow_core.api.math.binary import clamp as clamp
from flow_core.api.math.binary import clip as clip
from flow_core.api.math.binary import clip_by_scalar as clip_by_scalar
from flow_core.api.math.binary import clip_by_value as clip_by_value
from flow_core.api.math.binary import masked_fill as masked_fill
from flow_core.api.math.binary import where as where
from flow_core.api.math.einsum import *
from flow_core.api.math.linalg import *
from flow_core.api.nn.ctc import *
from flow_core.api.nn.losses import combined_margin_loss as combined_margin_loss
from flow_core.api.nn.losses import smooth_l1_loss as smooth_l1_loss
from flow_core.api.nn.partial_fc import *
from flow_core.api.optim.repeat_acc import *
from flow_core.api.session.current import (
    current_global_function_desc as current_global_function_desc,
)
from flow_core.api.session.env import current_resource as current_resource
from flow_core.api.session.job import *
from flow_core.api.session.job import FunctionConfig as FunctionConfig
from flow_core.api.session.job import global_function as global_function
from flow_core.api.session.replay import *
from flow_core.api.session.scope import device_prior_placement as device_prior_placement
from flow_core.api.session.scope import fixed_placement as fixed_placement
from flow_core.api.session.views import *
from flow_core.frontend.trace.blob import Blob as Blob
from flow_core.frontend.trace.blob import BlobDef as BlobDef

ExecutionConfig = FunctionConfig
function = global_function

_publish(globals())
