"""Graph passes of the oneDNN backend: data layouts, fusion, joined updates, packed weights.

In: a graph with one op per device, and the kernels of this backend.  Out: the graph rewritten for
these kernels.  This package must not depend on the frontend or on other backends.
"""
