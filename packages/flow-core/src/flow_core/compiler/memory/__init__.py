"""Memory planning: buffers, their lifetimes, and their offsets in one arena per device.

In: scheduled ops with the tensors that they read and write. Out: arenas and offsets.
"""
