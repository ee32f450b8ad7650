"""Plugin of devices of type "gpu" that run on the CPU, as many as ONEFLOW_EMULATE_GPUS says."""

from __future__ import annotations

from functools import partial

from flow_core.base.config import Settings
from flow_core.plugins.specs import Available, DeviceSpec
from flow_core.sharding.topology import Device

FLOW_PLUGIN_API = "1.0"


def _driver(limit: int | None, device: Device) -> object:
    from flow_core.builtin.numpy_driver import NumpyDriver

    return NumpyDriver(device, limit)


def flow_register_devices(config: Settings) -> tuple[DeviceSpec, ...]:
    """Return device type "gpu" with the CPU's driver and kernels; nothing without the setting."""
    if not config.emulate_gpus:
        return ()
    probe = partial(Available, config.emulate_gpus, "emulated on the CPU")
    driver = partial(_driver, config.emulate_gpu_memory)
    return (DeviceSpec("gpu", probe, driver, kernels="cpu"),)
