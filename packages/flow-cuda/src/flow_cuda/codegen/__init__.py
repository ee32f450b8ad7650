"""CUDA C++ of kernels, and the compilers that build it for a device or the host."""
