"""Lowering: from the logical graph to the physical graph, and from that to tasks of a plan.

In: a logical graph with chosen distributions. Out: a `flow_core.plan.Plan`.
Must not depend on the frontend or the runtime.
"""
