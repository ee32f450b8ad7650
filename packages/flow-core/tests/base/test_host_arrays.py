"""Arrays of other libraries: host memory is viewed, device memory is copied."""

from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import FeedError
from flow_core.base.host_arrays import host_array


@pytest.fixture(autouse=True)
def own_session() -> None:
    flow.clear_default_session()


NUMBERS = np.arange(6, dtype=np.float32).reshape(2, 3)


class OnDevice:
    """An array of a device: numpy cannot view it, DLPack can copy it to the host."""

    shape = NUMBERS.shape

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("implicit conversion to a host array")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self, **options: Any) -> Any:
        self.requests.append(options["dl_device"])
        return NUMBERS.copy().__dlpack__()


class Recording:
    """A tensor that records gradients, and refuses conversion until it is detached."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise RuntimeError("call detach() first")

    def detach(self) -> Any:
        return NUMBERS


class Bfloat16:
    """A tensor of an element type that numpy does not have."""

    dtype = "torch.bfloat16"

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("unsupported ScalarType BFloat16")


def test_device_memory_is_copied_to_the_host() -> None:
    given = OnDevice()
    np.testing.assert_array_equal(host_array(given), NUMBERS)
    assert [tuple(map(int, device)) for device in given.requests] == [(1, 0)]


def test_a_tensor_that_records_gradients_is_detached() -> None:
    assert host_array(Recording()) is NUMBERS


@pytest.mark.parametrize("make", [OnDevice, Recording])
def test_feeds_and_variables_accept_tensors(make: Any) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return x + flow.get_variable("w", (2, 3), initializer=flow.ones_initializer())

    np.testing.assert_array_equal(job(make()), NUMBERS + 1)
    flow.load_variables({"w": make()})
    np.testing.assert_array_equal(job(NUMBERS), 2 * NUMBERS)
    with pytest.raises(FeedError, match=r"(?s)unsupported ScalarType.*tensor\.float\(\)"):
        job(Bfloat16())


def test_results_and_variables_give_dlpack(tmp_path: Any) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))):  # type: ignore[no-untyped-def]
        return x + flow.get_variable("w", (2, 3), initializer=flow.ones_initializer())

    result = job(NUMBERS).get()
    assert np.shares_memory(np.from_dlpack(result), result.numpy())
    flow.checkpoint.save(str(tmp_path / "model"))
    variables = (flow.get_all_variables()["w"], flow.checkpoint.get(str(tmp_path / "model"))["w"])
    for variable in variables:
        np.testing.assert_array_equal(np.from_dlpack(variable), np.ones((2, 3)))
        np.testing.assert_array_equal(np.asarray(variable), np.ones((2, 3)))


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return x + flow.get_variable("w", (2, 3), initializer=flow.ones_initializer())

    given = torch.from_numpy(NUMBERS.copy()).requires_grad_()
    np.testing.assert_array_equal(job(given), NUMBERS + 1)
    np.testing.assert_array_equal(torch.from_dlpack(flow.get_all_variables()["w"]), np.ones((2, 3)))
    with pytest.raises(FeedError, match=r"tensor\.float\(\)"):
        job(given.bfloat16())


def test_arrays_of_jax() -> None:
    jax = pytest.importorskip("jax")

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return x * 2

    np.testing.assert_array_equal(job(jax.numpy.asarray(NUMBERS)), NUMBERS * 2)
    np.testing.assert_array_equal(job(jax.numpy.asarray(NUMBERS, "bfloat16")), NUMBERS * 2)
