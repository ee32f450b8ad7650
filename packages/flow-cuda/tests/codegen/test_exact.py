"""Device-only code on the host, by exact models of the instructions, against numpy."""

import pytest
from cuda_exact import half_errors, integer_errors, philox_errors
from cuda_simulator import host_compiler
from cuda_simulator.hardware import Simulator

from flow_cuda.driver.gpu import GpuDriver

pytestmark = pytest.mark.skipif(
    host_compiler.compiler() is None, reason="no C++ compiler to run the kernels with"
)


@pytest.fixture
def driver() -> GpuDriver:
    return GpuDriver(Simulator())


def test_all_halves_convert_as_in_numpy(driver: GpuDriver) -> None:
    assert half_errors(driver) == []


def test_floats_out_of_range_become_the_least_integer(driver: GpuDriver) -> None:
    assert integer_errors(driver) == []


def test_philox_agrees_with_numpy(driver: GpuDriver) -> None:
    assert philox_errors(driver, 50_000) == 0
