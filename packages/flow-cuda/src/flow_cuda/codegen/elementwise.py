"""Kernels of elementwise ops: one kernel per fused group; a single op is a group of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from flow_core.authoring.specs import KernelQuery, TensorType, tensor_type
from flow_core.base.dtypes import as_dtype
from flow_cuda.codegen.expressions import TABLE, computation_type
from flow_cuda.codegen.program import C_TYPES, Kernel, Scalars, make_kernel

AXES = 8
"""The maximum rank in `source/prelude.h`; adjacent axes are collapsed where possible."""


@dataclass(frozen=True, slots=True)
class Step:
    """One op of a fused group.

    Attributes:
        op: op type.
        refs: the op's arguments: the index of a step, or ``-1 - k`` for input k of the group.
        attrs: attributes.
        types: types of the arguments.
        result: type of the result.
    """

    op: str
    refs: tuple[int, ...]
    attrs: Mapping[str, Any]
    types: tuple[TensorType, ...]
    result: TensorType


@dataclass(frozen=True, slots=True)
class Group:
    """A group of elementwise ops to compile as one kernel.

    Attributes:
        steps: the ops.
        stored: indices of the steps that are outputs.
        inputs: types of the inputs.
        shape: the common shape of all results.
    """

    steps: tuple[Step, ...]
    stored: tuple[int, ...]
    inputs: tuple[TensorType, ...]
    shape: tuple[int, ...]

    @property
    def forms(self) -> tuple[str, ...]:
        """How to index each input: "each" per element, "one" for a scalar, "place" if broadcast."""
        return tuple(_form(t.shape, self.shape) for t in self.inputs)


def _form(shape: tuple[int, ...], space: tuple[int, ...]) -> str:
    if shape == space:
        return "each"
    return "one" if prod(shape) == 1 else "place"


def make_group(query: KernelQuery) -> Group:
    """Return the group of a ``fused`` op, or the group that consists of one elementwise op."""
    if query.op != "fused":
        refs = tuple(-1 - k for k in range(len(query.inputs)))
        step = Step(query.op, refs, query.attrs, query.inputs, query.outputs[0])
        return Group((step,), (0,), query.inputs, query.outputs[0].shape)
    steps: list[Step] = []
    body: Any = query.attrs["body"]
    for op, refs, attrs, shape, dtype in body:
        types = tuple(query.inputs[-1 - r] if r < 0 else steps[r].result for r in refs)
        steps.append(Step(op, refs, dict(attrs), types, tensor_type(shape, as_dtype(dtype))))
    stored: Any = query.attrs["outputs"]
    return Group(tuple(steps), tuple(stored), query.inputs, steps[-1].result.shape)


def is_supported(query: KernelQuery) -> bool:
    """Whether all ops have a C++ expression and numeric types."""
    group = make_group(query)
    types = (*query.inputs, *(s.result for s in group.steps))
    return (
        all(s.op in TABLE and s.result.shape == group.shape for s in group.steps)
        and all(t.dtype.name in C_TYPES for t in types)
        and len(collapse_axes(group)[0]) <= AXES
    )


def collapse_axes(group: Group) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Collapse adjacent axes; return the new sizes, and the strides of each broadcast input.

    >>> from flow_core.base.dtypes import float32
    >>> row = tensor_type((4,), float32)
    >>> collapse_axes(Group((), (), (row,), (2, 3, 4)))
    ((6, 4), ((0, 1),))
    """
    placed = [t for t, f in zip(group.inputs, group.forms, strict=True) if f == "place"]
    rows = [broadcast_strides(t.shape, group.shape) for t in placed]
    sizes: list[int] = []
    kept: list[list[int]] = [[] for _ in placed]
    for axis, n in enumerate(group.shape):
        now = [row[axis] for row in rows]
        if sizes and all(k[-1] == s * n for k, s in zip(kept, now, strict=True)):
            sizes[-1] *= n
            for k, s in zip(kept, now, strict=True):
                k[-1] = s
            continue
        sizes.append(n)
        for k, s in zip(kept, now, strict=True):
            k.append(s)
    return tuple(sizes), tuple(map(tuple, kept))


def broadcast_strides(shape: Sequence[int], space: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a C-contiguous array broadcast to a larger shape.

    >>> broadcast_strides((3, 1), (2, 3, 4))
    (0, 1, 0)
    """
    strides, step = [], 1
    for n, want in zip(reversed(shape), reversed(space), strict=False):
        strides.append(step if n == want else 0)
        step *= n
    return (*(0 for _ in range(len(space) - len(shape))), *reversed(strides))


def write(group: Group) -> tuple[Kernel, list[int | float]]:
    """Return the kernel of a group, and the scalars to pass after the kernel's other arguments.

    Sizes and scalars are parameters, so that groups that differ only in them share a kernel.
    """
    scalars = Scalars()
    elements = "\n".join(_element(group, scalars))
    parameters = [
        *((f"const {C_TYPES[t.dtype.name]} *", f"x{k}") for k, t in enumerate(group.inputs)),
        *(
            (f"{C_TYPES[group.steps[m].result.dtype.name]} *", f"y{k}")
            for k, m in enumerate(group.stored)
        ),
        ("Space", "space"),
        *(("Strides", f"s{k}") for k, form in enumerate(group.forms) if form == "place"),
        *scalars.parameters,
    ]
    stem = group.steps[0].op if len(group.steps) == 1 else f"group_of_{len(group.steps)}"
    body = "EACH(i, space.size) {\n" + elements + "\n}"
    return make_kernel(stem, parameters, body), scalars.values


def _element(group: Group, scalars: Scalars) -> Iterator[str]:
    """Yield the code of one element.

    It reads all inputs before it writes any output, because an output may overwrite an input.
    """
    forms = group.forms
    if "place" in forms:
        yield "i64 at[8]; unravel(i, space, at);"
    where = {"each": "i", "one": "0", "place": "offset(at, space, s{})"}
    for k, (type_, form) in enumerate(zip(group.inputs, forms, strict=True)):
        kind = computation_type(type_.dtype)
        yield f"{kind} a{k} = load(x{k} + {where[form].format(k)});"
    for m, step in enumerate(group.steps):
        names = [f"v{r}" if r >= 0 else f"a{-1 - r}" for r in step.refs]
        text = TABLE[step.op](names, step.attrs, step.types, step.result, scalars)
        kind = C_TYPES[step.result.dtype.name]
        yield f"{computation_type(step.result.dtype)} v{m} = as<{kind}>({text});"
    for k, m in enumerate(group.stored):
        yield f"store(y{k} + i, v{m});"
