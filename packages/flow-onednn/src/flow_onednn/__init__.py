"""CPU kernels: oneDNN primitives through cffi, and C loops compiled at run time.

In: graphs and kernel queries of flow-core. Out: ops, kernels and passes of device type "cpu".
Neither flow-core nor another plugin may import this package, which must not import the
frontend or the API.
"""

__version__ = "0.1.0"
