"""Ops on shapes, slices, indices and order, and sources of numbers.

In: types and attributes.  Out: specs in ``OPS``.  Must not depend on other op families.
"""
