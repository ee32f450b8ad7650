"""Sorting of long rows, by digits in parts and passes, against numpy's stable sorts."""

from typing import Any

import numpy as np
import pytest
from cuda_cases import CudaKit
from cuda_simulator import host_compiler

from flow_core.testing.checks import query
from flow_core.testing.rig import Rig
from flow_cuda.kernels import order

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
    """Lower the limits so that rows of a hundred elements are long and shared by blocks."""
    monkeypatch.setattr(order, "SHORT", 20)
    monkeypatch.setattr(order, "PART", 64)


def numbers(kind: str, shape: tuple[int, ...]) -> Any:
    rng = np.random.default_rng(len(kind))
    if kind.startswith("float"):
        found = rng.choice([0.0, -0.0, 1.5, -2.25, np.inf, -np.inf, np.nan, 3e-41], shape)
        return np.where(rng.uniform(size=shape) < 0.5, found, rng.normal(size=shape)).astype(kind)
    info = np.iinfo(kind)
    found = rng.choice([info.min, info.max, 0, 1], shape)
    spread = rng.integers(info.min // 2, info.max // 2, shape)
    return np.where(rng.uniform(size=shape) < 0.3, found, spread).astype(kind)


def stable(x: Any, descending: bool) -> Any:
    if not descending:
        return np.argsort(x, -1, kind="stable")
    return x.shape[-1] - 1 - np.argsort(x[..., ::-1], -1, kind="stable")[..., ::-1]


@pytest.mark.parametrize("direction", ["ASCENDING", "DESCENDING"])
@pytest.mark.parametrize(
    "kind", ["float32", "float64", "float16", "int8", "uint8", "int32", "int64"]
)
def test_sorts_are_stable(kind: str, direction: str) -> None:
    x = numbers(kind, (3, 150))
    expected = stable(x, direction == "DESCENDING")
    (found,) = run("arg_sort", (x,), direction=direction)
    np.testing.assert_array_equal(found, expected)
    (values,) = run("sort", (x,), direction=direction)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, -1))


def test_top_elements_of_a_long_row() -> None:
    x = numbers("float32", (2, 2, 90))
    (found,) = run("top_k", (x,), k=7, sorted=True)
    np.testing.assert_array_equal(found, stable(x, True)[..., :7])
    (most,) = run("argmax", (x,))
    np.testing.assert_array_equal(most, np.argmax(x, -1))


def test_random_permutation_is_valid_and_depends_on_the_seed() -> None:
    x = np.zeros((300, 1), np.float32)
    a, b = (
        run("generate_random_batch_permutation_indices", (x,), seed=s, has_seed=True)[0]
        for s in (1, 2)
    )
    np.testing.assert_array_equal(np.sort(a), np.arange(300))
    assert not np.array_equal(a, b)


def test_distinct_values_of_a_long_list() -> None:
    x = np.random.default_rng(0).integers(0, 50, 400).astype(np.int64)
    values, index, count, total = run("unique_with_counts", (x,), out_idx="int64")
    n = int(total[0])
    assert n == len(np.unique(x))
    np.testing.assert_array_equal(values[index], x)
    np.testing.assert_array_equal(count[:n], [(x == v).sum() for v in values[:n]])
    assert not values[n:].any()
    assert not count[n:].any()
    first = [int(np.flatnonzero(x == v)[0]) for v in values[:n]]
    assert first == sorted(first), "in the order of first appearance"


def test_positions_over_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from flow_cuda.kernels import reduce

    monkeypatch.setattr(reduce, "PART", 30)
    x = (np.random.default_rng(0).uniform(size=(20, 21)) < 0.3).astype(np.float32)
    rows, total = run("argwhere", (x,))
    expected = np.argwhere(x)
    assert total[0] == len(expected)
    np.testing.assert_array_equal(rows[: len(expected)], expected)
    assert not rows[len(expected) :].any()


def test_full_token_table_returns_minus_one() -> None:
    table = np.zeros(4, np.int32)
    tokens = np.array([5, 9, 5, 11, 0], np.int32)
    attrs = {"hash_precomputed": True}
    y, kept, size = run("CategoricalOrdinalEncode", (table, np.zeros(1, np.int32), tokens), **attrs)
    assert y.tolist() == [1, 2, 1, -1, 0]
    assert size.tolist() == [2]
    assert sorted(kept.reshape(-1, 2)[:, 0].tolist()) == [5, 9]


def test_label_outside_of_its_part_has_no_position() -> None:
    """The CPU kernel raises; a GPU kernel cannot."""
    weight, label = np.ones((8, 1), np.float32), np.array([0, 1, 2, 7], np.int32)
    attrs = {"num_sample": 4, "parts": 2, "seed": 3}
    place, chosen, _ = run("distributed_partial_fc_sample", (weight, label), **attrs)
    assert place.tolist() == [0, 1, -1, 2]
    assert chosen[:2].tolist() == [0, 1]
    assert chosen[2] == 7
