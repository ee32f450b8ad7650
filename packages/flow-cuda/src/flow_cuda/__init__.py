"""A plugin with the device type "gpu": NVIDIA GPUs, driven with CuPy.

In: physical graphs, plans and bind contexts. Out: devices, kernels, passes and a comm.
Must not import CuPy or NVIDIA's libraries when the plugin is loaded.
"""

__version__ = "0.1.0"
