"""The requirements of the driver and the kernels on a device: memory, launches, settings.

In: addresses and streams. Out: protocols that the CuPy device and the simulated device implement.
This package must not depend on kernels, passes or CuPy.
"""
