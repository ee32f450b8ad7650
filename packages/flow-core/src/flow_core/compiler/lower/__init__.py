"""Lowering: from the logical graph to the physical graph, and from there to the tasks of a plan.

In: a logical graph with chosen distributions. Out: a `flow_core.plan.Plan`.
This package must not depend on the frontend or the runtime.
"""
