"""A simulated device that runs kernels on the host and checks the synchronization of streams.

In: the device protocol and C++ kernels. Out: devices of type "gpu" that need no GPU. This package
must not depend on CuPy or NVIDIA's libraries.
"""
