"""Kernels of convolutions, and algorithms that replace those of the library for some shapes.

In: kernel queries of convolutions and their gradients.  Out: kernel specs.
Must not import `flow_onednn.passes`, nor kernels of other op families except matrix products.
"""
