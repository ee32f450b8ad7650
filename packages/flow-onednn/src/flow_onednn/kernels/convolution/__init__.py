"""Kernels of convolutions, and the algorithms that replace the library's own for some shapes.

In: kernel queries of convolutions and their gradients.  Out: kernel specs.
Must not import `flow_onednn.passes`, nor kernels of other op families but matrix products.
"""
