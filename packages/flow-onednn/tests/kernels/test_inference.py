"""The inference of flow-onednn's ops agrees with the references."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flow_core.base.config import Settings
from flow_core.plugins.host import load_plugins
from flow_core.plugins.registry import Registry
from flow_core.testing import InferKit

pytestmark = pytest.mark.arithmetic


class TestInference(InferKit):
    plugin = "flow-onednn"
    other_types = {  # noqa: RUF012 - declared by the kit and never changed
        "onednn_norm_add_relu": "statistics are float32, as in the library",
    }

    def registry(self) -> Registry:
        return load_plugins(replace(Settings.from_env(), disabled_plugins=()))
