"""Settings of the whole session: ``flow.config``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from flow_core.api.arguments import checked_count
from flow_core.base.config import HOST_FALLBACK
from flow_core.base.errors import ConfigError, UnsupportedError, shown, user_line
from flow_core.frontend.job.compile_request import TENSOR_FLOAT_32
from flow_core.frontend.session.session import default_session
from flow_core.passes.bucket_all_reduces import FUSIBLE

EFFECTIVE: dict[str, Callable[[Any], bool]] = {
    "enable_fusion": lambda val: isinstance(val, bool),
    **{f"nccl_fusion_{name}": lambda val: isinstance(val, bool) for name in FUSIBLE},
    "nccl_fusion_max_ops": lambda val: type(val) is int and val > 0,
    "nccl_fusion_threshold_mb": lambda val: type(val) in (int, float) and val >= 0,
}
"""Settings in ``flow.config.collective_boxing`` that control buckets, and their types."""

ALLOWED: dict[str, str] = {
    "nccl_fusion_max_ops": "an integer of at least 1",
    "nccl_fusion_threshold_mb": "a number that is not negative",
}
"""Descriptions of the allowed values of settings that are not True or False."""


def _checked(name: str) -> Callable[..., None]:
    fits = EFFECTIVE[name]

    def setter(val: object = True) -> None:
        if not fits(val):
            raise ConfigError.at_caller(
                f"config.collective_boxing.{name}",
                found=shown(val),
                allowed=ALLOWED.get(name, "True or False"),
            )
        default_session().resources.others[f"collective_boxing.{name}"] = val

    setter.__name__ = setter.__qualname__ = name
    setter.__doc__ = f"Sets ``{name}`` of gradient buckets, for jobs compiled afterwards."
    return setter


def _setter(name: str) -> Callable[..., None]:
    def setter(val: object = True) -> None:
        default_session().resources.others[name] = val

    setter.__name__ = setter.__qualname__ = name.rsplit(".", 1)[-1]
    setter.__doc__ = (
        f"Keep ``{name}``, which does not affect core.\n\n"
        f"Args:\n    val: the value to keep.\n\n"
        f"Example:\n    >>> flow.config.{name}(True)\n"
    )
    return setter


class CollectiveBoxing:
    """Settings of collective communication: those of buckets, and those that plugins read.

    Gradients are all-reduced in buckets of at most ``nccl_fusion_threshold_mb`` megabytes (default
    16) and ``nccl_fusion_max_ops`` gradients (default 64), unless ``enable_fusion`` or
    ``nccl_fusion_all_reduce`` is False.  Other collectives between the same devices are fused if
    ``nccl_fusion_reduce``, ``nccl_fusion_reduce_scatter``, ``nccl_fusion_all_gather`` or
    ``nccl_fusion_broadcast`` is True.
    """

    enable_fusion = staticmethod(_checked("enable_fusion"))
    nccl_enable_all_to_all = staticmethod(_setter("collective_boxing.nccl_enable_all_to_all"))
    nccl_enable_mixed_fusion = staticmethod(_setter("collective_boxing.nccl_enable_mixed_fusion"))
    nccl_fusion_all_gather = staticmethod(_checked("nccl_fusion_all_gather"))
    nccl_fusion_all_reduce = staticmethod(_checked("nccl_fusion_all_reduce"))
    nccl_fusion_all_reduce_use_buffer = staticmethod(
        _setter("collective_boxing.nccl_fusion_all_reduce_use_buffer")
    )
    nccl_fusion_broadcast = staticmethod(_checked("nccl_fusion_broadcast"))
    nccl_fusion_max_ops = staticmethod(_checked("nccl_fusion_max_ops"))
    nccl_fusion_reduce = staticmethod(_checked("nccl_fusion_reduce"))
    nccl_fusion_reduce_scatter = staticmethod(_checked("nccl_fusion_reduce_scatter"))
    nccl_fusion_threshold_mb = staticmethod(_checked("nccl_fusion_threshold_mb"))
    nccl_num_streams = staticmethod(_setter("collective_boxing.nccl_num_streams"))
    num_callback_threads = staticmethod(_setter("collective_boxing.num_callback_threads"))


# Settings of OneFlow 0.3.4, and some of OneFlow 0.4, that are stored but do not affect flow-core.
collect_act_event = _setter("collect_act_event")
comm_net_worker_num = _setter("comm_net_worker_num")
compute_thread_pool_size = _setter("compute_thread_pool_size")
disable_group_boxing_by_dst_parallel = _setter("disable_group_boxing_by_dst_parallel")
enable_debug_mode = _setter("enable_debug_mode")
enable_legacy_model_io = _setter("enable_legacy_model_io")
enable_mem_chain_merge = _setter("enable_mem_chain_merge")
enable_model_io_v2 = _setter("enable_model_io_v2")
enable_numa_aware_cuda_malloc_host = _setter("enable_numa_aware_cuda_malloc_host")
max_mdsave_worker_num = _setter("max_mdsave_worker_num")
nccl_use_compute_stream = _setter("nccl_use_compute_stream")
persistence_buf_byte = _setter("persistence_buf_byte")
rdma_mem_block_mbyte = _setter("rdma_mem_block_mbyte")
rdma_recv_msg_buf_mbyte = _setter("rdma_recv_msg_buf_mbyte")
reserved_host_mem_mbyte = _setter("reserved_host_mem_mbyte")
save_downloaded_file_to_local_fs = _setter("save_downloaded_file_to_local_fs")
thread_enable_local_message_queue = _setter("thread_enable_local_message_queue")
use_rdma = _setter("use_rdma")

collective_boxing = CollectiveBoxing()

__all__ = [
    "collect_act_event", "collective_boxing", "comm_net_worker_num", "compute_thread_pool_size",
    "cpu_device_num", "disable_group_boxing_by_dst_parallel", "enable_debug_mode",
    "enable_legacy_model_io", "enable_mem_chain_merge", "enable_model_io_v2",
    "enable_numa_aware_cuda_malloc_host", "enable_tensor_float_32_compute", "gpu_device_num",
    "host_fallback", "legacy_model_io_enabled", "load_library", "load_library_now",
    "machine_num", "max_mdsave_worker_num", "nccl_use_compute_stream", "persistence_buf_byte",
    "rdma_mem_block_mbyte", "rdma_recv_msg_buf_mbyte", "reserved_device_mem_mbyte",
    "reserved_host_mem_mbyte", "save_downloaded_file_to_local_fs",
    "thread_enable_local_message_queue", "use_rdma",
]  # fmt: skip


def gpu_device_num(val: int) -> None:
    """Set the number of GPUs per machine; with 0, ops outside all placement scopes run on the CPU.

    Args:
        val: an integer of at least 0.

    Raises:
        DeviceUnavailableError: fewer GPUs exist; the error gives the reason, and says how to
            emulate GPUs.

    >>> flow.config.gpu_device_num(0)
    """
    session = default_session()
    count = checked_count("config.gpu_device_num", val, least=0)
    if count:
        session.registry.require_device("gpu", count, user_line(2))
    session.resources.gpu_device_num = count


def cpu_device_num(val: int) -> None:
    """Set the number of CPU devices per machine, which jobs use by default if there are no GPUs.

    Args:
        val: a positive integer.

    Raises: ConfigError: the value is not a positive integer.

    >>> flow.config.cpu_device_num(2)
    """
    default_session().resources.cpu_device_num = checked_count("config.cpu_device_num", val)


def reserved_device_mem_mbyte(val: int) -> None:
    """Set how many megabytes plans must leave free on each device other than the CPU.

    Args:
        val: an integer of at least 0.

    Raises: ConfigError: the value is not such an integer.

    >>> flow.config.reserved_device_mem_mbyte(500)
    """
    val = checked_count("config.reserved_device_mem_mbyte", val, least=0, most=1 << 40)
    default_session().resources.others["reserved_device_mem_mbyte"] = val


def machine_num(val: int) -> None:
    """Set the number of machines; the default is the number that ``flow.env.machine`` names.

    Args:
        val: a positive integer.

    Raises: ConfigError: the value is not a positive integer.

    >>> flow.config.machine_num(1)
    """
    resources = default_session().resources
    resources.machine_num = checked_count("config.machine_num", val)
    resources.others["env.machine_num"] = val


def enable_tensor_float_32_compute(val: bool = True) -> None:
    """Set whether devices may compute float32 products with a 10-bit mantissa (default True).

    The setting applies to jobs compiled afterwards.  CPU kernels ignore it.

    Args:
        val: True or False.

    Raises: ConfigError: the value is neither.

    >>> flow.config.enable_tensor_float_32_compute(False)
    """
    if not isinstance(val, bool):
        attempted = f"config.{TENSOR_FLOAT_32}"
        raise ConfigError.at_caller(attempted, found=shown(val), allowed="True or False")
    default_session().resources.others[TENSOR_FLOAT_32] = val


def host_fallback(val: str) -> None:
    """Set whether ops without a kernel for their devices run on the CPU: "off", "warn" or "silent".

    The setting applies to jobs compiled afterwards, unless their ``function_config.host_fallback``
    is set.

    Args:
        val: "off", "warn" or "silent".

    Raises: ConfigError: the value is none of these.

    >>> flow.config.host_fallback("warn")
    """
    if val not in HOST_FALLBACK:
        allowed = " or ".join(map(repr, HOST_FALLBACK))
        raise ConfigError.at_caller("config.host_fallback", found=shown(val), allowed=allowed)
    default_session().resources.others["host_fallback"] = val


PLUGINS = {
    "final_myop.so": ("flow-tutorial", "myop"),
    "final_relu.so": ("flow-tutorial", "myrelu"),
    "liboneflow_yolov3.so": ("flow-yolo", "yolo_box_diff"),
    "miniloader.so": ("flow-tutorial", "MiniReader"),
}
"""Libraries of ops for OneFlow's runtime: the plugin that provides the ops, and one of them."""


