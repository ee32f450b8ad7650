"""Kernels of the update ops: a few passes over each variable, in tiles that stay in cache.

The statements of a rule's formula become numpy calls.  16-bit variables are updated in float32: a
tile is widened into scratch memory, updated there and rounded back once.  Numbers that depend on
the step, such as the learning rate, are written to 0-d arrays by one launch before those of the
tiles, so that all other launches are plain NumPy calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import sqrt
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.builtin.calls import call
from flow_core.builtin.numpy_kernels.binding import Part, carve, carved_bytes, kernel
from flow_core.builtin.numpy_kernels.training import gradients
from flow_core.builtin.numpy_kernels.training.lowering import Call, Operand, lower, temporary
from flow_core.builtin.numpy_kernels.training.schedules import TILE, number
from flow_core.device import Launch
from flow_core.ir.formulas import (
    PYTHON,
    Elements,
    Norm,
    Number,
    Scalar,
    Statement,
    arrays_read,
    phases,
)
from flow_core.ir.update_rules import (
    BY_TYPE,
    COMMON,
    DIFF,
    MODEL,
    RATE,
    TABLE,
    Update,
    optional_inputs,
    traced,
)
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec

NUMBERS = 8
"""Maximum number of coefficients that depend on the step."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The statements of an update in one or two phases, and the calls that compute each phase."""

    # The statements of the phases; the second one reads norms that the first computes.
    phases: tuple[Sequence[Statement], ...]
    calls: tuple[Sequence[Call], ...]  # the calls of each phase
    temporaries: int  # number of temporary arrays

    @property
    def norms(self) -> Sequence[Statement]:
        return [s for s in self.phases[0] if isinstance(s.value, Norm)]

    @property
    def assigned(self) -> set[str]:
        return {s.name for phase in self.phases for s in phase if isinstance(s.value, Elements)}


def _recipe(query: KernelQuery) -> Recipe:
    row = BY_TYPE[query.op]
    attrs = tuple((name, float(query.attrs[name])) for name in (*COMMON, *row.attrs))
    return _made(row.type, attrs, optional_inputs(row, query.inputs)[0] is not None)


@lru_cache(maxsize=256)
def _made(op: str, attrs: tuple[tuple[str, float], ...], scaled: bool) -> Recipe:
    known: dict[str, Scalar] = dict(attrs)
    penalties = bool(known["l1"] or known["l2"])
    if scaled:
        known["scale"] = Number("scale")
    first, second = phases(traced(BY_TYPE[op], known, stored=penalties))
    again = first[:1] if penalties and "r" in arrays_read(*second) else ()
    parts = (first, (*again, *second)) if second else (first,)
    lowered = [lower(part) for part in parts]
    return Recipe(parts, tuple(x.calls for x in lowered), max(x.temporaries for x in lowered))


def _array_names(row: Update) -> dict[int, str]:
    """Return the names of the inputs that have the model's shape, by index."""
    states = enumerate(row.states, row.first_state)
    return {MODEL: "model", DIFF: "model_diff", **dict(states)}


