"""Registers a kernel as good as that of flow-cubes."""

from flow_core.authoring.specs import KernelSpec

FLOW_PLUGIN_API = "1.0"


def flow_register_kernels():
    return [KernelSpec("cube", "cpu", "flow_duplicate_kernel:bind", name="other.cube")]
