"""What the driver and the kernels need of a device: memory, launches, settings.

In: addresses and streams. Out: protocols that CuPy's hardware and the simulator meet.
Must not depend on kernels, passes or CuPy.
"""