def _parts(query: KernelQuery) -> dict[str, Part]:
    """Return the scratch arrays of an update by name.

    Those with the name of an input or ``r`` have one tile; other arrays are as large as the model.
    """
    row, model, recipe = BY_TYPE[query.op], query.inputs[MODEL], _recipe(query)
    wide, names, assigned = model.dtype.accumulate, _array_names(row), recipe.assigned
    size, tile = model.size, ((min(model.size, TILE),), model.dtype.accumulate.numpy)
    parts: dict[str, Part] = {"numbers": ((NUMBERS,), wide.numpy)}
    for index, name in names.items():
        if query.inputs[index].dtype != wide:
            parts[name] = tile
    if "r" in assigned:
        parts["r"] = tile
    if recipe.norms:
        parts["squares"] = ((len(recipe.norms), -(-size // gradients.PART)), np.float64)
        parts["doubles"] = ((min(size, gradients.PART),), np.float64)
    kept = sorted(assigned - {"r", *names.values()})
    parts |= dict.fromkeys(kept, ((size,), wide.numpy))
    return parts | dict.fromkeys(map(temporary, range(recipe.temporaries)), tile)


class Frame:
    """The arrays and scratch memory to which one update op is bound."""

    def __init__(self, ctx: BindContext) -> None:
        query = ctx.query
        self._row, self._attrs = BY_TYPE[query.op], ctx.attrs
        self._size, self._wide = query.inputs[MODEL].size, query.inputs[MODEL].dtype.accumulate
        self._recipe, parts = _recipe(query), _parts(query)
        self._scratch = dict(zip(parts, carve(ctx.workspace, *parts.values()), strict=True))
        arrays = _array_names(self._row)
        self._flat = {name: ctx.inputs[i].reshape(-1) for i, name in arrays.items()}
        names = ("model", "model_diff", "rate", *self._row.inputs[RATE + 1 :])
        self._inputs = {
            n: number(x) for n, x in zip(names, ctx.inputs, strict=False) if n not in self._flat
        }
        scale, skip = optional_inputs(self._row, query.inputs)
        self._scale = None if scale is None else number(ctx.inputs[scale])
        self._skip = None if skip is None else number(ctx.inputs[skip])
        self._slots = iter([number(self._scratch["numbers"][i : i + 1]) for i in range(NUMBERS)])

    def launches(self) -> Sequence[Launch]:
        """Return the launches of the update; if there is an input ``skip_if``, a single one."""
        recipe = self._recipe
        launches = [launch for phase in range(len(recipe.phases)) for launch in self._phase(phase)]
        return launches if self._skip is None else [partial(_run_unless, self._skip, launches)]

    def _phase(self, phase: int) -> Iterator[Launch]:
        statements, calls = self._recipe.phases[phase], self._recipe.calls[phase]
        numbers = {s.name: s.value.text for s in statements if isinstance(s.value, Number)}
        coefficients: dict[Operand, Any] = {}
        for x in (x for each in calls for x in each.operands if not isinstance(x, str)):
            if x not in coefficients:
                known = not isinstance(x, Number)
                coefficients[x] = np.array(x, self._wide.numpy) if known else next(self._slots)
        written = {k.text: x for k, x in coefficients.items() if isinstance(k, Number)}
        if written or numbers:
            yield self._setting(numbers, written, len(self._recipe.norms) * phase)
        used, assigned = arrays_read(*statements), {s.name for s in statements}
        norms = [s.value.of.terms for s in statements if isinstance(s.value, Norm)]
        for start in range(0, self._size, TILE):
            arrays, enter, leave = self._tile(start, used, assigned)
            arrays |= coefficients
            yield from enter
            for each in calls:
                operands = (arrays[x] for x in each.operands)
                yield call(each.function, *operands, out=arrays[each.out])
            for row, ((_, atom),) in enumerate(norms):
                yield from self._squares(start, row, arrays[atom.name])
            yield from leave

    def _tile(
        self, start: int, used: set[str], assigned: set[str]
    ) -> tuple[dict[Operand, Any], list[Launch], list[Launch]]:
        """Return the arrays of a tile in the wide type, and launches that load and store them."""
        part = slice(start, min(self._size, start + TILE))
        arrays: dict[Operand, Any] = {
            name: scratch[part] if scratch.size == self._size else scratch[: part.stop - start]
            for name, scratch in self._scratch.items()
        }
        enter: list[Launch] = []
        leave: list[Launch] = []
        for name, flat in self._flat.items():
            view = flat[part]
            if view.dtype == self._wide.numpy:
                arrays[name] = view
            elif name in used:
                enter.append(partial(np.copyto, arrays[name], view, "unsafe"))
                if name in assigned:
                    leave.append(partial(np.copyto, view, arrays[name], "unsafe"))
        return arrays, enter, leave

    def _squares(self, start: int, row: int, values: Any) -> Iterator[Launch]:
        """Yield launches that write the sums of squares of a tile to the row of a norm."""
        sums = self._scratch["squares"][row, start // gradients.PART :]
        return gradients.square_sums(values, self._scratch["doubles"], sums)

    def _setting(
        self, numbers: Mapping[str, str], written: Mapping[str, Any], norms: int
    ) -> Launch:
        """Return a launch that computes numbers, and writes them to states and coefficients."""
        values = {**PYTHON, "size": float(max(self._size, 1))}
        steps = [(name, compile(text, name, "eval")) for name, text in numbers.items()]
        last = compile(f"({''.join(text + ', ' for text in written)})", "coefficients", "eval")
        rows = [self._scratch["squares"][k] for k in range(norms)]

        def write() -> None:
            for name, array in self._inputs.items():
                values[name] = array.item()
            if self._scale is not None:
                values["scale"] = self._attrs["scale"] * float(self._scale)
            for k, row in enumerate(rows):
                values[f"norm{k}"] = sqrt(np.add.reduce(row))
            for name, code in steps:
                values[name] = eval(code, values)
                if name in self._inputs:
                    self._inputs[name][()] = values[name]
                    values[name] = self._inputs[name].item()
            for array, value in zip(written.values(), eval(last, values), strict=True):
                array[()] = value

        return write


def _run_unless(skip: Array, launches: Sequence[Launch]) -> None:
    if not skip.item():
        for launch in launches:
            launch()


KERNELS: tuple[KernelSpec, ...] = (
    *(
        kernel(
            row.type,
            lambda ctx: Frame(ctx).launches(),
            workspace=lambda query: carved_bytes(*_parts(query).values()),
        )
        for row in TABLE
    ),
    *gradients.TRANSFORMS,
)
