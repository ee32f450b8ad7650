"""Names of OneFlow's extension module that programs mention in annotations.

OneFlow 0.3.4 takes the type of blobs from here: ``def block(x: oneflow_api.BlobDesc)``.
"""

from flow_core.frontend.trace.blob import BlobDef as BlobDesc

__all__ = ["BlobDesc"]
