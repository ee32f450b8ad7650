"""Names of the extension module of OneFlow 0.4 that programs mention in annotations."""

from flow_core.frontend.trace.blob import BlobDef as BlobDesc

__all__ = ["BlobDesc"]
