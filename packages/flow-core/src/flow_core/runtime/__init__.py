"""Execution of plans: bound launches, and the actors and registers of the step pipeline.

In: a `flow_core.plan.Plan`, drivers, kernels and fed arrays.  Out: results and updated variables.
This package must not depend on the compiler or the frontend.
"""
