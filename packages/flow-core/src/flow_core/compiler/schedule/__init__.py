"""Scheduling: the order of ops, their streams, the waits between streams, threads per task.

In: a physical graph. Out: an order of ops per stream, with hazards resolved.
Must not depend on the SBP selector or resharding.
"""
