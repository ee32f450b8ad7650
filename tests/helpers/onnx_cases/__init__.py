"""ONNX models of single nodes and of a few nodes, and the cases of the onnx package."""
