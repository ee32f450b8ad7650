"""NumPy kernels of `flow_core.ops.data_movement`."""
