"""A device type that is not there."""

from flow_core.authoring.specs import DeviceSpec, Unavailable

FLOW_PLUGIN_API = "1.0"


def probe():
    return Unavailable("the abacus has no beads", "buy beads")


def flow_register_devices():
    return [DeviceSpec("abacus", probe, "flow_no_device:Driver")]
