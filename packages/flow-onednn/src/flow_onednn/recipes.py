"""Kernels that run one primitive, or several in sequence, and reorder the operands as needed.

An implementation is built once per problem. The kernel accepts a query if there is an
implementation, the plan provides the implementation's workspace, and binding the implementation to
arrays returns the launches.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from flow_core.authoring.backends import Launch
from flow_core.authoring.specs import AttrValue, BindContext, KernelQuery, KernelSpec, TensorType
from flow_onednn import binding, threads
from flow_onednn.library import available, half_types, has_fast_half
from flow_onednn.primitives import (
    Md,
    Primitive,
    Tensor,
    WorkspaceAllocator,
    address,
    launch,
    nbytes,
    reorder,
    same_layout,
)

PRIORITY = 100
"""Priority of the kernels of this package, above that of the numpy kernels, which is 0."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An array of the op that is an argument of the primitive."""

    role: str  # name of the primitive's argument
    index: int  # position among the op's inputs, or among its outputs if ``result`` is set
    md: Md  # of the array
    result: bool = False  # whether the array is an output of the op
    offset: int = 0  # offset of the argument within the array, in bytes


@dataclass(frozen=True, slots=True)
class Recipe:
    """One primitive whose arguments are an op's arrays."""

    primitive: Primitive
    operands: tuple[Operand, ...]  # of the primitive

    @property
    def workspace(self) -> int:
        """Bytes for the scratchpad and for reordered operands."""
        allocator = WorkspaceAllocator()
        for operand in self.operands:
            if not self._fits(operand):
                allocator.allocate(nbytes(self.primitive.md(operand.role)))
        allocator.allocate(self.primitive.scratchpad)
        return allocator.used

    @property
    def reorders(self) -> int:
        return sum(nbytes(o.md) for o in self.operands if not self._fits(o))

    @property
    def allocates(self) -> bool:
        """Whether the library allocates memory at each launch.

        GEMM-based implementations pack their operands into memory outside the scratchpad.
        """
        return "gemm" in self.primitive.implementation.split(":")

    def _fits(self, operand: Operand) -> bool:
        return operand.role not in binding.MD or same_layout(
            self.primitive.md(operand.role), operand.md
        )

    def bind(self, ctx: BindContext) -> list[Launch]:
        """Return the launches: reorders of inputs, then the primitive, then reorders of outputs."""
        allocator = WorkspaceAllocator(0 if ctx.workspace is None else address(ctx.workspace))
        before: list[Launch] = []
        after: list[Launch] = []
        tensors: dict[str, Tensor] = {}
        for operand in self.operands:
            array = (ctx.outputs if operand.result else ctx.inputs)[operand.index]
            tensor = (operand.md, address(array) + operand.offset)
            if self._fits(operand):
                tensors[operand.role] = tensor
                continue
            md = self.primitive.md(operand.role)
            reordered = tensors[operand.role] = (md, allocator.allocate(nbytes(md)))
            if operand.result:
                after.append(reorder(reordered, tensor))
            else:
                before.append(reorder(tensor, reordered))
        run = launch(self.primitive, tensors, allocator.allocate(self.primitive.scratchpad))
        return [*before, run, *after]


@dataclass(frozen=True, slots=True)
class RecipeSequence:
    """Several primitives that run in sequence, each on its own part of the op's arrays."""

    recipes: tuple[Recipe, ...]

    @property
    def workspace(self) -> int:
        """Bytes of the largest workspace that a part needs."""
        return max(r.workspace for r in self.recipes)

    @property
    def reorders(self) -> int:
        return sum(r.reorders for r in self.recipes)

    @property
    def allocates(self) -> bool:
        return any(r.allocates for r in self.recipes)

    def bind(self, ctx: BindContext) -> list[Launch]:
        """Return the launches of all parts."""
        return [launch for r in self.recipes for launch in r.bind(ctx)]


class Implementation(Protocol):
    """The implementation of an op for one problem."""

    @property
    def workspace(self) -> int:
        """Bytes of memory that the launches need in addition to the op's arrays."""

    @property
    def reorders(self) -> int:
        """Bytes copied between layouts at each launch."""

    @property
    def allocates(self) -> bool:
        """Whether the library allocates memory at each launch."""

    def bind(self, ctx: BindContext) -> list[Launch]:
        """Return the launches on the op's arrays."""


def recipe(primitive: Primitive | None, operands: Sequence[Operand]) -> Recipe | None:
    """Return the recipe of a primitive; None if the primitive is None."""
    return None if primitive is None else Recipe(primitive, tuple(operands))


