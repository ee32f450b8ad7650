"""Wrong arrays and arguments of a call."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from mistakes import FIXED, PAIR, ZEROS, here, mistake

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import FeedError, InferenceError


def fed() -> Any:
    @flow.global_function()
    def job(
        x: PAIR,
        y: tp.Tuple[PAIR, tp.ListNumpy.Placeholder((4,), dtype=flow.int32)],
    ) -> tp.Numpy:
        return x

    return job


GOOD = (ZEROS, [np.zeros(4, np.int32)])


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((np.zeros((2, 4), np.float32), GOOD), r"'x'.*\n.*\(2, 4\)\n.*\(2, 3\)"),
        ((np.zeros(6, np.float32), GOOD), r"shape \(6,\)\n.*\(2, 3\)"),
        ((np.zeros((2, 3, 1), np.float32), GOOD), r"shape \(2, 3, 1\)"),
        (
            (np.zeros((5, 3), np.float32), GOOD),
            r"leave the batch out.*Placeholder\(\(None, 3\)\)",
        ),
        ((np.full((2, 3), "1"), GOOD), "an array of <U1\n.*float32"),
        ((np.full((2, 3), None), GOOD), "an array of object"),
        (([[0, 0, 0], [0, 0]], GOOD), r"a list of 2, whose conversion(.|\n)*nested lists"),
        (([[0, 0, 0], [0, 0, "0"]], GOOD), r"a list of 2\n.*nested lists of numbers"),
        (([[0, 0, 0], [0, 0, 2**70]], GOOD), r"a list of 2\n.*nested lists of numbers"),
        ((np.full((2, 3), -1e300), GOOD), r"float64 with a number of size 1e\+300\n.*float32"),
        ((np.ma.masked_less(ZEROS, 1), GOOD), r"6 elements are masked\n.*\n.*x\.filled\(0\)"),
        ((None, GOOD), "NoneType"),
        ((b"000000", GOOD), "bytes"),
        (({0: 1}, GOOD), "dict"),
        ((3.0, GOOD), r"shape \(\)\n.*\(2, 3\)"),
        ((ZEROS, ZEROS), "array of float32 and shape"),
        ((ZEROS, (ZEROS,)), "a tuple of 1\n.*2 values"),
        ((ZEROS, (ZEROS, np.zeros(4, np.int32))), r"'y\[1\]'.*\n.*\n.*a list of arrays"),
        ((ZEROS, (ZEROS, [np.zeros(4, np.int32)] * 2)), "a list of 2"),
        ((ZEROS, (ZEROS, [np.array([1, 2, 2**31, 4])])), r"'y\[1\]\[0\]'.*\n.*2147483648\n.*int32"),
        ((ZEROS, (ZEROS, [np.full(4, 2.5)])), r"float64 with the number 2\.5\n.*\n.*astype"),
        ((ZEROS, (ZEROS, [np.full(4, np.nan)])), "with the number nan"),
        ((ZEROS, (ZEROS, [np.zeros(5, np.int32)])), r"shape \(5,\)"),
    ],
)
def test_wrong_arrays(args: Any, text: str) -> None:
    job = fed()
    with mistake(FeedError, text) as line:
        line.append(here(1))
        job(*args)
    np.testing.assert_array_equal(job(ZEROS, GOOD), ZEROS)


def test_numbers_of_other_types_are_cast() -> None:
    job, thirds = fed(), np.full((2, 3), 1 / 3)
    for numbers in (thirds, thirds.astype("f2"), np.ones((2, 3), "i8"), thirds > 0):
        for labels in (np.arange(4), np.arange(4.0), np.arange(4) > 2):
            np.testing.assert_array_equal(job(numbers, (ZEROS, [labels])), numbers.astype("f4"))


class Asked:
    """Gives an array when numpy asks for one, like another framework's tensor."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.array


class Capsule:
    """Gives its data as a DLPack capsule only."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class Refusing:
    """Refuses to be an array, like a tensor of a GPU, or one that wants a gradient."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise RuntimeError("call detach() first")


