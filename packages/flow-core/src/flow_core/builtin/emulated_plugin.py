"""Plugin of "gpu" devices that run on the CPU; ONEFLOW_EMULATE_GPUS sets their number."""

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
    """Return the device type "gpu" with the CPU's driver and kernels, if emulation is enabled."""
    if not config.emulate_gpus:
        return ()
    probe = partial(Available, config.emulate_gpus, "emulated on the CPU")
    driver = partial(_driver, config.emulate_gpu_memory)
    return (DeviceSpec("gpu", probe, driver, kernels="cpu"),)
