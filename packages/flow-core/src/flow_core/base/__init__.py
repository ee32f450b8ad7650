"""Errors, element types, shapes, settings, random numbers and the process's threads.

In: environment variables. Out: value types and process-wide settings. This package must not depend
on any other package of flow_core.
"""
