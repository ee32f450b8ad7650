"""cuDNN: problems, execution plans, and the ops that run them.

In: op types and attributes. Out: execution plans chosen by the library, queued on a stream.
Must not depend on drivers, kernels or the package ``cudnn``, which is passed in.
"""
