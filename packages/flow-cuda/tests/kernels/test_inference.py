"""The inference of flow-cuda's ops agrees with the references."""

from __future__ import annotations

import pytest

from flow_core.testing import InferKit

pytestmark = pytest.mark.arithmetic


class TestInference(InferKit):
    plugin = "flow-cuda"
    other_types = dict.fromkeys(
        ("cudnn_attention", "cudnn_conv_sums", "cudnn_norm", "cudnn_norm_grad"),
        "statistics are float32, as in cuDNN",
    )
