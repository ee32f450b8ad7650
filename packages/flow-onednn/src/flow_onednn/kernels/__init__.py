"""Kernels by family: each module has a table `KERNELS`."""
