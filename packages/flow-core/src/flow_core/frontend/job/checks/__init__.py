"""Checks of a job before it runs, which raise errors or warn.

In: a traced job or its optimized graph. Out: nothing.
Checks must not change the job or its graph.
"""
