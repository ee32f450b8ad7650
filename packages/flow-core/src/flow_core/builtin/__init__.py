"""Plugins of the core: the CPU and null devices, in-process comm, ops, passes and file formats.

In: settings and bound arrays.  Out: the specs that each ``*_plugin`` module registers.
Must not depend on the frontend, the compiler or other backends.
"""
