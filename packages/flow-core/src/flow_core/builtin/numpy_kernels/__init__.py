"""The NumPy kernels, one module per op family.

In: bind contexts with fixed arrays. Out: launches that call NumPy and allocate nothing. Every
module has a tuple ``KERNELS`` of `flow_core.plugins.specs.KernelSpec` for the device "cpu". This
package must not depend on the compiler, the runtime or the frontend.
"""
