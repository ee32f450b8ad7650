"""The inference of flow-cuda's ops agrees with the references."""

from __future__ import annotations

import pytest
from cuda_references import with_references

from flow_core.plugins.host import load_plugins
from flow_core.plugins.registry import Registry
from flow_core.testing import InferKit

pytestmark = pytest.mark.arithmetic


class TestInference(InferKit):
    plugin = "flow-cuda"

    def registry(self) -> Registry:
        return with_references(load_plugins())

    other_types = dict.fromkeys(
        ("cudnn_attention", "cudnn_norm", "cudnn_norm_grad"),
        "statistics are float32, as in cuDNN",
    )
