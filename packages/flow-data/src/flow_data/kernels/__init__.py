"""The kernels of flow-data's ops, for the CPU."""
