"""The numpy kernels, a module per family.

Every module has a tuple ``KERNELS`` of `flow_core.plugins.specs.KernelSpec` for device "cpu".
A kernel binds once: it returns launches on fixed arrays, which allocate nothing when they run.
"""
