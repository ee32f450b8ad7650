"""The inference of the core's ops agrees with the references."""

from __future__ import annotations

import pytest

from flow_core.testing import Gap, InferKit

pytestmark = pytest.mark.arithmetic


class TestInference(InferKit):
    plugin = "core.ops"
    other_types = {  # noqa: RUF012 - declared by the kit and never changed
        **dict.fromkeys(("layer_norm", "normalization"), "statistics are at least float32"),
        "square_sum": "sums in float64 whatever the inputs are",
    }
    gaps = (Gap("python_kernel", "never", "is a function", ("types", "shapes_at_other_sizes")),)
