"""The kernels against the ops' references, by the kit."""

from __future__ import annotations

import pytest

from flow_core.testing.kernels import KernelKit
from flow_onednn.library import Missing, state
from flow_onednn.plugin import flow_register_kernels

_STATE = state()
pytestmark = pytest.mark.skipif(
    isinstance(_STATE, Missing), reason=f"no oneDNN: {getattr(_STATE, 'reason', '')}"
)


OPAQUE = ("onednn_max_pool", "onednn_max_pool_grad", "onednn_norm_relu", "onednn_norm_relu_grad")
"""Ops with an output in the library's own form; test_pairs.py has them."""


class TestKernels(KernelKit):
    plugin = "flow-onednn"
    dtypes = ("float32",)
    ops = tuple(sorted({k.op for k in flow_register_kernels()} - set(OPAQUE)))
