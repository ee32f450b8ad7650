"""Sorting by digits, in parts and passes, argmax, and updates of indexed rows, against numpy."""

from typing import Any

import numpy as np
import pytest
from cuda_cases import CudaKit, on_device
from cuda_simulator import host_compiler
from cuda_simulator.hardware import Simulator

from flow_core.base.dtypes import as_dtype
from flow_core.ir.graph import tensor_type
from flow_core.testing.checks import query
from flow_core.testing.rig import Rig
from flow_cuda.driver.gpu import GpuDriver
from flow_cuda.kernels import order
from flow_cuda.kernels.order import Sorting

pytestmark = pytest.mark.skipif(
    host_compiler.compiler() is None, reason="no C++ compiler to run the kernels with"
)


class Kit(CudaKit):
    preloaded = False


def run(op: str, arrays: tuple[Any, ...], **attrs: Any) -> list[Any]:
    """Return the outputs and the mutated inputs of one launch."""
    registry = Kit.shared_registry()
    spec = registry.ops[op]
    asked = query(spec, arrays, {**spec.attrs, **attrs})
    rig = Rig(Kit().driver(), registry.find_kernel(asked, "gpu"), asked, mutates=spec.mutates)
    image = rig.run(arrays)
    return [result.read(image) for result in rig._results]


@pytest.fixture(autouse=True)
def many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limit so that several blocks share a hundred keys."""
    monkeypatch.setattr(order, "PART", 64)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", "int64"])
def test_sorts_are_stable(kind: str) -> None:
    rng, info = np.random.default_rng(len(kind)), np.iinfo(kind)
    ends = rng.choice([info.min, info.max, 0, 1], 450)
    spread = rng.integers(info.min // 2, info.max // 2, 450)
    x = np.where(rng.uniform(size=450) < 0.3, ends, spread).astype(kind)
    driver, type_ = GpuDriver(Simulator()), tensor_type(x.shape, as_dtype(kind))
    sort = Sorting.of(type_)
    buffers = tuple(on_device(driver, np.zeros(*buffer)) for buffer in sort.buffers)
    launches, _, places = sort.order(on_device(driver, x), type_.dtype, buffers)
    for launch in launches:
        launch()
    np.testing.assert_array_equal(driver.copy_out(places), np.argsort(x, kind="stable"))


def test_argmax_of_special_values() -> None:
    rng = np.random.default_rng(7)
    some = rng.choice([0.0, -0.0, 1.5, np.inf, -np.inf, np.nan, 3e-41], (2, 2, 90))
    normal = rng.normal(size=some.shape)
    x = np.where(rng.uniform(size=some.shape) < 0.5, some, normal).astype(np.float32)
    (most,) = run("argmax", (x,))
    np.testing.assert_array_equal(most, np.argmax(x, -1))


def test_repeated_rows_are_summed_in_the_order_of_the_batch() -> None:
    rng = np.random.default_rng(0)
    model, values = (rng.normal(size=(n, 3)).astype(np.float32) for n in (50, 400))
    index, rate = rng.integers(0, 50, 400), np.array(0.1, np.float32)
    (found,) = run("indexed_slices_sgd_update", (model, index, values, rate))
    sums = np.zeros_like(model)
    np.add.at(sums, index, values)
    np.testing.assert_allclose(found, model - rate * sums, rtol=1e-5, atol=1e-6)
