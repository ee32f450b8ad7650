"""The records that the plugin registers."""

from flow_core.authoring.specs import ExporterSpec

FLOW_PLUGIN_API = "1.0"


def flow_register_exporters():
    """Return the exporter to Graphviz."""
    return [ExporterSpec("dot", "flow_dot.export:write")]
