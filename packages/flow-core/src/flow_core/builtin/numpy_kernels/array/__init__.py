"""NumPy kernels of `flow_core.ops.array`."""
