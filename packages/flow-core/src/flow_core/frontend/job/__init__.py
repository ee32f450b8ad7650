"""Job functions: definition, settings, compilation, feeds and calls.

In: a decorated function. Out: an executable that the session calls.
Must not depend on the public API.
"""
