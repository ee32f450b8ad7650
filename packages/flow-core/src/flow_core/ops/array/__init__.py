"""Ops that change shapes, slice, index or sort tensors, and ops that produce numbers.

In: types and attributes.  Out: specs in ``OPS``.  This package must not depend on other op
families.
"""
