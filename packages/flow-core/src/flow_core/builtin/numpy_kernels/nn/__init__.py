"""NumPy kernels of `flow_core.ops.nn`."""
