"""Readers, decoders, OFRecord files, and image augmentation: ``oneflow.data``.

In: files of records and images. Out: ops, kernels, a pass, and the public functions of
`flow_data.namespace`, without which `flow --help` loads no numpy.  flow-core must import this
package by lazy names only, and no module may import a decoder library at module level.
"""

__version__ = "0.1.0"
