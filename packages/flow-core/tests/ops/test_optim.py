"""Compare the update kernels with the update rules written out in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import InferenceError
from flow_core.builtin.numpy_kernels.training import gradients, optim, schedules
from flow_core.ir import update_rules
from flow_core.ir.graph import tensor_type
from flow_core.ops.training import optim as ops
from flow_core.ops.training import schedules as schedule_ops
from flow_core.plugins.specs import InferContext, KernelQuery, SbpContext
from flow_core.testing.checks import run_kernel

SPECS = {spec.type: spec for spec in (*ops.OPS, *schedule_ops.OPS)}
KERNELS = {kernel.op: kernel for kernel in (*optim.KERNELS, *schedules.KERNELS)}
TYPES = [row.type for row in update_rules.TABLE]
RATE = np.float32(0.05)


@dataclass
class Case:
    """Inputs of one update in float64, and the expected values after it."""

    model: Any
    diff: Any
    rate: float
    states: list[Any]
    attrs: dict[str, Any]
    step: int = 3


def regularized(c: Case) -> Any:
    return c.attrs["scale"] * c.diff + c.attrs["l1"] * np.sign(c.model) + c.attrs["l2"] * c.model


def sgd(c: Case) -> tuple[Any, list[Any]]:
    return c.model - c.rate * (regularized(c) + c.attrs["weight_decay"] * c.model), []


def momentum(c: Case) -> tuple[Any, list[Any]]:
    after = c.attrs["beta"] * c.states[0] - c.rate * regularized(c)
    return c.model + after - c.rate * c.attrs["weight_decay"] * c.model, [after]


def moments(c: Case, r: Any) -> tuple[Any, Any]:
    (m, v), b1, b2 = c.states[:2], c.attrs["beta1"], c.attrs["beta2"]
    return b1 * m + (1 - b1) * r, b2 * v + (1 - b2) * r * r


def adam(c: Case) -> tuple[Any, list[Any]]:
    m, v = moments(c, regularized(c))
    change = m / (np.sqrt(v) + c.attrs["epsilon"]) + c.attrs["weight_decay"] * c.model
    return c.model - c.rate * change, [m, v]


def rmsprop(c: Case) -> tuple[Any, list[Any]]:
    r, d = regularized(c), c.attrs["decay_rate"]
    after = [d * c.states[0] + (1 - d) * r * r]
    variance = after[0]
    if len(c.states) == 2:
        after.append(d * c.states[1] + (1 - d) * r)
        variance = variance - after[1] ** 2
    change = r / np.sqrt(variance + c.attrs["epsilon"]) + c.attrs["weight_decay"] * c.model
    return c.model - c.rate * change, after


def adagrad(c: Case) -> tuple[Any, list[Any]]:
    r = regularized(c)
    total = c.states[0] + r**2
    change = r / (np.sqrt(total) + c.attrs["epsilon"]) + c.attrs["weight_decay"] * c.model
    return c.model - c.rate * change, [total]


def lion(c: Case) -> tuple[Any, list[Any]]:
    r, (m,), b1, b2 = regularized(c), c.states, c.attrs["beta1"], c.attrs["beta2"]
    change = np.sign(b1 * m + (1 - b1) * r) + c.attrs["weight_decay"] * c.model
    return c.model - c.rate * change, [b2 * m + (1 - b2) * r]


def lars(c: Case) -> tuple[Any, list[Any]]:
    r, decay = regularized(c), c.attrs["weight_decay"]
    size, change = (np.sqrt(np.mean(x * x)) if x.size else 0.0 for x in (c.model, r))
    below = c.attrs["epsilon"] + change + (decay * size if c.step else 0.0)
    local = c.rate * c.attrs["lars_coefficient"] * size / below
    after = c.attrs["momentum_beta"] * c.states[0] - local * (r + decay * c.model)
    return c.model + after, [after]


def lamb(c: Case) -> tuple[Any, list[Any]]:
    m, v = moments(c, regularized(c))
    powers = [c.states[2] * c.attrs["beta1"], c.states[3] * c.attrs["beta2"]]
    change = m / (1 - powers[0]) / np.sqrt(v / (1 - powers[1]) + c.attrs["epsilon"])
    size, length = np.linalg.norm(c.model), np.linalg.norm(change)
    rate = c.rate * (size / length if size > 0 and length > 0 else 1.0)
    return c.model - rate * (change + c.attrs["weight_decay"] * c.model), [m, v, *powers]


RULES: dict[str, Callable[[Case], tuple[Any, list[Any]]]] = {
    "sgd_update": sgd,
    "momentum_update": momentum,
    "adam_update": adam,
    "rmsprop_update": rmsprop,
    "centered_rmsprop_update": rmsprop,
    "adagrad_update": adagrad,
    "lion_update": lion,
    "lars_update": lars,
    "lamb_update": lamb,
}

PENALTIES = (
    {},
    {"scale": 0.25, "weight_decay": 0.1},
    {"l2": 0.3},
    {"scale": 2.0, "l1": 0.2, "l2": 0.1, "weight_decay": 0.05},
)


def arrays_of(type_: str, shape: tuple[int, ...], dtype: str, diff_dtype: str) -> list[Any]:
    """Return random inputs; the states are typical of a few steps."""
    row, rng = update_rules.BY_TYPE[type_], np.random.default_rng(len(shape) + 5)
    model = as_dtype(dtype)
    wide = model.accumulate.numpy
    arrays = [rng.normal(size=shape).astype(model.numpy)]
    arrays.append(rng.normal(size=shape).astype(as_dtype(diff_dtype).numpy))
    arrays.append(np.array(RATE))
    if row.step:
        arrays.append(np.array([3], np.int64))
    gradient = 0.1 * rng.normal(size=shape)
    for name in row.states:
        state = gradient**2 + 0.5 if name in ("v", "mean_square", "sum_of_squares") else gradient
        arrays.append(state.astype(wide))
    arrays += [np.array(number, wide) for number in (0.7, 0.9)[: len(row.numbers)]]
    return arrays


def run(type_: str, arrays: list[Any], attrs: dict[str, Any]) -> dict[str, Any]:
    """Run the kernel in place and return all attributes."""
    spec = SPECS[type_]
    full = {**spec.attrs, **attrs}
    types = tuple(tensor_type(x.shape, as_dtype(x.dtype)) for x in arrays)
    spec.infer(InferContext("sample", type_, types, full))
    run_kernel(KERNELS[type_], KernelQuery(type_, full, types, ()), arrays)
    return full


def expected(type_: str, arrays: list[Any], attrs: dict[str, Any], scale: float = 1.0) -> list[Any]:
    """Return the model and the states after the update."""
    row = update_rules.BY_TYPE[type_]
    wide = [x.astype(np.float64) for x in arrays]
    full = {**SPECS[type_].attrs, **attrs}
    full["scale"] *= scale
    case = Case(wide[0], wide[1], float(RATE), wide[row.first_state : len(row.inputs)], full)
    model, states = RULES[type_](case)
    return [model, *states]


def check(type_: str, arrays: list[Any], wanted: list[Any], tolerance: float) -> None:
    indices = update_rules.BY_TYPE[type_].mutates
    for index, want in zip(indices, wanted, strict=True):
        np.testing.assert_allclose(
            arrays[index].astype(np.float64), want, tolerance, tolerance, err_msg=f"input {index}"
        )


TOLERANCES = {"float64": 1e-10, "float32": 3e-5, "float16": 4e-3, "bfloat16": 2e-2}


@pytest.mark.parametrize("attrs", PENALTIES)
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("type_", TYPES)
def test_update(type_: str, dtype: str, attrs: dict[str, Any]) -> None:
    arrays = arrays_of(type_, (5, 7), dtype, dtype)
    before = [x.copy() for x in arrays]
    run(type_, arrays, attrs)
    check(type_, arrays, expected(type_, before, attrs), TOLERANCES[dtype])
    for index in set(range(len(arrays))) - set(update_rules.BY_TYPE[type_].mutates):
        np.testing.assert_array_equal(arrays[index], before[index])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("type_", TYPES)
def test_more_than_one_tile(type_: str, dtype: str) -> None:
    arrays = arrays_of(type_, (2 * schedules.TILE + 77,), dtype, "float16")
    before = [x.copy() for x in arrays]
    run(type_, arrays, PENALTIES[3])
    check(type_, arrays, expected(type_, before, PENALTIES[3]), TOLERANCES[dtype])


@pytest.mark.parametrize("type_", TYPES)
def test_no_elements(type_: str) -> None:
    arrays = arrays_of(type_, (0, 3), "float32", "float32")
    run(type_, arrays, PENALTIES[3])


@pytest.mark.parametrize("attrs", [PENALTIES[1], PENALTIES[3]])
@pytest.mark.parametrize("type_", TYPES)
def test_scale_by_tensor_and_skip(type_: str, attrs: dict[str, Any]) -> None:
    arrays = arrays_of(type_, (4,), "float32", "float32")
    before = [x.copy() for x in arrays]
    extra = [np.array([0.5], np.float32), np.array(1, np.int64)]
    run(type_, [*arrays, *extra], attrs)
    for now, then in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(now, then)
    extra[1][()] = 0
    run(type_, [*arrays, *extra], attrs)
    check(type_, arrays, expected(type_, before, attrs, scale=0.5), 3e-5)


def test_first_lars_step_ignores_weight_decay_in_the_rate() -> None:
    arrays = arrays_of("lars_update", (6,), "float64", "float64")
    arrays[3][...] = 0
    wide = [x.astype(np.float64) for x in arrays]
    attrs = {**SPECS["lars_update"].attrs, "weight_decay": 0.3}
    model, _ = lars(Case(wide[0], wide[1], float(RATE), [wide[4]], attrs, step=0))
    run("lars_update", arrays, attrs)
    np.testing.assert_allclose(arrays[0], model, 1e-12)


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("ratio", [1.0, 0.25])
def test_lars_of_a_zero_model_or_gradient_uses_a_plain_rate(zero: int, ratio: float) -> None:
    arrays = arrays_of("lars_update", (6,), "float64", "float64")
    arrays[zero][...] = 0
    model, slope, momentum = (arrays[i].copy() for i in (0, 1, 4))
    run("lars_update", arrays, {"zero_ratio": ratio, "weight_decay": 0.05})
    change = 0.9 * momentum - ratio * float(RATE) * (slope + 0.05 * model)
    np.testing.assert_allclose(arrays[0], model + change, 1e-6)


def test_lars_without_a_ratio_for_zeros_leaves_a_zero_model() -> None:
    arrays = arrays_of("lars_update", (6,), "float64", "float64")
    arrays[0][...] = arrays[4][...] = 0
    run("lars_update", arrays, {"zero_ratio": 0.0})
    assert not arrays[0].any()


def test_lamb_of_a_zero_model_uses_the_plain_rate() -> None:
    arrays = arrays_of("lamb_update", (6,), "float32", "float32")
    arrays[0][...] = 0
    before = [x.copy() for x in arrays]
    run("lamb_update", arrays, {})
    check("lamb_update", arrays, expected("lamb_update", before, {}), 3e-5)


@pytest.mark.parametrize("type_", TYPES)
def test_split_rules_of_local_updates_produce_the_same_parts(type_: str) -> None:
    arrays = arrays_of(type_, (3, 4), "float32", "float32")
    types = tuple(tensor_type(x.shape, as_dtype(x.dtype)) for x in arrays)
    rules = SPECS[type_].sbp(SbpContext(types, (), SPECS[type_].attrs))
    if not update_rules.BY_TYPE[type_].local:
        assert rules == ()
        return
    assert len(rules) == 2
    for rule in rules:
        whole = [x.copy() for x in arrays]
        run(type_, whole, {})
        for part in (slice(0, 2), slice(2, None)):
            parts = [
                x[(slice(None),) * s.axis + (part,)].copy() if str(s) != "B" else x.copy()
                for x, s in zip(arrays, rule.inputs, strict=True)
            ]
            run(type_, parts, {})
            axis = rule.inputs[0].axis
            np.testing.assert_array_equal(parts[0], whole[0][(slice(None),) * axis + (part,)])


@pytest.mark.parametrize("size", [6, 3 * gradients.PART + 5])
@pytest.mark.parametrize("factor", [1e25, 1e-25])
@pytest.mark.parametrize("type_", ["lars_update", "lamb_update"])
def test_norms_of_huge_and_tiny_numbers_are_exact(type_: str, factor: float, size: int) -> None:
    arrays = arrays_of(type_, (size,), "float32", "float32")
    arrays[0] *= np.float32(factor)
    if type_ == "lars_update":
        arrays[1] *= np.float32(factor)
        arrays[4] *= np.float32(factor)
    before = [x.copy() for x in arrays]
    attrs = {"epsilon": 0.0} if type_ == "lars_update" else {}
    run(type_, arrays, attrs)
    for index, want in zip(
        update_rules.BY_TYPE[type_].mutates, expected(type_, before, attrs), strict=True
    ):
        np.testing.assert_allclose(arrays[index], want, 3e-5, 1e-4 * np.abs(want).max())


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("size", [0, 7, 2 * gradients.PART + 3])
def test_wide_sums_of_squares_are_in_float64(dtype: str, size: int) -> None:
    kind = as_dtype(dtype)
    x = np.random.default_rng(0).normal(size=size).astype(kind.numpy)
    x = x * kind.numpy.type(1e25 if dtype == "float32" else 1.0)
    types = tensor_type(x.shape, kind), tensor_type((), as_dtype("float64"))
    query = KernelQuery("square_sum", {"wide": True}, types[:1], types[1:])
    (out,) = run_kernel(KERNELS["square_sum"], query, [x])
    np.testing.assert_allclose(out, np.sum(x.astype(np.float64) ** 2), 1e-12)


WRONG: dict[str, Callable[[list[Any]], Any]] = {
    "shape of model_diff": lambda a: a.__setitem__(1, a[1][:2]),
    "type of the learning rate": lambda a: a.__setitem__(2, np.array(1.0)),
    "shape of the learning rate": lambda a: a.__setitem__(2, np.zeros(2, np.float32)),
    "shape of a state": lambda a: a.__setitem__(3, a[3][:2]),
    "integer model": lambda a: a.__setitem__(0, a[0].astype(np.int32)),
    "two scales": lambda a: a.extend([np.ones(1, np.float32)] * 2),
    "long skip_if": lambda a: a.append(np.zeros(2, np.int64)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_inputs_are_rejected(wrong: str) -> None:
    arrays = arrays_of("momentum_update", (3, 4), "float32", "float32")
    WRONG[wrong](arrays)
    with pytest.raises(InferenceError):
        run("momentum_update", arrays, {})


def test_beta_out_of_range_is_rejected() -> None:
    with pytest.raises(InferenceError, match="beta1"):
        run("adam_update", arrays_of("adam_update", (3,), "float32", "float32"), {"beta1": 1.0})


@pytest.mark.parametrize(
    ("bad", "steps", "scale", "wanted_steps", "wanted_scale"),
    [
        (1, 1, 100.0, 0, 50.0),
        (0, 1, 100.0, 0, 200.0),
        (0, 7, 100.0, 8, 100.0),
        (3, 7, 1.5, 0, 1.0),
        (0, 1, float(np.finfo(np.float32).max), 0, float(np.finfo(np.float32).max)),
    ],
)
def test_dynamic_loss_scale(
    bad: int, steps: int, scale: float, wanted_steps: int, wanted_scale: float
) -> None:
    arrays = [np.array(bad, np.int64), np.array([scale], np.float32), np.array([steps], np.int64)]
    run("dynamic_loss_scale_schedule", arrays, {"increment_period": 10 if steps == 7 else 2})
    assert arrays[2].item() == wanted_steps
    assert arrays[1].item() == np.float32(wanted_scale)
