"""Kernel implementations: one module per op family, each of which has a table `KERNELS`.

In: kernel queries, and arrays to bind. Out: kernel specs for the plugin and sizes for the passes.
This package must not import `flow_onednn.plugin` or `flow_onednn.passes`.
"""
