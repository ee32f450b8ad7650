"""The inference of flow-data's ops agrees with the references."""

from __future__ import annotations

import pytest

from flow_core.testing import InferKit

pytestmark = pytest.mark.arithmetic


class TestInference(InferKit):
    plugin = "flow-data"
