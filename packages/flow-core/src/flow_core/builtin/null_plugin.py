"""Plugin of the device type "null", which runs nothing; for tests and planning without hardware."""

from __future__ import annotations

from flow_core.device import Launch
from flow_core.plugins.specs import Available, BindContext, CommSpec, DeviceSpec, KernelSpec

FLOW_PLUGIN_API = "1.0"

DEVICES = 1 << 20


def probe() -> Available:
    """Report that the maximum number of devices is available."""
    return Available(DEVICES, "runs nothing")


def bind(ctx: BindContext) -> Launch:
    """Return a launch that does nothing, for any op."""
    return _nothing


def _nothing() -> None:
    pass


def flow_register_devices() -> tuple[DeviceSpec, ...]:
    """Return the device type "null"."""
    return (DeviceSpec("null", probe, "flow_core.builtin.null_driver:NullDriver"),)


def flow_register_comms() -> tuple[CommSpec, ...]:
    """Return the comm of null devices, which sends nothing."""
    module = "flow_core.builtin.null_driver"
    return (CommSpec("null", ("null",), probe, f"{module}:NullComm"),)


def flow_register_kernels() -> tuple[KernelSpec, ...]:
    """Return a single kernel that accepts every op."""
    return (KernelSpec("*", "null", bind, name="null"),)
