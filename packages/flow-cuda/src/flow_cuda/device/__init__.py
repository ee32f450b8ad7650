"""What the driver and the kernels require of a device: memory, kernel launches, settings.

In: addresses and streams. Out: protocols that the CuPy device and the simulator implement.
Must not depend on kernels, passes or CuPy.
"""
