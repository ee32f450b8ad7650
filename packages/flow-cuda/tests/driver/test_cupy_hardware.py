"""The CuPy device, as far as it can be tested without a GPU."""

import contextlib
import sys
from types import SimpleNamespace
from typing import ClassVar

import pytest

from flow_cuda.driver.cupy_hardware import dnn_plans


class Device(contextlib.nullcontext):  # type: ignore[type-arg]
    """A CuPy device."""

    attributes: ClassVar[dict[str, int]] = {"MultiProcessorCount": 132}
    compute_capability = "90"


@pytest.mark.parametrize("error", [AttributeError, TypeError, RuntimeError, OSError])
def test_cudnn_that_does_not_start_is_a_warning(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise error("no cudnnCreate")

    fake = SimpleNamespace(cuda=SimpleNamespace(Device=lambda _: Device()))
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr("flow_cuda.driver.cupy_hardware.CupyBench", lambda _: None)
    monkeypatch.setitem(sys.modules, "cudnn", SimpleNamespace(create_handle=broken))
    with pytest.warns(RuntimeWarning, match="cuDNN failed to initialize.*no cudnnCreate"):
        assert dnn_plans.__wrapped__(0) is None
