"""Scheduling: the order of ops, their streams, waits between streams, and threads per task.

In: a physical graph. Out: an order of ops for each stream, with hazards resolved.
"""
