"""Copies between host arrays and staging buffers."""

import threading
from typing import Any

import numpy as np
import processes
import pytest
from cuda_simulator.hardware import Simulator

from flow_cuda.device import staging
from flow_cuda.driver.gpu import GpuDriver


def test_threads_share_large_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    names = set()
    everyone = threading.Barrier(2, timeout=processes.scaled(60))
    copyto = np.copyto

    def noted(target: Any, source: Any) -> None:
        names.add(threading.current_thread().name)
        if target.size >= staging.SHARE:
            everyone.wait()
        copyto(target, source)

    monkeypatch.setattr(staging, "HELPERS", 2)
    monkeypatch.setattr(staging.np, "copyto", noted)
    staging._helpers.cache_clear()
    driver = GpuDriver(Simulator(), chunk=2 * staging.SHARE)
    values = np.arange(staging.SHARE, dtype=np.float32)
    made = driver.allocate(values.nbytes).view(0, values.shape, values.dtype)
    driver.copy_in(made, values)
    np.testing.assert_array_equal(driver.copy_out(made), values)
    assert {name[:-2] for name in names} == {"flow-cuda-staging"}
    staging._helpers.cache_clear()
