"""NumPy kernels of `flow_core.ops.data_movement`.

In: bind contexts with fixed arrays.  Out: a tuple ``KERNELS`` of `KernelSpec` in each module. This
package must not depend on the compiler, the runtime or the frontend.
"""
