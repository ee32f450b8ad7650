"""Numpy kernels of `flow_core.ops.nn`."""
