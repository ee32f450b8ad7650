"""NumPy kernels of `flow_core.ops.data_movement`.

In: bind contexts with fixed arrays.  Out: ``KERNELS``, one `KernelSpec` per op and form.
Must not depend on the compiler, the runtime or the frontend.
"""