def load_library(val: str) -> None:
    """Do nothing if an installed plugin provides the ops of a library.

    Compiled ops of OneFlow cannot be loaded.  Of the plugins in ``examples/plugins``, flow-yolo
    provides the ops of oneflow_yolov3, and flow-tutorial those of OneFlow's documentation.

    Args:
        val: the path of a library.

    Raises:
        UnsupportedError: no plugin provides the ops, or the plugin is not installed.

    >>> flow.config.load_library("my_ops.so")
    Traceback (most recent call last):
        ...
    flow_core.base.errors.UnsupportedError: ...
    """
    plugin, op = PLUGINS.get(os.path.basename(val), ("", ""))
    if op in default_session().registry.ops:
        return
    raise UnsupportedError.at_caller(
        "config.load_library",
        found=f"{val!r}, a library for OneFlow's own runtime",
        allowed="ops and kernels of plugins",
        hint=f"install the plugin {plugin}, which provides its ops, from examples/plugins/{plugin}"
        if plugin
        else "kernels in Python: flow.experimental.custom_op_module; others: write a plugin that "
        "registers the op, see `flow doctor` and the page of all hooks",
    )


load_library_now = load_library


def legacy_model_io_enabled() -> bool:
    """Return whether ``enable_legacy_model_io`` was set.

    Returns: True or False.

    >>> flow.config.legacy_model_io_enabled()
    False
    """
    return bool(default_session().resources.others.get("enable_legacy_model_io", False))