FORMS = {
    "list": np.ndarray.tolist,
    "tuple": lambda x: tuple(map(tuple, x.tolist())) if x.ndim > 1 else tuple(x.tolist()),
    "list of arrays": list,
    "__array__": Asked,
    "__dlpack__": Capsule,
    "buffer": memoryview,
}


@pytest.mark.parametrize("form", FORMS)
def test_whatever_is_an_array_of_numbers(form: str) -> None:
    convert = FORMS[form]
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    labels = np.arange(4, dtype=np.int32)

    @flow.global_function()
    def job(
        x: PAIR,
        y: tp.Tuple[PAIR, tp.ListNumpy.Placeholder((4,), dtype=flow.int32)],
        z: tp.ListListNumpy.Placeholder((2, 3)),
    ) -> tp.Bundle[tp.Numpy]:
        return [x, y[0]]

    @flow.global_function()
    def plain(x=FIXED):
        return x

    given = convert(numbers)
    for found in (*job(given, (given, [convert(labels)]), [[given]]), plain(given).get().numpy()):
        np.testing.assert_array_equal(found, numbers)


def test_whatever_is_an_array_on_each_of_four_gpus(four_gpus: None) -> None:
    config = flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view())
    flow.config.gpu_device_num(4)

    @flow.global_function(function_config=config)
    def job(x: tp.ListNumpy.Placeholder((2, 3))) -> tp.ListNumpy:
        return x + 1

    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    for found in job([convert(numbers) for convert in (*FORMS.values(),)][:4]):
        np.testing.assert_array_equal(found, numbers + 1)


def test_objects_that_refuse_to_be_arrays() -> None:
    job = fed()
    with mistake(FeedError, "(?s)Refusing.*RuntimeError: call detach") as line:
        line.append(here(1))
        job(Refusing(), GOOD)


def test_variables_are_arrays_for_numpy() -> None:
    @flow.global_function()
    def job(x: PAIR) -> tp.Numpy:
        return x + flow.get_variable("w", shape=(2, 3), initializer=flow.ones_initializer())

    job(ZEROS)
    variable = flow.get_all_variables()["w"]
    ones = np.ones((2, 3), np.float32)
    assert np.asarray(variable).dtype == np.float32
    assert np.array(variable, np.int8, copy=True).dtype == np.int8
    np.testing.assert_array_equal(np.asarray(variable), ones)
    np.testing.assert_array_equal(job(variable), ones + 1)
    with mistake(InferenceError, "copy=False") as line:
        line.append(here(1))
        variable.__array__(copy=False)


def test_results_are_arrays_for_numpy_and_can_be_copied() -> None:
    @flow.global_function()
    def job(x=FIXED):
        return x

    result = job(ZEROS).get()
    assert np.shares_memory(np.asarray(result), result.numpy())
    assert not np.shares_memory(np.array(result, copy=True), result.numpy())
    with pytest.raises(ValueError, match="without a copy"):
        result.__array__(np.int8, copy=False)
    for same in (copy.copy(result), copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        np.testing.assert_array_equal(same.numpy(), ZEROS)


def test_a_smaller_array_in_a_list_is_welcome() -> None:
    job = fed()
    for size in (3, 4, 1):
        np.testing.assert_array_equal(job(ZEROS, (ZEROS, [np.zeros(size, np.int32)])), ZEROS)


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((), {}, "missing a required argument: 'x'"),
        ((ZEROS,), {}, "missing a required argument: 'y'"),
        ((ZEROS, GOOD, ZEROS), {}, "too many positional arguments"),
        ((ZEROS,), {"z": ZEROS, "y": GOOD}, "unexpected keyword argument 'z'"),
        ((ZEROS, GOOD), {"x": ZEROS}, "multiple values for argument 'x'"),
    ],
)
def test_wrong_arguments(args: Any, kwargs: Any, text: str) -> None:
    job = fed()
    with mistake(FeedError, rf"{text}(.|\n)*job\(x, y\)") as line:
        line.append(here(1))
        job(*args, **kwargs)


def test_a_job_without_annotations_needs_its_arguments_too() -> None:
    @flow.global_function()
    def job(x=FIXED):
        return x

    with mistake(FeedError, "missing a required argument") as line:
        line.append(here(1))
        job()
