"""Ops that move tensors between devices and between the two views.

In: types, placements and SBPs.  Out: specs in ``OPS``.  This package must not depend on other op
families.
"""
