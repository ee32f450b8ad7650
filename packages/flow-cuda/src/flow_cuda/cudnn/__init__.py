"""cuDNN support: problems, execution plans, and the ops that run these plans.

In: op types and attributes. Out: execution plans that the library proposes, queued on a stream.
This package must not depend on drivers, kernels or the package ``cudnn``, which callers pass as an
argument.
"""
