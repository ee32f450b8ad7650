"""C loops for ops without a suitable oneDNN primitive, and the code that compiles them.

In: the C files of this package, and generated C. Out: cffi libraries, cached on disk by content.
Must not import kernels, passes or primitives.
"""
