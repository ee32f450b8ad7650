"""A kernel as one primitive and the layout changes around it.

A recipe is made once per problem: whether there is one decides whether the kernel accepts, its
size is the workspace that the plan provides, and binding it to arrays gives the launches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import AttrValue, BindContext, KernelQuery, KernelSpec, TensorType
from flow_onednn import binding, threads
from flow_onednn.library import available, halves, tiles
from flow_onednn.primitives import (
    Carver,
    Md,
    Primitive,
    Tensor,
    address,
    launch,
    nbytes,
    reorder,
    same,
)

PRIORITY = 100
"""Above numpy's kernels, which have 0."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An array of the op and what it is to the primitive.

    Attributes:
        role: name of the primitive's argument.
        index: position among the op's inputs, or among its outputs where ``result`` says so.
        md: the layout that the array has.
        result: whether it is an output.
        offset: bytes from the array's begin to what the primitive sees of it.
    """

    role: str
    index: int
    md: Md
    result: bool = False
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Recipe:
    """One primitive on an op's arrays.

    Attributes:
        primitive: what runs.
        operands: its arguments.
    """

    primitive: Primitive
    operands: tuple[Operand, ...]

    @property
    def workspace(self) -> int:
        """Bytes for the scratchpad and for operands in the primitive's own layout."""
        carver = Carver()
        for operand in self.operands:
            if not self._fits(operand):
                carver.take(nbytes(self.primitive.md(operand.role)))
        carver.take(self.primitive.scratchpad)
        return carver.used

    @property
    def reorders(self) -> int:
        """Bytes that are copied from one layout to another at each launch."""
        return sum(nbytes(o.md) for o in self.operands if not self._fits(o))

    @property
    def allocates(self) -> bool:
        """Whether the library takes memory at each launch, which it does where it packs operands.

        These products do not ask for a scratchpad.
        """
        return "gemm" in self.primitive.implementation.split(":")

    def _fits(self, operand: Operand) -> bool:
        return operand.role not in binding.MD or same(self.primitive.md(operand.role), operand.md)

    def bind(self, ctx: BindContext) -> list[Launch]:
        """The launches: layouts of inputs, the primitive, layouts of outputs."""
        carver = Carver(0 if ctx.workspace is None else address(ctx.workspace))
        before: list[Launch] = []
        after: list[Launch] = []
        tensors: dict[str, Tensor] = {}
        for operand in self.operands:
            array = (ctx.outputs if operand.result else ctx.inputs)[operand.index]
            given = (operand.md, address(array) + operand.offset)
            if self._fits(operand):
                tensors[operand.role] = given
                continue
            md = self.primitive.md(operand.role)
            own = tensors[operand.role] = (md, carver.take(nbytes(md)))
            if operand.result:
                after.append(reorder(own, given))
            else:
                before.append(reorder(given, own))
        run = launch(self.primitive, tensors, carver.take(self.primitive.scratchpad))
        return [*before, run, *after]


@dataclass(frozen=True, slots=True)
class Pieces:
    """Several primitives one after the other, each on its part of the op's arrays.

    Attributes:
        recipes: the parts.
    """

    recipes: tuple[Recipe, ...]

    @property
    def workspace(self) -> int:
        """Bytes that each of them needs at most."""
        return max(r.workspace for r in self.recipes)

    @property
    def reorders(self) -> int:
        """Bytes that are copied from one layout to another at each launch."""
        return sum(r.reorders for r in self.recipes)

    @property
    def allocates(self) -> bool:
        """Whether the library takes memory at each launch."""
        return any(r.allocates for r in self.recipes)

    def bind(self, ctx: BindContext) -> list[Launch]:
        """The launches of all."""
        return [launch for r in self.recipes for launch in r.bind(ctx)]


class Cooked(Protocol):
    """What a recipe is, to those who do not make it."""

    @property
    def workspace(self) -> int:
        """Bytes that it needs besides the op's arrays."""

    @property
    def reorders(self) -> int:
        """Bytes that are copied from one layout to another at each launch."""

    @property
    def allocates(self) -> bool:
        """Whether the library takes memory at each launch."""

    def bind(self, ctx: BindContext) -> list[Launch]:
        """The launches on the op's arrays."""


def recipe(primitive: Primitive | None, operands: Sequence[Operand]) -> Recipe | None:
    """The recipe of a primitive, None where there is none."""
    return None if primitive is None else Recipe(primitive, tuple(operands))


Types = tuple[TensorType, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """An op with concrete types, as far as a recipe depends on it; hashable."""

    op: str
    inputs: Types
    outputs: Types
    items: tuple[tuple[str, AttrValue], ...]

    @property
    def attrs(self) -> dict[str, Any]:
        """The op's attributes."""
        return dict(self.items)


NOTES = ("reordered", "reason", "memory")
"""Attributes for people: bytes that a kernel copies into another layout, and why; and memory."""


def problem(query: KernelQuery) -> Problem:
    """The problem of a query."""
    items = tuple(sorted(item for item in query.attrs.items() if item[0] not in NOTES))
    return Problem(query.op, query.inputs, query.outputs, items)


Cook = Callable[[Problem], Cooked | None]
Made = TypeVar("Made")


def cached(make: Callable[[Problem], Made]) -> Callable[[Problem], Made]:
    """The same function, which answers each problem once: a plan asks three times.

    Once for each number of threads: a primitive is made for those that it finds.
    """

    @functools.lru_cache(maxsize=4096)
    def known(problem: Problem, count: int) -> Made:
        return make(problem)

    return lambda problem: known(problem, threads.count())


def is_float32(query: KernelQuery) -> bool:
    """Whether all arrays are float32 and have elements."""
    return all(t.dtype.name == "float32" and t.size for t in (*query.inputs, *query.outputs))


def is_float(query: KernelQuery) -> bool:
    """Whether all arrays have elements, of float32 or all of a half type that is native here."""
    types = (*query.inputs, *query.outputs)
    names = {t.dtype.name for t in types}
    return len(names) == 1 and names <= {"float32", *halves()} and all(t.size for t in types)


def is_product(query: KernelQuery) -> bool:
    """The same of products, which half types are worth it for with AMX only."""
    return is_float32(query) or (is_float(query) and tiles())


BY_OP: dict[str, Cook] = {}
"""What makes the recipes of an op, for passes that want to know what is in one."""


def kernel(
    op: str,
    cook: Cook,
    *,
    accepts: Callable[[KernelQuery], bool] = is_float,
    priority: int = PRIORITY,
) -> KernelSpec:
    """The `KernelSpec` of an op that is one primitive."""
    known = BY_OP[op] = cached(cook)

    def takes(query: KernelQuery) -> bool:
        return available() and accepts(query) and known(problem(query)) is not None

    def workspace(query: KernelQuery) -> int:
        return _cooked(known, query).workspace

    def bind(ctx: BindContext) -> Sequence[Launch]:
        return _cooked(known, ctx.query).bind(ctx)

    return KernelSpec(op, "cpu", bind, takes, priority, workspace, f"onednn.{op}")


def _cooked(cook: Cook, query: KernelQuery) -> Cooked:
    found = cook(problem(query))
    if found is None:
        raise LookupError(f"no recipe for {query.op}, which was accepted")
    return found
