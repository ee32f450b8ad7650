"""The public functions and classes: one module for each part of OneFlow's API.

In: the calls of user programs.  Out: ops in the job being traced, and state of the session; the
facade ``oneflow`` re-exports the names in ``__all__``.  This package must not depend on kernels or
the runtime.

Docstrings take the parts that they lack from here and from their module: `calls.documented`.

Args:
    name: name of the op, or prefix of the names of several ops.
    x: a blob.
"""
