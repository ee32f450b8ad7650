"""The plugin of flow-data.  It registers no readers or decoders yet."""

from __future__ import annotations

FLOW_PLUGIN_API = "1.0"
