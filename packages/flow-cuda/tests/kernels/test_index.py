"""Scatters with repeated indices."""

from typing import Any

import numpy as np
import pytest
from cuda_cases import on_device, simulated_registry
from cuda_simulator import host_compiler
from cuda_simulator.hardware import Simulator

from flow_core.base.dtypes import as_dtype
from flow_core.ir.graph import tensor_type
from flow_core.plugins.specs import BindContext, KernelQuery
from flow_cuda.driver.gpu import GpuDriver
from flow_cuda.kernels import index

pytestmark = pytest.mark.skipif(
    host_compiler.compiler() is None, reason="no C++ compiler to run the kernels with"
)


@pytest.mark.representative(r"\[3\]", "rows of several elements, which different threads write")
@pytest.mark.parametrize("inner", [1, 3])
def test_last_of_several_updates_wins(inner: int) -> None:
    """As in numpy, also if different blocks write the updates."""
    driver, rng = GpuDriver(Simulator()), np.random.default_rng(0)
    table, updates = (rng.normal(size=(n, inner)).astype(np.float32) for n in (5, 400))
    rows = rng.integers(-1, 6, size=(400, 1))
    wanted, inside = table.copy(), (rows[:, 0] >= 0) & (rows[:, 0] < 5)
    wanted[rows[inside, 0]] = updates[inside]
    op = "tensor_scatter_nd_update"
    attrs = simulated_registry().ops[op].attrs
    types = tuple(tensor_type(x.shape, as_dtype(x.dtype)) for x in (table, updates, rows))
    query = KernelQuery(op, attrs, types, (types[0],))
    spec = next(k for k in index.KERNELS if k.op == op)
    assert spec.workspace is not None
    inputs = tuple(on_device(driver, x) for x in (table, updates, rows))
    out = on_device(driver, np.zeros_like(table))
    workspace = driver.allocate(spec.workspace(query)).view(0, (spec.workspace(query),), np.uint8)
    bind: Any = spec.load
    for launch in bind(BindContext(query, inputs, (out,), workspace)):
        launch()
    np.testing.assert_array_equal(driver.copy_out(out), wanted)
