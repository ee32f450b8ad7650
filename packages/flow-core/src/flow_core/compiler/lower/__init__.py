"""Lowering: from the physical graph to the tasks of a plan.

In: a physical graph after its passes. Out: a `flow_core.plan.Plan`.
"""
