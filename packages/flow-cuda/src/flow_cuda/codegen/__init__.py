"""CUDA C++ source of kernels, and the compilers for devices and for the host.

In: op queries, C++ functions with arguments. Out: kernel source, cubins, host libraries.
Must not depend on drivers, kernels or passes.
"""
