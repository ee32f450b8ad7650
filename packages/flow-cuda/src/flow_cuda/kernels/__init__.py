"""Kernels of the device type "gpu", in families."""
