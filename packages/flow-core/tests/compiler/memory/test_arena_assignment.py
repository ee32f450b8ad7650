"""Offsets in arenas have the alignment of the device type."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from flow_core.base.config import Settings
from flow_core.base.dtypes import uint8
from flow_core.base.errors import FlowError
from flow_core.builtin.numpy_driver import NumpyDriver
from flow_core.compiler.memory.arena_assignment import Buffers, place
from flow_core.ir.graph import tensor_type
from flow_core.plan import Buffer
from flow_core.plugins.host import load_plugins
from flow_core.plugins.specs import Available, DeviceSpec
from flow_core.sharding.topology import Device


@pytest.mark.parametrize("alignment", [64, 256, 4096])
@pytest.mark.parametrize("count", [40, 400])  # placed by a loop, and by array operations
def test_offsets_are_aligned(alignment: int, count: int) -> None:
    rng, buffers = np.random.default_rng(0), Buffers()
    device, other = Device("wide", 0, 0), Device("cpu", 0, 0)
    for i in range(count):
        first = int(rng.integers(0, 50))
        type_ = tensor_type((int(rng.integers(1, 900)),), uint8)
        where = other if i % 5 == 0 else device
        buffers.add(Buffer(f"b{i}", 0, "temp", where, -1, type_, first, first + 5))
    arenas, placed = place(
        buffers, {}, None, lambda _, __: False, lambda d: alignment if d == device else 64
    )
    offsets = [b.offset for b in placed if b.device == device]
    assert all(offset % alignment == 0 for offset in offsets)
    assert any(offset for offset in offsets)
    sizes = {a.device: a.nbytes for a in arenas}
    for b in placed:
        assert b.offset + b.type.nbytes <= sizes[b.device]
        for c in placed:
            apart = b.offset + b.type.nbytes <= c.offset or c.offset + c.type.nbytes <= b.offset
            assert apart or b is c or b.device != c.device or b.first > c.last or c.first > b.last


@pytest.mark.parametrize("bad", [0, 32, 96, "64", True])
def test_alignment_of_a_device_is_checked(bad: object) -> None:
    spec = DeviceSpec("wide", lambda: Available(1), NumpyDriver, alignment=bad)  # type: ignore[arg-type]
    module: Any = ModuleType("wide")
    module.FLOW_PLUGIN_API = "1.0"
    module.flow_register_devices = lambda: [spec]
    with pytest.raises(FlowError, match="a power of two, at least 64"):
        load_plugins(replace(Settings(plugins=()), plugin_strict=True), [module])
