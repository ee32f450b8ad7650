"""NumPy kernels of `flow_core.ops.math`."""
