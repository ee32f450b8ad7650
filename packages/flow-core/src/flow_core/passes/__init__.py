"""Graph passes, one per file.

In: a valid graph, op specs and options.  Out: a valid graph with the same results.
This package must not depend on the compiler, kernels, devices or the frontend.
"""
