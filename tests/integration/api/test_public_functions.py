"""Public functions give what numpy gives: on one device, on two, and in both views."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import public_arrays
import public_layers
import public_math
import public_nn
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.api import array, math, nn
from flow_core.api.math import linalg
from flow_core.api.nn import layers
from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import FlowError, PluginError
from flow_core.frontend.trace.emit import emit

FAMILIES = (public_math, public_arrays, public_nn, public_layers)
CALLS: dict[str, public_math.Call] = {k: v for family in FAMILIES for k, v in family.CALLS.items()}

ELSEWHERE = {
    "cond": "takes functions: test_cond",
    "nn.Module": "a class",
    "nn.random_mask_like": "random: test_dropout",
    "scan": "takes a function: test_scan",
}
"""Functions without a call in the tables, and where they are tested."""
ROW = """have no call: add a row to a table of tests/helpers/public_math.py, public_arrays.py,
public_nn.py or public_layers.py, such as this one of UNARY, the argument and the numpy function:
    "square": (X, np.square),"""

pytestmark = [pytest.mark.arithmetic, pytest.mark.usefixtures("four_gpus")]


def test_every_function_is_called() -> None:
    modules = {"linalg": linalg, "layers": layers, "math": math, "nn": nn}
    names = {f"{m}.{name}" for m, module in modules.items() for name in module.__all__}
    names |= set(array.__all__)
    called = {key.split(":")[0] for key in CALLS}
    called |= {f"math.{name}" for name in called}  # some are at the top level, too
    missing = sorted(names - called - set(ELSEWHERE))
    assert not missing, "\n".join((*missing, ROW))
    assert set(ELSEWHERE) <= names - called


def settings(place: tuple[str, str], mirrored: bool = False) -> Any:
    found = flow.function_config()
    found.default_placement_scope(flow.scope.placement(*place))
    if mirrored:
        found.default_logical_view(flow.scope.mirrored_view())
    return found


def computed(function: Any, arrays: Any, results: int, config: Any, mirrored: bool = False) -> Any:
    """What a job of the function gives: a tuple of arrays, or of lists of them."""
    kind: Any = tp.ListNumpy if mirrored else tp.Numpy

    def job(xs: Any) -> Any:
        found = function(*xs)
        return tuple(found) if isinstance(found, list | tuple) else (found,)

    places = [kind.Placeholder(x.shape, dtype=as_dtype(x.dtype)) for x in arrays]
    job.__annotations__ = {"xs": tuple[*places], "return": tuple[*[kind] * results]}
    if not arrays:
        job = no_arguments(job, results, kind)
    started = flow.global_function(function_config=config)(job)
    each = [[x, x] if mirrored else x for x in arrays]
    return started(tuple(each)) if arrays else started()


def no_arguments(job: Any, results: int, kind: Any) -> Any:
    def source() -> Any:
        return job(())

    source.__annotations__ = {"return": tuple[*[kind] * results]}
    return source


def as_tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def assert_same(found: Any, wanted: Any, tolerance: float = 2e-5) -> None:
    assert found.shape == wanted.shape
    if wanted.dtype.kind != "f":
        assert found.dtype == wanted.dtype
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))
    np.testing.assert_allclose(
        found.astype("f8"), wanted.astype("f8"), rtol=tolerance, atol=tolerance * scale
    )


def expected(key: str, arrays: Any) -> tuple[Any, ...]:
    with np.errstate(all="ignore"):
        return tuple(np.asarray(y) for y in as_tuple(CALLS[key][2](*arrays)))


PLACES = [pytest.param(("cpu", "0:0"), id="one", marks=pytest.mark.exhaustive), ("gpu", "0:0-1")]


@pytest.mark.parametrize("key", CALLS)
@pytest.mark.parametrize("place", PLACES)
def test_a_function_is_numpy_s(key: str, place: tuple[str, str]) -> None:
    function, arrays, _ = CALLS[key]
    wanted = expected(key, arrays)
    found = computed(function, arrays, len(wanted), settings(place))
    for y, w in zip(found, wanted, strict=True):
        assert_same(y, w)


@pytest.mark.exhaustive
@pytest.mark.parametrize("key", CALLS)
def test_in_the_mirrored_view(key: str) -> None:
    function, arrays, _ = CALLS[key]
    wanted = expected(key, arrays)
    config = settings(("gpu", "0:0-1"), mirrored=True)
    for pair, w in zip(
        computed(function, arrays, len(wanted), config, mirrored=True), wanted, strict=True
    ):
        for y in pair:
            assert_same(y, w)


@pytest.mark.exhaustive
@pytest.mark.parametrize("key", CALLS)
@pytest.mark.parametrize(("name", "tolerance"), [("float16", 3e-2), ("float64", 1e-9)])
def test_other_floating_types(key: str, name: str, tolerance: float) -> None:
    function, arrays, _ = CALLS[key]
    if not any(x.dtype == np.float32 for x in arrays):
        pytest.skip("no floating argument")
    others = [x.astype(name) if x.dtype == np.float32 else x for x in arrays]
    wanted = expected(key, others)
    found = computed(function, others, len(wanted), settings(("cpu", "0:0")))
    for y, w in zip(found, wanted, strict=True):
        assert_same(y, w, tolerance)
        if w.dtype.kind == "f" and key not in GIVES_ITS_OWN:
            assert y.dtype == name


GIVES_ITS_OWN = ("cast: to int8 and back", "cast: to double", "ones_like")


@pytest.mark.slow
@pytest.mark.parametrize("key", [key for key, call in CALLS.items() if call[1]])
def test_blobs_without_elements_are_computed_or_refused_by_flow(key: str) -> None:
    function, arrays, _ = CALLS[key]
    results = len(expected(key, arrays))
    for axis, index in product(range(max(x.ndim for x in arrays)), range(-1, len(arrays))):

        def emptied(*xs: Any, axis: int = axis, index: int = index) -> Any:
            chosen = [len(x.shape) > axis and index in (-1, i) for i, x in enumerate(xs)]
            pairs = zip(xs, chosen, strict=True)
            return function(*(without_elements(x, axis) if is_one else x for x, is_one in pairs))

        flow.clear_default_session()
        raised = refusal(emptied, arrays, results)
        assert not isinstance(raised, PluginError), raised
        assert raised is None or isinstance(raised.__cause__, FlowError | None), raised


def refusal(function: Any, arrays: Any, results: int) -> FlowError | None:
    """Return the error of a job of the function, or None."""
    try:
        computed(function, arrays, results, settings(("cpu", "0:0")))
    except FlowError as error:
        return error
    return None


def without_elements(x: Any, axis: int) -> Any:
    """Return a part of a blob that has no elements: parameters of jobs must have some."""
    return emit("split", x, axis=axis, sizes=(0, x.shape[axis]))[0]


def test_tokens_are_numbered_as_they_come() -> None:
    tokens = np.array([[7, 0], [5, 7]])
    config = settings(("gpu", "0:0-1"))
    (found,) = computed(
        lambda x: flow.layers.categorical_ordinal_encoder(x, 16), (tokens,), 1, config
    )
    np.testing.assert_array_equal(found, [[1, 0], [2, 1]])


RETURNED = {"cast_to_static_shape", "concat: one", "nn.dropout"}
"""Calls that return their argument itself."""


@pytest.mark.representative(
    r"\[(math.reduce_mean: None|nn.conv2d_transpose|nn.BCELoss: weight|nn.GroupNorm)\]",
    "functions that read the sizes of a blob",
)
@pytest.mark.parametrize(
    "key", [key for key, call in CALLS.items() if call[1] and key not in RETURNED]
)
def test_one_array_is_divided_in_the_mirrored_view(key: str) -> None:
    function, arrays, _ = CALLS[key]
    wanted = expected(key, arrays)
    config = settings(("gpu", "0:0-1"), mirrored=True)
    pairs = divided(function, arrays, len(wanted), config)
    for pair, w in zip(pairs, wanted, strict=True):
        for y in pair:
            assert_same(y, w)


def divided(function: Any, arrays: Any, results: int, config: Any) -> Any:
    """What a job gives that is fed arrays whose halves are the given ones."""
    doubled = [np.concatenate([x, x]) for x in arrays]

    def job(xs: Any) -> Any:
        found = function(*xs)
        return tuple(found) if isinstance(found, list | tuple) else (found,)

    places = [tp.Numpy.Placeholder(x.shape, dtype=as_dtype(x.dtype)) for x in doubled]
    job.__annotations__ = {"xs": tuple[*places], "return": tuple[*[tp.ListNumpy] * results]}
    return flow.global_function(function_config=config)(job)(tuple(doubled))
