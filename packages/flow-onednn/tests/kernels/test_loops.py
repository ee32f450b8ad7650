"""The C loops against the numpy kernels, and the compiler."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import processes
import pytest

from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import DataError
from flow_core.ir.graph import Attrs, TensorType, tensor_type
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import KernelQuery, KernelSpec
from flow_core.testing.checks import run_kernel
from flow_core.testing.special import Aspect, difference, values_of
from flow_onednn.kernels.elementwise import patterns
from flow_onednn.native import compiler
from flow_onednn.native.expressions import MOST_SCALARS, SCALARS, TABLE, Loop, Step, write

pytestmark = pytest.mark.skipif(
    not compiler.available(), reason=f"no C compiler: {compiler.state()}"
)


def query_of(op: str, attrs: dict[str, Any], arrays: list[Any], *outputs: Any) -> KernelQuery:
    def type_of(array: Any) -> TensorType:
        return tensor_type(array.shape, as_dtype(array.dtype))

    registry = default_registry()

    def find(query: KernelQuery) -> KernelSpec:
        return registry.find_kernel(query, "cpu")

    types = tuple(map(type_of, arrays))
    return KernelQuery(op, Attrs(attrs), types, tuple(map(type_of, outputs)), find)


def both(query: KernelQuery, arrays: list[Any], **options: Any) -> Iterator[Any]:
    """Return results and mutated inputs of our kernel and of numpy's."""
    for prefix in ("c.", "numpy."):
        kernels = default_registry().kernels(query.op, "cpu")
        (kernel,) = [k for k in kernels if k.name.startswith(prefix)]
        assert kernel.accepts is None or kernel.accepts(query)
        own = [a.copy() for a in arrays]
        yield (*run_kernel(kernel, query, own, **options), *own)


def random(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).uniform(0.1, 2, shape).astype(np.float32)


