"""A plugin with the device type "gpu": NVIDIA GPUs, driven with CuPy.

In: physical graphs, plans and bind contexts. Out: devices, kernels, passes and a communicator
(comm).
Loading the plugin must not import CuPy or NVIDIA's libraries.
"""

__version__ = "0.1.0"
