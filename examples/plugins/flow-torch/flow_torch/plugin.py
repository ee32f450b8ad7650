"""The records that the plugin registers; importing this module does not import torch."""

import os
from ctypes.util import find_library
from importlib.metadata import version

from flow_core.authoring.specs import Available, DeviceSpec, PassSpec
from flow_torch.ops import OPS
from flow_torch.table import KERNELS

FLOW_PLUGIN_API = "1.0"
CPU_DEVICES = 8


def cuda_devices():
    """Return the number of CUDA devices; import torch only if a CUDA driver is installed."""
    if find_library("nvcuda" if os.name == "nt" else "cuda") is None:
        return 0
    import torch

    return torch.cuda.device_count()


def probe():
    """Report the CUDA devices or, if there are none, a number of devices that share the CPU."""
    count = cuda_devices()
    return Available(count, "CUDA") if count else Available(CPU_DEVICES, "all on the CPU")


def flow_register_devices():
    """Return the device type."""
    return [DeviceSpec("torch", probe, "flow_torch.driver:Driver")]


def flow_register_kernels():
    """Return the kernels."""
    return KERNELS


def flow_register_ops():
    """Return the ops that the passes create."""
    return OPS


def flow_register_passes():
    """Return the passes."""
    names = {
        "torch_fuse_convolutions": "FuseConvolutions",
        "torch_keep_pool_indices": "KeepPoolIndices",
    }
    for name, load in names.items():
        yield PassSpec(name, "physical", f"flow_torch.passes:{load}", before=("fuse_elementwise",))


def flow_doctor():
    """Return the version of torch."""
    return [f"torch {version('torch')}"]
