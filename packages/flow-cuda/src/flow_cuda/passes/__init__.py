"""Graph passes of the CUDA backend: data layouts, cuDNN ops, fused products, delayed updates.

In: a graph with one op per device, and cuDNN's plans.  Out: the graph, rewritten for the kernels of
this package.  This package must not depend on the frontend or on other backends.
"""
