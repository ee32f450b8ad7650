"""Plugins of the core: CPU and null devices, in-process communicators, ops, passes, file formats.

In: settings and bound arrays.  Out: the specs that each ``*_plugin`` module registers. This package
must not depend on the frontend, the compiler or other backends.
"""
