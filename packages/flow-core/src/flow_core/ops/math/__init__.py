"""Elementwise ops, reductions, matrix products and element-type conversions.

In: types and attributes.  Out: specs in ``OPS``.  This package must not depend on `nn`, `training`
or `system`.
"""
