"""Memory planning: buffers, their lifetimes, and their offsets in one arena per device.

In: scheduled ops with the tensors they read and write. Out: arenas and offsets.
Must not depend on the SBP selector.
"""