Types = tuple[TensorType, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """The part of a kernel query that determines its implementation, as a hashable object."""

    op: str
    inputs: Types
    outputs: Types
    items: tuple[tuple[str, AttrValue], ...]

    @property
    def attrs(self) -> dict[str, AttrValue]:
        """The attributes of the op."""
        return dict(self.items)


NOTES = ("reordered", "reason", "memory")
"""Attributes for reports only: bytes of reorders, their reason, and memory outside the plan."""


def problem(query: KernelQuery) -> Problem:
    """Return the problem of a query."""
    items = tuple(sorted(item for item in query.attrs.items() if item[0] not in NOTES))
    return Problem(query.op, query.inputs, query.outputs, items)


Build = Callable[[Problem], Implementation | None]
Made = TypeVar("Made")

KEPT = 512
"""How many results are kept that no plan has bound, in all."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class _Result:
    value: Any


_Key = tuple[object, Problem, int]
_unbound: OrderedDict[_Key, _Result] = OrderedDict()
_bound: WeakValueDictionary[_Key, _Result] = WeakValueDictionary()
_owned: WeakKeyDictionary[Launch, _Result] = WeakKeyDictionary()
_lock = threading.Lock()


class Known(Generic[Made]):
    """A function of a problem, which compiling a plan calls three times per problem.

    A result that a plan has bound lives as long as the plan; of other results, the `KEPT` used last
    are kept. So a job that is fed ever new sizes keeps the primitives of its last plans only.

    The number of threads is a part of the key, because primitives are created for a specific number
    of threads.
    """

    def __init__(self, make: Callable[[Problem], Made]) -> None:
        self._make = make

    def __call__(self, problem: Problem) -> Made:
        """Return the result for a problem."""
        key = (self._make, problem, threads.count())
        with _lock:
            found = _bound.get(key) or _unbound.get(key)
        if found is None:
            found = _Result(self._make(problem))
        with _lock:
            if key not in _bound:
                _unbound[key] = found
                _unbound.move_to_end(key)
                if len(_unbound) > KEPT:
                    _unbound.popitem(last=False)
        made: Made = found.value
        return made

    def bound(self, problem: Problem, launches: Sequence[Launch]) -> Sequence[Launch]:
        """Keep the result for a problem as long as the launches, which are returned."""
        key = (self._make, problem, threads.count())
        with _lock:
            found = _unbound.pop(key, None) or _bound.get(key)
            if found is not None and launches:
                _bound[key] = _owned[launches[0]] = found
        return launches


def is_float32(query: KernelQuery) -> bool:
    """Return whether no array is empty and all arrays are float32."""
    return all(t.dtype.name == "float32" and t.size for t in (*query.inputs, *query.outputs))


def is_float(query: KernelQuery) -> bool:
    """Return whether no array is empty and all are float32, or all have a native half type."""
    types = (*query.inputs, *query.outputs)
    names = {t.dtype.name for t in types}
    return len(names) == 1 and names <= {"float32", *half_types()} and all(t.size for t in types)


def is_product(query: KernelQuery) -> bool:
    """Return whether a product is supported: float32 always, half types only where they are faster.

    The result of half operands may be float32.
    """
    wide = replace(query, outputs=query.inputs[:1]) if _is_wide(query) else query
    return is_float32(query) or (is_float(wide) and has_fast_half())


def _is_wide(query: KernelQuery) -> bool:
    return all(t.dtype.name == "float32" and t.size for t in query.outputs) and bool(query.inputs)


def product_types() -> tuple[str, ...]:
    """Return the element types that products support without conversions."""
    return ("float32", *(half_types() if has_fast_half() else ()))


BY_OP: dict[str, Build] = {}
"""The build functions by op; passes use them to read what implementations reorder and allocate."""


def kernel(
    op: str,
    build: Build,
    *,
    accepts: Callable[[KernelQuery], bool] = is_float,
    priority: int = PRIORITY,
) -> KernelSpec:
    """Return the `KernelSpec` of an op that is implemented by primitives."""
    known = BY_OP[op] = Known(build)

    def takes(query: KernelQuery) -> bool:
        return available() and accepts(query) and known(problem(query)) is not None

    def workspace(query: KernelQuery) -> int:
        return _implementation(known, query).workspace

    def bind(ctx: BindContext) -> Sequence[Launch]:
        return known.bound(problem(ctx.query), _implementation(known, ctx.query).bind(ctx))

    return KernelSpec(op, "cpu", bind, takes, priority, workspace, f"onednn.{op}")


def _implementation(build: Build, query: KernelQuery) -> Implementation:
    found = build(problem(query))
    if found is None:
        raise LookupError(f"no implementation of {query.op}, which was accepted")
    return found
