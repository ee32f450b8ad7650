"""References and samples of the update ops, from the formulas of `flow_core.ir.update_rules`.

Each reference returns the new values of the variable and its states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.ir.formulas import Elements
from flow_core.ir.update_rules import MODEL, RATE, Update, computed, traced
from flow_core.plugins.specs import Sample

Attrs = Mapping[str, Any]


def _number(array: Array) -> float:
    value: float = np.reshape(array, ()).item()
    return value


def update_reference(row: Update) -> Callable[..., tuple[Array, ...]]:
    """Return the reference of an update."""

    def reference(*inputs: Array, **attrs: Any) -> tuple[Array, ...]:
        extra = inputs[len(row.inputs) :]
        if any(_number(x) for x in extra if x.dtype.kind == "i"):  # skip_if
            return tuple(inputs[i].copy() for i in row.mutates)
        values = {**attrs, "size": float(max(inputs[MODEL].size, 1))}
        for factor in (x for x in extra if x.dtype.kind != "i"):
            values["scale"] *= _number(factor)
        names = ("model", "model_diff", "rate", *row.inputs[RATE + 1 :])
        for name, x in zip(names, inputs, strict=False):
            alone = name in ("rate", "train_step", *row.numbers)
            values[name] = _number(x) if alone else x
        new = computed(row, **values)
        shapes = (inputs[i].shape for i in row.mutates)
        return tuple(np.reshape(x, shape) for x, shape in zip(new, shapes, strict=True))

    return reference


def indexed_reference(row: Update) -> Callable[..., tuple[Array, ...]]:
    """Return the reference of an update that changes only the rows that were looked up."""

    def reference(
        model: Array, index: Array, values: Array, rate: Array, *states: Array, **attrs: Any
    ) -> tuple[Array, ...]:
        at = index.reshape(-1).astype(np.int64) - attrs["first"]
        inside = (at >= 0) & (at < len(model))
        rows, places = np.unique(at[inside], return_inverse=True)
        flat = values.reshape(index.size, *model.shape[1:])[inside]
        sums = np.zeros((len(rows), *flat.shape[1:]), flat.dtype)
        np.add.at(sums, places, flat)
        own = {name: x[rows] for name, x in zip(row.states, states, strict=True)}
        own |= {"model": model[rows], "model_diff": sums}
        tables = [x.copy() for x in (model, *states)]
        new = computed(row, **attrs, **own, rate=_number(rate), l1=0.0, l2=0.0)
        for table, changed in zip(tables, new, strict=True):
            table[rows] = changed
        return tuple(tables)

    return reference


# ------------------------------------------------------------------------------------- samples

SHAPES: tuple[tuple[int, ...], ...] = ((7,), (3, 5), ())
ATTRS: tuple[Mapping[str, Any], ...] = (
    {},
    {"scale": 0.5, "l1": 0.1, "l2": 0.2, "weight_decay": 0.05},
)
LARS = {"lars_coefficient": 0.5, "epsilon": 0.1}
"""With the default coefficient, a variable changes by less than the tolerance of 16-bit types."""


def _signed(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return numbers of both signs, none of which is small."""
    return np.asarray(rng.uniform(0.5, 2, shape) * rng.choice((-1, 1), shape))


def _states(rng: np.random.Generator, row: Update, shape: tuple[int, ...]) -> list[Array]:
    """Return random values of the states; sums and averages of squares are positive."""
    squares = {
        s.name
        for s in traced(row, {})
        if isinstance(s.value, Elements) and any(a.name == "square" for _, a in s.value.terms)
    }
    limits = ((1.5, 3.0) if name in squares else (-1.0, 1.0) for name in row.states)
    return [np.asarray(rng.uniform(*pair, shape)) for pair in limits]


def _rate(rng: np.random.Generator) -> Array:
    return np.array(rng.uniform(0.2, 0.6), np.float32)


def update_inputs(
    rng: np.random.Generator, row: Update, shape: tuple[int, ...], step: int = 3
) -> tuple[Array, ...]:
    """Return random values of the required inputs of an update, for samples."""
    steps = [np.array(step, np.int64)] * row.step
    states = _states(rng, row, shape)
    powers = [np.array(rng.uniform(0.3, 0.7)) for _ in row.numbers]
    return (_signed(rng, shape), _signed(rng, shape), _rate(rng), *steps, *states, *powers)


