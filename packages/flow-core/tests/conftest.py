"""Tests use the core's own kernels, whichever other packages are installed."""

import os

os.environ.setdefault("FLOW_DISABLE_PLUGINS", "flow-onednn")
