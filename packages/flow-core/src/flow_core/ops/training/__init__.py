"""Variables, update ops and learning-rate schedules.

In: types and the rules of `flow_core.ir.update_rules`.  Out: specs in ``OPS``.  This package must
not depend on optimizer classes or kernels.
"""