@pytest.mark.parametrize("op", SCALARS)
def test_loops_that_differ_in_a_scalar_share_their_code(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.float32([-1, -0.0, 0.5, 2])
    arrays = [x, np.int8([1, 0, 1, 1])] if op.startswith("dropout") else [x, x[::-1].copy()]
    arrays = arrays[: 1 if op in ("leaky_relu", "scalar_add", "scalar_mul") else 2]
    texts = set()
    built = compiler.compiled
    monkeypatch.setattr(
        compiler, "compiled", lambda text, cdef: texts.add(text) or built(text, cdef)
    )
    for value in (0.3, -2.0, 1e30, 0.0):
        names = dict.fromkeys(SCALARS[op], value)
        attrs = {"name": "x", **names} if op.startswith("dropout") else names
        (ours, *_), (theirs, *_) = both(query_of(op, attrs, arrays, x), arrays)
        np.testing.assert_array_equal(ours, theirs)
    assert len(texts) == 1


@pytest.mark.parametrize(("count", "constant"), [(MOST_SCALARS, False), (MOST_SCALARS + 1, True)])
def test_scalars_beyond_the_registers_are_constants(count: int, constant: bool) -> None:
    steps = tuple(Step("scalar_mul", (k - 1,)) for k in range(count))
    loop = Loop(steps, (count - 1,), ("float",), ("float",), ((True,),))
    text = write(loop, [1.5] * count)
    assert ("c[0]" in text, "0x1.8000000000000p+0f" in text) == (not constant, constant)


@pytest.mark.parametrize(("op", "states"), [("sgd", 0), ("momentum", 1), ("adam", 2)])
@pytest.mark.parametrize("size", [5, 40_000])
@pytest.mark.parametrize("scaled", [False, True])
def test_updates(op: str, states: int, size: int, scaled: bool) -> None:
    extra = {
        "sgd": {}, "momentum": {"beta": 0.8},
        "adam": {"beta1": 0.8, "beta2": 0.99, "epsilon": 1e-6},
    }[op]  # fmt: skip
    attrs = {"scale": 0.5, "l1": 0.1, "l2": 0.2, "weight_decay": 0.01, **extra}
    arrays = [random(i, size) for i in range(2)] + [np.array(0.1, np.float32)]
    arrays += [random(7 + i, size) for i in range(states)]
    arrays += [np.array(0.3, np.float32)] if scaled else []
    arrays[0] -= 1
    ours, numpy = both(query_of(f"{op}_update", attrs, arrays), arrays)
    for have, want in zip(ours, numpy, strict=True):
        np.testing.assert_allclose(have, want, 1e-5, 1e-6)


@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize("size", [1, 9, 50_001])
def test_masks_have_the_bits_of_the_numpy_kernel(step: int, size: int) -> None:
    like, mask = random(1, size), np.zeros(size, np.int8)
    attrs = {"rate": 0.3, "seed": None, "place": None}
    ours, numpy = both(
        query_of("random_mask_like", attrs, [like], mask), [like], seed=77, step=step
    )
    np.testing.assert_array_equal(ours[0], numpy[0])


def member(op: str, refs: tuple[int, ...], shape: Any, **attrs: Any) -> Any:
    return (op, refs, tuple(sorted(attrs.items())), shape, "float32")


@pytest.mark.slow
def test_groups_with_several_results_and_broadcast_inputs() -> None:
    shape = (3, 4, 5)
    arrays = [random(1, *shape), random(2, 5), random(3, 3, 1, 1), random(4)]
    body = (
        member("broadcast_add", (-1, -2), shape),
        member("broadcast_mul", (0, -3), shape),
        member("gelu", (1,), shape),
        member("broadcast_sub", (2, -4), shape),
        member("scalar_mul", (3,), shape, operand=-0.5),
    )
    out = arrays[0]
    query = query_of("fused", {"body": body, "outputs": (2, 4)}, arrays, out, out)
    ours, numpy = both(query, arrays)
    for have, want in zip(ours, numpy, strict=True):
        np.testing.assert_allclose(have, want, 1e-5, 1e-6)


ATTRS = {"alpha": 0.3, "operand": -1.7, "scale": 1.25}


def formulas(inputs: list[Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield each op of the table, its formula's result in one joint group, and the reference."""
    registry, shape = default_registry(), inputs[0].shape
    body, wanted = [], []
    for op in sorted(set(TABLE) - {"bias_add"}):
        spec = registry.ops[op]
        second = 3 if op.startswith("dropout") else 1
        first = 1 if op in ("sqrt", "rsqrt", "reciprocal") else 0
        used = [first, second, 2][: len(spec.inputs)] if op != "add_n" else [0, 1, 2]
        attrs = {k: ATTRS[k] for k in spec.attrs if k in ATTRS}
        attrs |= {"dtype": "float32"} if op == "cast" else {}
        body.append(member(op, tuple(-1 - k for k in used), shape, **attrs))
        assert spec.reference is not None
        with np.errstate(all="ignore"):
            wanted.append(spec.reference(*(inputs[k].astype(float) for k in used), **attrs))
    outputs = tuple(range(len(body)))
    query = query_of(
        "fused", {"body": tuple(body), "outputs": outputs}, inputs, *(inputs[0] for _ in body)
    )
    kernel = registry.find_kernel(query, "cpu")
    assert kernel.name == "c.fused"
    yield from zip([row[0] for row in body], run_kernel(kernel, query, inputs), wanted, strict=True)


@pytest.mark.slow
def test_formulas_of_all_ops_in_one_group() -> None:
    inputs = [random(1, 64) * 3 - 3, random(2, 64), random(3, 64) - 1]
    inputs.append(np.arange(64, dtype=np.int8) % 2)
    for op, have, want in formulas(inputs):
        np.testing.assert_allclose(have, want, 2e-5, 2e-5, err_msg=op)


LEFT_OUT: dict[str, tuple[Aspect, ...]] = {
    "relu": ("zero_sign",),  # max(0, -0) may be either
    "tanh_grad": ("nan", "lost", "infinity"),  # of squares of values outside the range of tanh
}
"""Aspects excluded from the comparison."""


def test_formulas_preserve_special_values() -> None:
    values = np.float32(list(values_of(as_dtype("float32")).values()))
    x, y = (a.reshape(-1).copy() for a in np.meshgrid(values, [*values, 0.7, -3.0]))
    inputs = [x, np.float32(y), random(3, x.size) - 1, np.arange(x.size, dtype=np.int8) % 2]
    for op, have, want in formulas(inputs):
        left_out = LEFT_OUT.get(op, ())
        found = difference(as_dtype("float32"), want, have, (2e-5, 2e-5), left_out)
        assert found is None, f"{op}: {found}"


def test_groups_with_unknown_ops_use_numpy() -> None:
    x = random(1, 6)
    body = (member("sinh", (-1,), (6,)), member("relu", (0,), (6,)))
    query = query_of("fused", {"body": body, "outputs": (1,)}, [x], x)
    assert default_registry().find_kernel(query, "cpu").name == "numpy.fused"


def test_axes_are_merged_only_if_broadcasting_is_equal() -> None:
    assert patterns([(2, 3, 4), (3, 1)], (2, 3, 4)) == (
        (2, 3, 4),
        ((True,) * 3, (False, True, False)),
    )
    assert patterns([(), (1, 1)], (1, 1)) == ((1,), ((False,), (False,)))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (200, 10), (65, 47), (3, 48), (70, 301)])
def test_losses_of_few_and_many_classes(rows: int, columns: int) -> None:
    rng = np.random.default_rng(rows)
    x = rng.normal(0, 30, (rows, columns)).astype(np.float32)
    label = rng.integers(0, columns, rows).astype(np.int32)
    attrs = {"depth": columns}
    query = query_of("sparse_softmax_cross_entropy", attrs, [x, label], x, x[:, 0])
    ours, numpy = both(query, [x, label])
    for have, want in zip(ours, numpy, strict=True):
        np.testing.assert_allclose(have, want, 2e-5, 1e-6)


def test_labels_outside_the_classes_are_an_error() -> None:
    x, label = random(1, 3, 4), np.array([0, 4, -1], np.int32)
    query = query_of("sparse_softmax_cross_entropy", {"depth": 4}, [x, label], x, x[:, 0])
    kernel = default_registry().find_kernel(query, "cpu")
    assert kernel.name == "c.sparse_softmax_cross_entropy"
    with pytest.raises(DataError, match="2 of 3 labels outside of the classes, such as 4"):
        run_kernel(kernel, query, [x, label])


@pytest.mark.parametrize("shape", [(1, 1_600_000), (3, 100_001), (1000, 1600)])
def test_sums_of_long_rows_are_accurate(shape: tuple[int, ...]) -> None:
    for x in (random(4, *shape), np.full(shape, 0.1, np.float32)):
        for power in (1, 2):  # the sum, and the square of the Euclidean norm
            addends = x**power
            axes = tuple(range(len(shape)))
            result = np.empty((1, 1), np.float32)
            query = query_of("reduce_sum", {"axis": axes, "keepdims": True}, [addends], result)
            kernel = default_registry().find_kernel(query, "cpu")
            assert kernel.name == "c.reduce_sum"
            (found,) = run_kernel(kernel, query, [addends])
            expected = addends.sum(dtype=np.float64) ** (1 / power)
            np.testing.assert_allclose(found.astype(float) ** (1 / power), expected, 1e-6)


def test_sparse_sgd_accumulates_repeated_rows() -> None:
    model, index = random(1, 50, 16), np.array([3, 49, 3, 0, 3, 60, -1], np.int32)
    diff, rate = random(2, 7, 16), np.array(0.1, np.float32)
    wanted = model.copy()
    for row, change in zip(index[:5], diff[:5], strict=True):
        wanted[row] -= np.float32(0.1 * 0.5) * change
    query = query_of("onednn_sparse_sgd", {"axis": 0, "first": 0, "scale": 0.5},
                     [model, index, diff, rate])  # fmt: skip
    kernel = default_registry().find_kernel(query, "cpu")
    run_kernel(kernel, query, [model, index, diff, rate])
    np.testing.assert_allclose(model, wanted, 1e-6)


@pytest.mark.parametrize("shape", [(50, 16), (3000, 1), (40, 300)])
def test_sparse_adam_matches_adam_with_a_dense_gradient(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    attrs = {"scale": 0.5, "beta1": 0.8, "beta2": 0.9, "epsilon": 1e-4}
    sparse, dense = ([random(1, *shape), np.zeros(shape, "f"), np.zeros(shape, "f")] for _ in "ab")
    rate = np.array(0.1, np.float32)
    for _ in range(4):
        index = rng.integers(-1, 9, (2, 4)).astype(np.int32) * 3
        diff = rng.normal(0, 1, (2, 4, shape[1])).astype(np.float32)
        whole = np.zeros(shape, np.float32)
        for k, row in zip(index.ravel(), diff.reshape(8, -1), strict=True):
            if k >= 0:
                whole[k] += row
        arrays = [sparse[0], index, diff, rate, *sparse[1:]]
        query = query_of("onednn_sparse_adam", {"axis": 0, "first": 0, **attrs}, arrays)
        run_kernel(default_registry().find_kernel(query, "cpu"), query, arrays)
        arrays = [dense[0], whole, rate, *dense[1:]]
        zeros = dict.fromkeys(("l1", "l2", "weight_decay"), 0.0)
        query = query_of("adam_update", {**attrs, **zeros}, arrays)
        (numpy,) = [k for k in default_registry().kernels("adam_update", "cpu") if not k.priority]
        run_kernel(numpy, query, arrays)
    for have, want in zip(sparse, dense, strict=True):
        np.testing.assert_allclose(have, want, 1e-5, 1e-6)
    assert not sparse[1][1::3].any()


ROW_UPDATES = {
    "sgd_update": {},
    "momentum_update": {"beta": 0.7},
    "adam_update": {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3},
}


@pytest.mark.parametrize("width", [1, 3, 16, 100])
@pytest.mark.parametrize("op", ROW_UPDATES)
def test_row_updates_match_numpy_in_float64(op: str, width: int) -> None:
    rng = np.random.default_rng(width)
    attrs = {"scale": 0.5, "weight_decay": 0.2, "first": 2, **ROW_UPDATES[op]}
    count = {"sgd_update": 1, "momentum_update": 2, "adam_update": 3}[op]
    tables = [np.abs(random(k, 700, width)) + 0.1 for k in range(count)]
    index = rng.integers(0, 710, (40, 20))  # some repeated, some out of range
    values, rate = random(9, 40, 20, width), np.array(0.1, np.float32)
    arrays = [tables[0], index, values, rate, *tables[1:]]
    wide = [a if a is index else a.astype(float) for a in arrays]
    wide[3] = rate
    name = f"indexed_slices_{op}"
    kernel = default_registry().find_kernel(query_of(name, attrs, arrays), "cpu")
    assert kernel.name == f"c.{name}"
    run_kernel(kernel, query_of(name, attrs, arrays), arrays)
    (numpy,) = [k for k in default_registry().kernels(name, "cpu") if not k.priority]
    run_kernel(numpy, query_of(name, attrs, wide), wide)
    for have, want in zip([arrays[0], *arrays[4:]], [wide[0], *wide[4:]], strict=True):
        np.testing.assert_allclose(have, want, 2e-5, 1e-5)


@pytest.mark.parametrize("size", [1, 17, 40_000])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("op", ["lars_update", "lamb_update"])
def test_norm_scaled_updates_match_numpy_in_float64(op: str, zero: bool, size: int) -> None:
    lars = op == "lars_update"
    attrs = {"scale": 0.5, "l1": 0.01, "l2": 0.02, "weight_decay": 0.1}
    attrs |= (
        {"momentum_beta": 0.7, "epsilon": 1e-6, "lars_coefficient": 0.2, "zero_ratio": 0.5}
        if lars else {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3}
    )  # fmt: skip
    model = random(1, size) * (not zero)
    states = [np.abs(random(k, size)) for k in ((4,) if lars else (4, 5))]
    numbers = [np.array(0.6, np.float32), np.array(0.7, np.float32)] if not lars else []
    step = [np.array(2)] if lars else []
    rate = np.array(0.1, np.float32)
    arrays = [model, random(2, size), rate, *step, *states, *numbers]
    wide = [a if a is rate or a.dtype.kind == "i" else a.astype(float) for a in arrays]
    query = query_of(op, attrs, arrays)
    kernel = default_registry().find_kernel(query, "cpu")
    assert kernel.name == f"c.{op}"
    run_kernel(kernel, query, arrays)
    (numpy,) = [k for k in default_registry().kernels(op, "cpu") if not k.priority]
    run_kernel(numpy, query_of(op, attrs, wide), wide)
    for have, want in zip(arrays, wide, strict=True):
        np.testing.assert_allclose(have, want, 2e-5, 1e-6)


def state_with(**settings: str) -> str:
    code = "from flow_onednn.native import compiler; print(compiler.state())"
    command = [sys.executable, "-c", code]
    return processes.run(command, env={**os.environ, **settings}, check=True).stdout


@pytest.mark.slow
def test_missing_compiler_is_named() -> None:
    assert "no C compiler 'nosuchcc'" in state_with(FLOW_ONEDNN_CC="nosuchcc")
    assert "is empty" in state_with(FLOW_ONEDNN_CC="")
    assert "does not compile the C loops" in state_with(FLOW_ONEDNN_CC="false")


@pytest.mark.slow
def test_loops_are_compiled_once(tmp_path: Any) -> None:
    settings = {"XDG_CACHE_HOME": str(tmp_path)}
    assert "Compiler(" in state_with(**settings)
    (made,) = (tmp_path / "flow-onednn").glob("*.so")
    before = made.stat().st_ino
    assert "Compiler(" in state_with(**settings)
    assert made.stat().st_ino == before
