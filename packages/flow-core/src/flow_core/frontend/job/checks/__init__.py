"""Checks of a job before it runs, which raise errors, warn, or log notes.

In: a traced job or its optimized graph. Out: nothing.
Must not change the job or its graph.
"""
