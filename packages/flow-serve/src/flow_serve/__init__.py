"""The command ``flow serve``: saved models and ONNX models over HTTP, by the KServe v2 protocol.

In: a folder of models.  Out: a server.  One process answers requests and forms batches; worker
processes compute them.  Only workers import ``oneflow``.
Must not be imported by flow-core or another plugin.
"""

__version__ = "0.1.0"
