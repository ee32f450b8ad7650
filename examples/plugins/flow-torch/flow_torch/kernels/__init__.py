"""Kernels: functions, one per op, that bind torch's functions to tensors."""
