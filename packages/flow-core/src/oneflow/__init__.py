"""OneFlow's job functions: ``import oneflow as flow``.

In: the public names of `flow_core.api`, each listed once in the ``__all__`` of its module;
``oneflow.typing`` from the optional package flow-typing; ``oneflow.data``, ``oneflow.image``,
``oneflow.detection`` and the functions on images, objects and ragged values from the optional
package flow-data.  Out: OneFlow's namespace.  Must not depend on any other package or define
operations.

This folder has more modules than other folders, since each module is a public namespace of OneFlow.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from flow_core import __version__
from flow_core.api.array import *
from flow_core.api.array.assignment import assign, count_not_finite, multi_count_not_finite
from flow_core.api.array.dtypes import *
from flow_core.api.array.dynamic import *
from flow_core.api.array.encoding import categorical_ordinal_encode
from flow_core.api.array.initializers import *
from flow_core.api.compat.older_names import eager_nccl_all_reduce, inter_job_reuse_mem_strategy
from flow_core.api.compat.user_op import *
from flow_core.api.deprecation import is_deprecated
from flow_core.api.math import cast, clamp, clip, clip_by_scalar, clip_by_value, masked_fill, where
from flow_core.api.math.linalg import *
from flow_core.api.nn.losses import combined_margin_loss, smooth_l1_loss
from flow_core.api.nn.partial_fc import *
from flow_core.api.optim.repeat_acc import *
from flow_core.api.session.current import current_global_function_desc
from flow_core.api.session.env import current_resource
from flow_core.api.session.job import *
from flow_core.api.session.job import FunctionConfig as ExecutionConfig
from flow_core.api.session.job import global_function as function
from flow_core.api.session.scope import device_prior_placement, fixed_placement
from flow_core.api.session.views import *
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
    from flow_core.api.array.padding import *
    from flow_core.api.compat.later_session import empty_initializer
    from flow_core.api.nn.ctc import *
    from flow_data.toplevel import *
    from oneflow import data as data
    from oneflow import detection as detection
    from oneflow import distributed as distributed
    from oneflow import image as image
    from oneflow import keras as keras
    from oneflow import profiler as profiler
    from oneflow import saved_model as saved_model
    from oneflow import serving as serving
    from oneflow import typing as typing
else:
    _LATER = {
        **dict.fromkeys(
            ("Size", "constant_pad2d", "diag", "expand", "replication_pad2d", "zero_pad2d"),
            "flow_core.api.array.padding",
        ),
        "ctc_loss": "flow_core.api.nn.ctc",
        "empty_initializer": "flow_core.api.compat.later_session",
        **dict.fromkeys(
            ("_oneflow_internal", "distributed", "keras", "profiler", "saved_model", "serving")
        ),
    }
    """The module of each function, and None for each module, that other releases of OneFlow have;
    imported on first use."""
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
        """Import an optional part of the API on first use."""
        from importlib import import_module

        if name in _LATER:
            if _LATER[name] is None:
                return import_module(f"oneflow.{name}")
            return getattr(import_module(_LATER[name]), name)
        if name in _PROVIDERS and find_spec(_PROVIDERS[name]) is not None:
            if name in _PIECES:
                return import_module(f"oneflow.{name}")
            return getattr(import_module("flow_data.toplevel"), name)
        if name in _PROVIDERS:
            from oneflow._pieces import missing

            raise AttributeError(missing(name, _PROVIDERS[name]))
        from flow_core.api.compat.eager_names import unknown

        raise unknown("oneflow", name, __dir__())

    def __dir__():
        """Return all names, including those of the optional parts that are installed."""
        return sorted({*globals(), *_LATER, *(p for p, m in _PROVIDERS.items() if find_spec(m))})
