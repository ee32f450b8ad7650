"""The ops that update several variables at once, and references and samples of all update ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from flow_core.authoring.specs import Sample
from flow_core.authoring.update_rules import (
    BY_TYPE,
    COMMON,
    DIFF,
    TABLE,
    Update,
    update_inputs,
    update_reference,
)
from flow_core.base.arrays import Array

Attrs = Mapping[str, Any]
PLAIN = dict(COMMON)


@dataclass(frozen=True, slots=True)
class Joined:
    """An update rule whose updates of small variables are joined into one op.

    The inputs are the learning rate, a factor of the gradients (the rate again if ``scaled`` is
    false), the step number (for LARS only), and then a row of inputs per variable: the variable,
    its gradient and its states. The mutated inputs are fixed per op type, so an op type lists those
    of the maximum number of rows.
    """

    rule: Update  # the update rule of the op for one variable

    @property
    def type(self) -> str:
        """Type of the op that updates several variables."""
        return f"onednn_{self.rule.type}s"

    @property
    def head(self) -> int:
        """Number of inputs before the rows."""
        return 2 + self.rule.step

    @property
    def row(self) -> int:
        """Number of inputs per variable, which is the length of a row."""
        return 2 + len(self.rule.states) + len(self.rule.numbers)

    @property
    def mutates(self) -> tuple[int, ...]:
        """Positions of the mutated inputs: all inputs of each row except the gradient."""
        return tuple(self.head + i for i in range(MOST_ROWS * self.row) if i % self.row != DIFF)


MOST_ROWS = 128
"""Maximum number of variables that one op updates."""
JOINED: tuple[Joined, ...] = tuple(map(Joined, TABLE))
"""The joined ops."""


def joined_reference(row: Joined) -> Callable[..., tuple[Array, ...]]:
    """Return the reference of an op that updates several variables."""
    update = update_reference(row.rule)

    def reference(*inputs: Array, scaled: bool, **attrs: Any) -> tuple[Array, ...]:
        rate, factor, *step = inputs[: row.head]
        found: list[Array] = []
        for at in range(row.head, len(inputs), row.row):
            model, diff, *states = inputs[at : at + row.row]
            found += update(
                model, diff, rate, *step, *states, *([factor] if scaled else []), **attrs
            )
        return tuple(found)

    return reference


def joined_samples(row: Joined) -> Callable[[np.random.Generator], Iterator[Sample]]:
    """Return a function that yields samples with one to three variables."""

    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        penalties = {"scale": 0.5, "l1": 0.1, "l2": 0.2, "weight_decay": 0.05}
        for shapes, attrs in (
            (((7,),), {"scaled": False}), (((3, 5), (4,), ()), {"scaled": True}),
            (((33, 5), (2, 2)), {"scaled": True, **penalties}),
        ):  # fmt: skip
            rate, factor = (np.array(x, np.float32) for x in (0.3, 0.5))
            step = [np.array(3, np.int64)] * row.rule.step
            rows: list[Array] = []
            for shape in shapes:
                model, diff, _, *rest = update_inputs(rng, row.rule, shape)
                rows += [model, diff, *rest[row.rule.step :]]
            full = {**PLAIN, **row.rule.attrs, **attrs}
            if "lars_coefficient" in full:
                full["lars_coefficient"] = 0.5
            yield Sample((rate, factor, *step, *rows), full, gradient=False, fixed=(0, 1))

    return samples


def row_sums(model: Array, index: Array, rows: Array, first: int) -> Array:
    """Return the dense gradient of a table from the gradients of its rows."""
    gradient = np.zeros_like(model)
    flat = rows.reshape(-1, *model.shape[1:])
    for row, place in zip(flat, index.reshape(-1).tolist(), strict=True):
        if 0 <= place - first < len(model):
            gradient[place - first] += row
    return gradient


def sparse_reference(rule: str) -> Callable[..., tuple[Array, ...]]:
    """Return the reference of an update of a table from the gradients of its rows."""

    def reference(
        model: Array, index: Array, rows: Array, *more: Array, axis: int, first: int, **attrs: float
    ) -> tuple[Array, ...]:
        diff = row_sums(model, index, rows, first)
        new, *states = update_reference(BY_TYPE[rule])(model, diff, *more, **{**PLAIN, **attrs})
        if not states:  # the kernel leaves rows without gradients alone, even if the rate is NaN
            untouched = ~np.isin(np.arange(first, first + len(model)), index)
            new[untouched] = model[untouched]
        return new, *states

    return reference


def sparse_samples(rule: str) -> Callable[[np.random.Generator], Iterator[Sample]]:
    """Return a function that yields samples with repeated and out-of-range indices."""

    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for shape, index, attrs in (
            ((7,), [3, 3, 0], {}), ((30, 5), [[4, 29], [30, -1], [4, 4]], {"scale": 0.5}),
            ((4, 2, 3), [5, 2, 3], {"first": 2}),
        ):  # fmt: skip
            where = np.array(index, np.int64 if attrs else np.int32)
            model, _, rate, *states = update_inputs(rng, BY_TYPE[rule], shape)
            rows = rng.uniform(-2, 2, (*where.shape, *shape[1:]))
            given = model, where, rows, rate, *states
            yield Sample(given, attrs, gradient=False, fixed=(3,))
            scaled = (*given, np.array(0.25, np.float32))
            yield Sample(scaled, attrs, gradient=False, fixed=(3, len(given)))

    return samples


def matmul_sgd(
    model: Array, a: Array, b: Array, rate: Array, *factor: Array,
    transpose_a: bool, transpose_b: bool, scale: float, **_: Any,
) -> Any:  # fmt: skip
    """Update a variable by SGD, where its gradient is a matrix product."""
    product = (a.T if transpose_a else a) @ (b.T if transpose_b else b)
    return update_reference(BY_TYPE["sgd_update"])(
        model, product, rate, *factor, **{**PLAIN, "scale": scale}
    )


def matmul_sgd_samples(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield samples with both layouts of each operand."""
    for rows, deep, columns, turned in ((5, 3, 4, (True, False)), (16, 33, 7, (False, True))):
        a = rng.uniform(-1, 1, (deep, rows) if turned[0] else (rows, deep))
        b = rng.uniform(-1, 1, (columns, deep) if turned[1] else (deep, columns))
        given = rng.uniform(-2, 2, (rows, columns)), a, b, np.array(0.3, np.float32)
        attrs = {"transpose_a": turned[0], "transpose_b": turned[1], "scale": 0.5}
        yield Sample(given, attrs, gradient=False, fixed=(3,))
        scaled = (*given, np.array(0.25, np.float32))
        yield Sample(scaled, attrs, gradient=False, fixed=(3, 4))
