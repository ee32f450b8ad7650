"""The driver: arenas, streams, captured steps, copies between devices, matrix products.

In: plans and their kernels. Out: work queued on a GPU or on the simulator.
Must not depend on passes.
"""
