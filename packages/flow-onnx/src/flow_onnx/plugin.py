"""Plugin entry point: the ONNX exporter and importer."""

from __future__ import annotations

from importlib.metadata import version

from flow_core.authoring.specs import ExporterSpec

FLOW_PLUGIN_API = "1.0"


def flow_register_exporters() -> tuple[ExporterSpec, ...]:
    """Return the exporter of ``flow.onnx.export``, and the importer of ``flow.onnx.load``."""
    return (ExporterSpec("onnx", "flow_onnx.export:write", "flow_onnx.load:read"),)


def flow_doctor() -> list[str]:
    """Return the version of the onnx library."""
    return [f"onnx {version('onnx')}"]
