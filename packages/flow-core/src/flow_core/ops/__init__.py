"""Op families: the schema, type inference, SBP rules, gradient and reference of each op.

In: graph types and attributes.  Out: the tuple ``OPS`` of `flow_core.plugins.specs.OpSpec` of each
module.  This package must not depend on devices, kernels, passes or the frontend.
"""
