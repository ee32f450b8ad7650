"""The kernels of the device type "gpu", one module per family.

In: bind contexts of ops. Out: launches on device arrays. This package must not depend on CuPy or
the simulator.
"""
