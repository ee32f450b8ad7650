"""Predict jobs as ONNX models: what ``flow.onnx.export`` calls.

An op of a job becomes one node of ONNX, or a few: `flow_onnx.emitters` has a function per op type,
`flow_onnx.emission` what these functions see, `flow_onnx.network` puts the nodes together, and
`flow_onnx.files` writes the model.
"""

__version__ = "0.1.0"
