"""Kernels of `flow_core.ops.control`, which run the kernels of the ops of a body.

In: bind contexts with fixed arrays.  Out: a tuple ``KERNELS`` of `KernelSpec` in each module.  Of
the compiler, this package reads the planner of arenas alone.
"""