def update_samples(row: Update) -> Callable[[np.random.Generator], Iterator[Sample]]:
    """Return the samples of an update."""
    own = LARS if row.type == "lars_update" else {}

    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        def sample(inputs: tuple[Array, ...], attrs: Attrs = own, note: str = "") -> Sample:
            return Sample(inputs, attrs, False, note, fixed=(RATE,))

        for shape in SHAPES:
            for attrs in ATTRS:
                yield sample(update_inputs(rng, row, shape), {**own, **attrs})
        scale, run, skip = np.array(0.5), np.array(0, np.int64), np.array(1, np.int64)
        yield sample((*update_inputs(rng, row, (4, 2)), scale))
        yield sample((*update_inputs(rng, row, (4, 2)), scale, run), {**own, **ATTRS[1]})
        yield sample((*update_inputs(rng, row, (4, 2)), skip), note="skipped")
        yield sample(update_inputs(rng, row, (6,), 0), {**own, **ATTRS[1]}, "first step")
        own_attrs = _other_attrs(row)
        yield sample(update_inputs(rng, row, (5,)), {**own_attrs, **own})
        zero = update_inputs(rng, row, (4,))
        yield sample((np.zeros(4), *zero[1:]), {**own, **ATTRS[1]}, "a variable of zeros")
        if row.type == "lars_update":
            still = {**own, "zero_ratio": 0.0, "weight_decay": 0.05}
            yield sample((np.zeros(4), *zero[1:]), still, "a variable of zeros as in 0.3.4")
            yield sample(
                (zero[0], np.zeros(4), *zero[2:]), {**own, **ATTRS[1], "l2": 0.0, "l1": 0.0}
            )
        yield sample(update_inputs(rng, row, (0, 2), 3), note="no elements")

    return samples


TABLES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((7,), (3,)), ((5, 3), (2, 4)), ((4, 2, 3), (1,)), ((6, 2), (0,)),
)  # fmt: skip
"""Pairs of a table's shape and the indices' shape."""


def indexed_samples(row: Update) -> Callable[[np.random.Generator], Iterator[Sample]]:
    """Return samples that have repeated indices and indices out of range."""

    def sample(
        rng: np.random.Generator, shape: tuple[int, ...], index: Array, attrs: Attrs, note: str = ""
    ) -> Sample:
        values = _signed(rng, (*index.shape, *shape[1:]))
        states = _states(rng, row, shape)
        inputs = (_signed(rng, shape), index, values, _rate(rng), *states)
        return Sample(inputs, attrs, False, note, fixed=(3,))

    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for dtype in (np.int32, np.int64):
            for shape, lookups in TABLES:
                index = rng.integers(-1, shape[0] + 1, lookups).astype(dtype)
                yield sample(rng, shape, index, {"scale": 0.5, "weight_decay": 0.05})
        repeated = np.array([4, 1, 4, 9, -1], np.int32)
        yield sample(rng, (5, 3), repeated, {}, "repeated and out of range")
        yield sample(rng, (5, 3), repeated, {"first": 2}, "a table that starts at row 2")
        many = rng.integers(0, 40, 300).astype(np.int32)
        halved = {name: value / 2 for name, value in row.attrs.items()}
        yield sample(rng, (40, 2), many, {"scale": 0.125, **halved}, "many repetitions")

    return samples


def summed_reference(
    row: Update, product: Callable[..., Any], attr_names: Sequence[str]
) -> Callable[..., tuple[Array, ...]]:
    """Return the reference of an update that also computes its gradient."""
    update = update_reference(row)

    def reference(*inputs: Array, parts: int, **attrs: Any) -> tuple[Array, ...]:
        (model, *rest), operands = inputs[: -2 * parts], inputs[-2 * parts :]
        own = {name: attrs.pop(name) for name in attr_names}
        pairs = zip(operands[::2], operands[1::2], strict=True)
        diff = sum(product(a, b, **own) for a, b in pairs)
        return update(model, diff, *rest, **attrs)

    return reference


def _other_attrs(row: Update) -> dict[str, float]:
    """Return attributes other than the defaults.

    An epsilon that is not small shows whether it is added before or after a square root.
    """
    return {k: 0.3 if k == "epsilon" else v / 2 for k, v in row.attrs.items()}


def summed_samples(row: Update) -> Callable[[np.random.Generator], Iterator[Sample]]:
    """Return samples with one to three products, in all layouts of the operands."""
    others = _other_attrs(row)
    rows: tuple[tuple[tuple[int, int, int], int, Attrs], ...] = (
        ((5, 3, 4), 2, {"transpose_a": True, **ATTRS[1]}),
        ((40, 2, 3), 3, {"transpose_a": True}),
        ((40, 33, 17), 2, {"transpose_a": True, "scale": 0.5}),
        ((4, 6, 3), 1, {"transpose_b": True, "alpha": 0.5, **ATTRS[1], **others}),
        ((4, 6, 3), 1, {"weight_decay": 0.05, "l2": 0.2}),
    )

    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for number, ((height, deep, width), parts, attrs) in enumerate(rows):
            model, _, rate, *states = update_inputs(rng, row, (height, width))
            arrays = [model, rate, *states, *([np.array(0.5)] if number % 2 else [])]
            left, right = (height, deep), (deep, width)
            for _ in range(parts):
                arrays.append(rng.uniform(0.25, 1, left[:: -1 if "transpose_a" in attrs else 1]))
                arrays.append(rng.uniform(0.25, 1, right[:: -1 if "transpose_b" in attrs else 1]))
            yield Sample(tuple(arrays), {**attrs, "parts": parts}, False, fixed=(1,))

    return samples
