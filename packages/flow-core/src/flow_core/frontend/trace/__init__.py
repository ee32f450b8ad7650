"""Tracing: a job function runs on placeholders, and the ops that it adds form a graph.

In: a job function and its annotations. Out: a logical graph and the form of its results.
Must not depend on the compiler or the runtime.
"""
