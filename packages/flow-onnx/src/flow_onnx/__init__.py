"""Export of predict jobs to ONNX models, the implementation of ``flow.onnx.export``.

In: a predict job, its weights and options. Out: a model file, or an error and no file.
Must not be imported by flow-core or another plugin; import no API, runtime or device module.
"""

__version__ = "0.1.0"
