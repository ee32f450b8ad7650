"""Tracing: placeholders and ops of a job under definition; it neither differentiates nor compiles.

In: a job function and its annotations. Out: a logical graph and the form of its results.
Must not depend on `frontend.job` and `frontend.session`.
"""
