"""Plugin entry point: the ONNX exporter and importer."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from flow_core.authoring.specs import ExporterSpec, FormatSpec

FLOW_PLUGIN_API = "1.0"


def flow_register_exporters() -> tuple[ExporterSpec, ...]:
    """Return the exporter of ``flow.onnx.export``, and the importer of ``flow.onnx.load``."""
    return (ExporterSpec("onnx", "flow_onnx.export:write", "flow_onnx.load:read"),)


def _is_model(path: Path) -> bool:
    """Return whether a path is a file with the suffix of ONNX models."""
    return Path(path).suffix == ".onnx" and Path(path).is_file()


def flow_register_checkpoint_formats() -> tuple[FormatSpec, ...]:
    """Return the reader of the weights of models, for ``flow.weights.load``."""
    return (FormatSpec("onnx", _is_model, "flow_onnx.weights:read", file="model.onnx"),)


def flow_doctor() -> list[str]:
    """Return the version of the onnx library."""
    return [f"onnx {version('onnx')}"]
