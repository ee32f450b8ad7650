"""Passes that make ops for kernels of flow-cuda."""
