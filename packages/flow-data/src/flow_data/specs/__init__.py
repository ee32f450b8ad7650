"""Op specs of flow-data: schema, shape inference, SBP rules and gradients.

In: types and attributes. Out: tables ``OPS`` for the plugin.
This package must not import kernels, loaders or record formats.
"""
