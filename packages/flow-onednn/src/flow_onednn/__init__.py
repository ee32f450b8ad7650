"""CPU kernels: oneDNN primitives through cffi, and C loops compiled at run time.

In: graphs and kernel queries of flow-core. Out: ops, kernels and passes of device type "cpu".
Must not be imported by flow-core or another plugin; import no frontend or API module.
"""

__version__ = "0.1.0"
