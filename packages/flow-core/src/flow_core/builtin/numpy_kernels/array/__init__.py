"""NumPy kernels of `flow_core.ops.array`.

In: bind contexts with fixed arrays.  Out: a tuple ``KERNELS`` of `KernelSpec` in each module. This
package must not depend on the compiler, the runtime or the frontend.
"""
