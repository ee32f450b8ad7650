"""Ops that run bodies, which are graphs of their own: loops and branches.

In: types and attributes, among which are the bodies.  Out: specs in ``OPS``.  This package must not
depend on other families of ops: the ops of a body are found by type.
"""
