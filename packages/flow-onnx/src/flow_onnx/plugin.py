"""The plugin of flow-onnx."""

from __future__ import annotations

from importlib.metadata import version

from flow_core.authoring.specs import ExporterSpec

FLOW_PLUGIN_API = "1.0"


def flow_register_exporters() -> tuple[ExporterSpec, ...]:
    """The exporter behind ``flow.onnx.export``."""
    return (ExporterSpec("onnx", "flow_onnx.export:write"),)


def flow_doctor() -> list[str]:
    """The version of the library."""
    return [f"onnx {version('onnx')}"]
