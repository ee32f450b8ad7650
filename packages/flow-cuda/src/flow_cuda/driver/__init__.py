"""The driver: arenas, streams, captured steps, copies between devices, matrix products.

In: plans and their kernels. Out: work queued on a GPU or on a simulated one. This package must not
depend on passes.
"""
