"""Ops for feeds, literals, fused groups, event files and Python kernels.

In: types, literals and Python functions.  Out: specs in ``OPS``.  This package must not depend on
`training`.
"""
