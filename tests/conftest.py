"""Tests describe the core's own kernels, whichever other packages are installed beside it."""

import os

os.environ.setdefault("FLOW_DISABLE_PLUGINS", "flow-onednn")
