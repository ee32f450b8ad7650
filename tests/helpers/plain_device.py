"""A device type with a kernel for single ops only, and jobs to run on it."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.config import Settings
from flow_core.builtin.numpy_plugin import flow_register_kernels
from flow_core.frontend.session import session as sessions
from flow_core.ops.training.summed_updates import SUMMED
from flow_core.plugins.host import load_plugins
from flow_core.plugins.registry import Registry
from flow_core.plugins.specs import Available, CommSpec, DeviceSpec, KernelQuery, KernelSpec

TYPE = "plain"
COMBINED = ("fused", "literal", "matmul_onto", *SUMMED.values())
"""Ops that compute several others at once, and that only passes create."""
OTHERS = ("flow-cuda", "flow-onednn", "flow-data")


def registry(
    without: Collection[str] = COMBINED,
    accepts: Callable[[KernelQuery], bool] | None = None,
    devices: int = 4,
    shares_memory: bool = True,
) -> Registry:
    """Load core's plugins and the device type, whose kernels are numpy's.

    Args:
        without: op types without a kernel.
        accepts: predicate of all kernels.
        devices: the number of devices.
        shares_memory: whether to register a comm whose devices share memory; else core's comm of
            any devices connects them.
    """

    def kernels() -> Iterator[KernelSpec]:
        for spec in flow_register_kernels():
            if spec.op not in without:
                name = f"plain.{spec.name}"
                yield replace(spec, device=TYPE, name=name, accepts=accepts or spec.accepts)

    comm = "flow_core.builtin.in_process"
    shared = CommSpec(
        "plain_comm",
        ("cpu", TYPE),
        f"{comm}:bootstrap",
        f"{comm}:InProcessComm",
        priority=1,
        shares_memory=True,
    )
    plugin = types.ModuleType("plain_device_plugin")
    vars(plugin).update(
        FLOW_PLUGIN_API="1.0",
        flow_register_kernels=kernels,
        flow_register_devices=lambda: [
            DeviceSpec(
                TYPE, lambda: Available(devices), "flow_core.builtin.numpy_driver:NumpyDriver"
            )
        ],
        flow_register_comms=lambda: [shared] if shares_memory else [],
    )
    settings = replace(Settings.from_env(), disabled_plugins=OTHERS)
    return load_plugins(settings, extra=[plugin])


@contextmanager
def session(found: Registry) -> Iterator[sessions.Session]:
    """Use a session with a registry as the default one."""
    before = list(sessions._default)
    sessions._default[:] = [sessions.Session(found)]
    try:
        yield sessions._default[0]
    finally:
        sessions._default[0].close()
        sessions._default[:] = before


def perceptron(device: str, ids: str = "0:0", config: Any = None, name: str = "job") -> Any:
    """Define a train job with two dense layers on devices.

    Args:
        device, ids: the devices.
        config: the settings of the job.
        name: its name.
    """

    def job(
        x: tp.Numpy.Placeholder((8, 40)), y: tp.Numpy.Placeholder((8,), flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement(device, ids):
            draw = flow.random_normal_initializer(stddev=0.3)
            hidden = flow.layers.dense(x, 16, flow.math.relu, kernel_initializer=draw, name="a")
            hidden = flow.math.tanh(hidden * 0.5) + 1.0
            logits = flow.layers.dense(hidden, 5, kernel_initializer=draw, name="b")
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = flow.math.reduce_mean(loss)
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(rate, momentum=0.9).minimize(loss)
        return loss

    job.__name__ = name
    return flow.global_function("train", config or flow.function_config())(job)
