"""Kernels of convolutions, and algorithms that replace those of the library for some shapes.

In: kernel queries of convolutions and their gradients.  Out: kernel specs.
This package must not import `flow_onednn.passes`.  Of other op families, it may import only the
kernels of matrix products.
"""
