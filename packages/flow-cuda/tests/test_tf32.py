"""Rounding of float32 for tensor cores: set by the program and recorded in the plan."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cuda_cases import Collector, simulated_registry
from cuda_simulator import host_compiler, plugin

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import ConfigError
from flow_core.frontend.session import session as sessions
from flow_core.plan import Plan
from flow_cuda.device.hardware import Product
from flow_cuda.driver.cublaslt import IN_FLOAT32, IN_FLOAT64, IN_TF32, compute_type

pytestmark = pytest.mark.skipif(
    host_compiler.compiler() is None, reason="no simulated devices without a C++ compiler"
)
REGISTRY = simulated_registry()
IMAGES = np.random.default_rng(0).uniform(0, 1, (2, 3, 6, 6)).astype(np.float32)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[sessions.Session]:
    """Create a session whose kernels do nothing but whose library products run."""
    monkeypatch.setattr(plugin, "compiler", Collector)
    before = list(sessions._default)
    sessions._default[:] = [sessions.Session(REGISTRY)]
    yield sessions._default[0]
    sessions._default[:] = before


def job() -> Any:
    """Build a convolution and a product with a bias, forward and backward."""

    @flow.global_function("train")
    def trained(x: tp.Numpy.Placeholder(IMAGES.shape)) -> tp.Numpy:
        with flow.scope.placement("gpu", "0:0"):
            y = flow.layers.conv2d(x, 4, 3, padding="SAME", name="conv")
            ones = flow.ones_initializer()
            rows = flow.reshape(y, (2, -1))
            y = flow.layers.dense(rows, 5, flow.nn.relu, kernel_initializer=ones, name="dense")
            loss = flow.math.reduce_mean(y)
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(rate, momentum=0).minimize(loss)
        return loss

    return trained


def summed_in(session: sessions.Session, trained: Any) -> set[int]:
    """Return the compute types requested from the library in a step."""
    trained(IMAGES)
    (driver,) = session._drivers.values()
    found: set[int] = driver.hardware.products._library.summed_in
    return found


@pytest.mark.parametrize(
    ("said", "wanted"), [(None, IN_TF32), (True, IN_TF32), (False, IN_FLOAT32)]
)
def test_products_use_the_compute_type_of_the_program(
    session: sessions.Session, said: bool | None, wanted: int
) -> None:
    if said is not None:
        flow.config.enable_tensor_float_32_compute(said)
    assert summed_in(session, job()) == {wanted}


@pytest.mark.parametrize(("dtype", "wanted"), [("float16", IN_FLOAT32), ("float64", IN_FLOAT64)])
def test_other_types_are_not_rounded(dtype: str, wanted: int) -> None:
    assert compute_type(Product(2, 2, 2, False, False, dtype, tf32=True)) == wanted


def test_setting_is_recorded_in_the_plan(session: sessions.Session) -> None:
    plans = []
    for said in (True, False):
        sessions._default[:] = [sessions.Session(REGISTRY)]
        flow.config.enable_tensor_float_32_compute(said)
        plans.append(job().plan())
    assert plans[0] != plans[1]
    for plan, said in zip(plans, (True, False), strict=True):
        assert plan.settings["enable_tensor_float_32_compute"] is said
        assert Plan.from_json(plan.to_json()) == plan


def test_setting_applies_to_jobs_compiled_later(session: sessions.Session) -> None:
    first = job()
    assert summed_in(session, first) == {IN_TF32}
    flow.config.enable_tensor_float_32_compute(False)
    assert summed_in(session, first) == {IN_TF32}


def test_invalid_values_are_rejected() -> None:
    with pytest.raises(ConfigError, match="True or False"):
        flow.config.enable_tensor_float_32_compute(1)
