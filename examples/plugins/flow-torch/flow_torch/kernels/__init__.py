"""Kernels: functions that bind torch's functions to tensors, by op, in namespaces ``KERNELS``."""
