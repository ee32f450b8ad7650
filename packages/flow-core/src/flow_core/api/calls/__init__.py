"""Errors about wrong calls of public functions and classes.

In: the namespaces of ``oneflow``. Out: a `flow_core.base.errors.CallError` for a call whose
arguments do not fit the signature or the annotations of what it calls.  A call that succeeds is not
examined.
"""
