"""The CUDA C++ source of kernels, and compilers of this source for devices and for the host.

In: kernel queries of ops, and C++ functions with arguments. Out: kernel source, cubins, host
libraries. This package must not depend on drivers, kernels or passes.
"""
