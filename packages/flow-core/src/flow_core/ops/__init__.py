"""Op families: schema, shape and dtype inference, SBP rules and gradient of each op.

Every module of this package has a tuple ``OPS`` of `flow_core.plugins.specs.OpSpec`; nothing
here knows devices.
"""
