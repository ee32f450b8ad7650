"""OneFlow's job functions: ``import oneflow as flow``.

The names of the core come from `flow_core.api`; the piece ``oneflow.typing`` comes from the
optional package flow-typing; ``oneflow.data``, ``oneflow.image``, ``oneflow.detection`` and the
functions on images, objects and ragged values at the top level come from flow-data.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from flow_core import __version__
from flow_core.api.array import (
    amp_white_identity,
    argsort,
    broadcast_like,
    broadcast_to_compatible_with,
    cast_to_static_shape,
    concat,
    constant,
    constant_like,
    constant_scalar,
    dim_gather,
    dynamic_reshape,
    elem_cnt,
    expand_dims,
    flatten,
    gather,
    gather_nd,
    identity,
    identity_n,
    in_top_k,
    one_hot,
    ones,
    ones_like,
    pad,
    pad_grad,
    range,
    reflection_pad2d,
    reshape,
    reshape_like,
    reverse,
    same_padding,
    scatter_nd,
    slice,
    slice_update,
    slice_v2,
    sort,
    squeeze,
    stack,
    tensor_scatter_nd_add,
    tensor_scatter_nd_update,
    transpose,
    unsorted_batch_segment_sum,
    unsorted_segment_sum,
    unsorted_segment_sum_like,
    zeros,
    zeros_like,
)
from flow_core.api.array.assignment import assign, count_not_finite, multi_count_not_finite
from flow_core.api.array.dtypes import (
    bfloat16,
    char,
    convert_oneflow_dtype_to_numpy_dtype,
    double,
    dtypes,
    float,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    record,
    tensor_buffer,
    uint8,
)
from flow_core.api.array.dynamic import argwhere, nonzero, sync_dynamic_resize
from flow_core.api.array.encoding import categorical_ordinal_encode
from flow_core.api.array.initializers import (
    constant_initializer,
    glorot_normal_initializer,
    glorot_uniform_initializer,
    kaiming_initializer,
    ones_initializer,
    random_normal_initializer,
    random_uniform_initializer,
    truncated_normal,
    truncated_normal_initializer,
    variance_scaling_initializer,
    xavier_normal_initializer,
    xavier_uniform_initializer,
    zeros_initializer,
)
from flow_core.api.compat.older_names import eager_nccl_all_reduce, inter_job_reuse_mem_strategy
from flow_core.api.compat.user_op import (
    consistent_user_op_builder,
    consistent_user_op_module_builder,
    find_or_create_module,
    user_op_builder,
    user_op_module_builder,
)
from flow_core.api.deprecation import is_deprecated
from flow_core.api.math import cast, clamp, clip, clip_by_scalar, clip_by_value, masked_fill, where
from flow_core.api.math.linalg import matmul
from flow_core.api.nn.losses import combined_margin_loss, smooth_l1_loss
from flow_core.api.nn.partial_fc import distributed_partial_fc_sample
from flow_core.api.optim.repeat_acc import acc, pack, repeat, unpack
from flow_core.api.session.current import current_global_function_desc
from flow_core.api.session.env import current_resource
from flow_core.api.session.job import (
    INVALID_BATCH_AXIS,
    INVALID_SPLIT_AXIS,
    FixedTensorDef,
    FunctionConfig,
    MirroredTensorDef,
    MirroredTensorListDef,
    clear_default_session,
    current_machine_id,
    current_scope,
    eager_execution_enabled,
    enable_eager_execution,
    function_config,
    get_all_variables,
    get_variable,
    global_function,
    hierarchical_parallel_cast,
    load_variables,
    name_scope,
    parallel_cast,
    sync_default_session,
    watch,
    watch_diff,
)
from flow_core.api.session.scope import device_prior_placement, fixed_placement
from flow_core.api.session.views import cast_to_current_logical_view
from oneflow import (
    advanced,
    checkpoint,
    config,
    deprecated,
    distribute,
    env,
    experimental,
    layers,
    linalg,
    losses,
    math,
    nn,
    onnx,
    optimizer,
    quantization,
    random,
    regularizers,
    scope,
    summary,
    sysconfig,
    system,
    tensorrt,
    train,
    unittest,
    util,
)

if TYPE_CHECKING:
    from flow_data.toplevel import (
        image_batch_align,
        image_decode,
        image_flip,
        image_normalize,
        image_random_crop,
        image_resize,
        image_target_resize,
        object_bbox_flip,
        object_bbox_scale,
        object_segmentation_polygon_flip,
        object_segmentation_polygon_scale,
        object_segmentation_polygon_to_mask,
        tensor_buffer_to_tensor,
        tensor_buffer_to_tensor_list,
        tensor_list_split,
        tensor_list_to_tensor_buffer,
        tensor_to_tensor_buffer,
    )
    from oneflow import data as data
    from oneflow import detection as detection
    from oneflow import image as image
    from oneflow import typing as typing
else:
    _PIECES = {
        "data": "flow_data",
        "detection": "flow_data",
        "image": "flow_data",
        "typing": "flow_typing",
    }
    _FROM_DATA = (
        "image_batch_align",
        "image_decode",
        "image_flip",
        "image_normalize",
        "image_random_crop",
        "image_resize",
        "image_target_resize",
        "object_bbox_flip",
        "object_bbox_scale",
        "object_segmentation_polygon_flip",
        "object_segmentation_polygon_scale",
        "object_segmentation_polygon_to_mask",
        "tensor_buffer_to_tensor",
        "tensor_buffer_to_tensor_list",
        "tensor_list_split",
        "tensor_list_to_tensor_buffer",
        "tensor_to_tensor_buffer",
    )
    _PROVIDERS = {**_PIECES, **dict.fromkeys(_FROM_DATA, "flow_data")}

    def __getattr__(name):
        """Imports the optional pieces when they are first used."""
        from importlib import import_module

        if name in _PROVIDERS and find_spec(_PROVIDERS[name]) is not None:
            if name in _PIECES:
                return import_module(f"oneflow.{name}")
            return getattr(import_module("flow_data.toplevel"), name)
        if name in _PROVIDERS:
            from oneflow._pieces import missing

            raise AttributeError(missing(name, _PROVIDERS[name]))
        from flow_core.base.errors import nearest

        hint = nearest(name, __dir__())
        raise AttributeError(f"module 'oneflow' has no attribute {name!r}; {hint}".rstrip("; "))

    def __dir__():
        """All names, the installed optional pieces among them."""
        return sorted({*globals(), *(p for p, m in _PROVIDERS.items() if find_spec(m))})
