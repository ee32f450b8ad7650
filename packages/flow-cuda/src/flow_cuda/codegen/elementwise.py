"""Kernels of elementwise ops: one kernel per fused group; a single op is a group of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from flow_core.authoring.specs import KernelQuery, TensorType, tensor_type
from flow_core.base.dtypes import as_dtype
from flow_cuda.codegen.expressions import TABLE, Element, computation_type
from flow_cuda.codegen.indices import index_type, offset_of, split_index
from flow_cuda.codegen.program import C_TYPES, Kernel, Scalars, make_kernel

VECTOR = 16
"""The number of bytes that one instruction reads or writes at most."""
AXES = 8
"""The maximum rank in `source/prelude.h`; adjacent axes are collapsed where possible."""


@dataclass(frozen=True, slots=True)
class Step:
    """One op of a fused group.

    Attributes:
        refs: the op's arguments: the index of a step, or ``-1 - k`` for input k of the group.
    """

    op: str
    refs: tuple[int, ...]
    attrs: Mapping[str, Any]
    types: tuple[TensorType, ...]
    result: TensorType


@dataclass(frozen=True, slots=True)
class Group:
    """A group of elementwise ops to compile as one kernel."""

    steps: tuple[Step, ...]
    stored: tuple[int, ...]  # indices of the steps that are outputs
    inputs: tuple[TensorType, ...]
    shape: tuple[int, ...]  # the common shape of all results

    @property
    def forms(self) -> tuple[str, ...]:
        """The indexing of each input: "each" (one element per output element), "one" or "place".

        "one" denotes an input with a single element, "place" one that is broadcast along some axes.
        """
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


@dataclass(frozen=True, slots=True)
class Layout:
    """How the threads of a kernel traverse the elements of a group."""

    sizes: tuple[int, ...]  # the sizes of the collapsed axes
    steps: tuple[tuple[int, ...], ...]  # the strides of each broadcast input
    width: int  # the number of adjacent elements that a thread reads and writes at once

    @property
    def size(self) -> int:
        return prod(self.sizes)


def make_layout(group: Group, addresses: Sequence[int]) -> Layout:
    """Return the widest layout for arrays at some addresses: the inputs, then the outputs.

    The width divides the last axis if an input is broadcast, so that all of its elements are
    adjacent, or are the same one.
    """
    sizes, steps = collapse_axes(group)
    rows = iter(steps)
    placed = [next(rows) if form == "place" else None for form in group.forms]
    adjacent = [
        form == "each" or (row is not None and row[-1] == 1)
        for form, row in zip(group.forms, placed, strict=True)
    ]
    types = (*group.inputs, *(group.steps[m].result for m in group.stored))
    moved = [*adjacent, *(True for _ in group.stored)]
    bytes_ = [t.dtype.itemsize for t, used in zip(types, moved, strict=True) if used]
    places = [x for x, used in zip(addresses, moved, strict=True) if used]
    inner = [s for row in steps if row[-1] == 1 for s in row[:-1]] + [*sizes[-1:]] * bool(steps)
    width = VECTOR // max(bytes_)
    while width > 1 and (
        any(n % width for n in inner)
        or any(x % (width * n) for x, n in zip(places, bytes_, strict=True))
    ):
        width //= 2
    return Layout(sizes, steps, width)


def write(group: Group, layout: Layout) -> tuple[Kernel, list[int | float]]:
    """Return the kernel of a group, and the numbers to pass after the arrays.

    Scalars are parameters, so that groups that differ only in them share a kernel. So is the number
    of elements, unless an input is broadcast: the sizes and strides are then constants.
    """
    scalars = Scalars()
    types = [C_TYPES[t.dtype.name] for t in group.inputs]
    results = [C_TYPES[group.steps[m].result.dtype.name] for m in group.stored]
    constant, width = bool(layout.steps), layout.width
    rows = list(_steps(group, scalars))
    body = [_loop(group, layout, rows, width, "0", str(layout.size) if constant else "size")]
    if width > 1 and not constant:
        body.append(_loop(group, layout, rows, 1, f"size / {width} * {width}", "size"))
    ones = (
        f"const {computation_type(t.dtype)} a{k} = load(x{k});"
        for k, t in enumerate(group.inputs)
        if group.forms[k] == "one"
    )
    parameters = [
        *((f"const {kind} *", f"x{k}") for k, kind in enumerate(types)),
        *((f"{kind} *", f"y{k}") for k, kind in enumerate(results)),
        *(() if constant else (("i64", "size"),)),
        *scalars.parameters,
    ]
    stem = group.steps[0].op if len(group.steps) == 1 else f"group_of_{len(group.steps)}"
    kernel = make_kernel(stem, parameters, "\n".join((*ones, *body)))
    return kernel, [*(() if constant else (layout.size,)), *scalars.values]


def _steps(group: Group, scalars: Scalars) -> Iterator[str]:
    """Yield the code of each op on one element."""
    for m, step in enumerate(group.steps):
        names = [f"v{r}" if r >= 0 else f"a{-1 - r}" for r in step.refs]
        element = Element(names, step.attrs, step.types, step.result, scalars)
        text = TABLE[step.op](element)
        kind = C_TYPES[step.result.dtype.name]
        yield f"{computation_type(step.result.dtype)} v{m} = as<{kind}>({text});"


def _loop(
    group: Group, layout: Layout, rows: Sequence[str], width: int, start: str, stop: str
) -> str:
    """Return a loop over vectors of elements.

    It reads all inputs of a vector before it writes any output, because an output may overwrite an
    input.
    """
    steps = iter(layout.steps)
    before: list[str] = []
    inside: list[str] = []
    if layout.steps:
        before += split_index(layout.sizes, "e")
    for k, (type_, form) in enumerate(zip(group.inputs, group.forms, strict=True)):
        wide = computation_type(type_.dtype)
        row = next(steps) if form == "place" else ()
        where = offset_of(layout.sizes, row) if row else "e"
        if form == "each" or row[-1:] == (1,):
            before.append(f"const auto p{k} = load_pack<{width}>(x{k} + {where});")
            inside.append(f"{wide} a{k} = load(p{k}.each + k);")
        elif form == "place":
            before.append(f"const {wide} a{k} = load(x{k} + {where});")
    results = [C_TYPES[group.steps[m].result.dtype.name] for m in group.stored]
    before += [f"Pack<{kind}, {width}> q{k};" for k, kind in enumerate(results)]
    inside += [*rows, *(f"store(q{k}.each + k, v{m});" for k, m in enumerate(group.stored))]
    after = [f"store_pack(y{k} + e, q{k});" for k in range(len(results))]
    index = f"const {index_type(layout.size)} e = {start} + i * {width};"
    return "\n".join((
        f"EACH(i, ({stop} - {start}) / {width}) {{", index, *before,
        f"_Pragma(\"unroll\") for (int k = 0; k < {width}; k++) {{", *inside, "}", *after, "}",
    ))  # fmt: skip
