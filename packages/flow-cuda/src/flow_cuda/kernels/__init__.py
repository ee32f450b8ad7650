"""The kernels of the device type "gpu", one module per family.

In: bind contexts of ops. Out: launches on device arrays.
Must not depend on CuPy or the simulator.
"""
