"""The kernel kit binds numbers as host arrays where a device asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from opaque_devices import OpaquePlugin, core_registry, opaque_registry

from flow_core.plugins.registry import Registry
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec
from flow_core.testing import KernelKit

PLUGIN = OpaquePlugin(core_registry(), host_numbers=True)
"""Binding checks which inputs are in host memory."""


class Updates:
    """Kernels of two updates."""

    FLOW_PLUGIN_API = "1.0"
    __name__ = "updates"

    def __init__(self, bind: Any) -> None:
        self._bind = bind

    def flow_register_kernels(self) -> Iterator[KernelSpec]:
        for op in ("sgd_update", "lars_update"):
            yield KernelSpec(op, "opaque", self._bind, is_float32, 1, PLUGIN.workspace, "late")


def is_float32(query: KernelQuery) -> bool:
    return query.inputs[0].dtype.name == query.inputs[1].dtype.name == "float32"


class TestUpdates(KernelKit):
    plugin = "updates"
    device_type = "opaque"
    dtypes = ("float32",)

    def registry(self) -> Registry:
        return opaque_registry(Updates(PLUGIN.bind), host_numbers=True)

    def parameters(self, check: str) -> Iterator[tuple[str, ...]]:
        """Leave infinite numbers to the tests of numpy's kernels, which run here."""
        return iter(()) if check == "special_values" else super().parameters(check)


def bind_early(ctx: BindContext) -> Any:
    """Read the learning rate when the kernel is bound."""
    rate = np.array(ctx.inputs[2].item(), np.float32)
    return PLUGIN.bind(replace(ctx, inputs=(*ctx.inputs[:2], rate, *ctx.inputs[3:])))


def test_reading_a_number_when_it_is_bound_is_found() -> None:
    class Early(TestUpdates):
        __test__ = False

        def registry(self) -> Registry:
            return opaque_registry(Updates(bind_early), host_numbers=True)

    with pytest.raises(AssertionError):
        Early().test_agrees("sgd_update", "float32")
