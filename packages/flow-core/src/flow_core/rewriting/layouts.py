"""Keeps activations in NHWC between the ops of a backend that are faster on it.

Every value of four axes may exist in NCHW, as the program wrote it, in NHWC, or in both.  A
backend's table says which ops want NHWC, and which follow: they take it where one of their inputs
has come to be in it, as elementwise ops do without being named.  All others get NCHW.  Where one
meets the other an op of the backend reorders, and says for whom; each value is reordered once at
most, and not at all where one of its axes makes both layouts the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flow_core.ir.graph import Attrs, AttrValue, Graph, Op, TensorType, Value, tensor_type
from flow_core.plugins.specs import KernelSpec, OpSpec
from flow_core.rewriting.editor import Editor, edit

FIRST, LAST = "channels_first", "channels_last"
TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def last(shape: Sequence[int]) -> tuple[int, ...]:
    """The NHWC shape of NCHW activations.

    >>> last((8, 3, 5, 7))
    (8, 5, 7, 3)
    """
    return tuple(shape[i] for i in TO_LAST)


def wide_type(type_: TensorType) -> TensorType:
    """The type of activations in NHWC."""
    return tensor_type(last(type_.shape), type_.dtype)


@dataclass(frozen=True, slots=True)
class LayoutTable:
    """What the ops of a backend make of layouts.

    Attributes:
        wants: ops that are brought to NHWC, each with the rule that rewrites it.
        follows: ops that are rewritten where an input of theirs is in NHWC.
        dtypes: names of the element types that the rules move.
        reorder: the backend's op that changes layouts; its attributes are ``perm``, ``reason``
            and ``reordered``, the bytes that it copies.
    """

    wants: Mapping[str, Rule]
    follows: Mapping[str, Rule]
    dtypes: tuple[str, ...]
    reorder: str


@dataclass(slots=True)
class Layouts:
    """A graph on its way to NHWC.

    Attributes:
        table: of the backend.
        editor: the graph under change.
        specs: of all op types.
        nhwc: the NHWC form of values of the graph, where there is one.
        nchw: the NCHW form of values that were moved, where something reads it.
        moved: values whose NCHW form is not made by their own op any more.
    """

    table: LayoutTable
    editor: Editor
    specs: Mapping[str, OpSpec]
    nhwc: dict[Value, Value] = field(default_factory=dict)
    nchw: dict[Value, Value] = field(default_factory=dict)
    moved: set[Value] = field(default_factory=set)

    # ---------------------------------------------------------------------- what rules ask

    def outputs(self, op: Op) -> tuple[TensorType, ...]:
        """The types of an op's outputs, as the program has them."""
        return self.editor.graph.types[op.name]

    def movable(self, op: Op, *indices: int) -> bool:
        """Whether some inputs of an op have four axes and a type that the table moves."""
        types = self.editor.graph.input_types(op)
        return all(
            len(types[i].shape) == 4 and types[i].dtype.name in self.table.dtypes for i in indices
        )

    def is_first(self, op: Op, *indices: int) -> bool:
        """Whether an op's format is NCHW, and the inputs may be moved."""
        return op.attrs.get("data_format") == FIRST and self.movable(op, *indices)

    # ---------------------------------------------------------------------- forms of values

    def wide(self, value: Value, reader: Op) -> Value:
        """The NHWC form of a value."""
        if value not in self.nhwc:
            self.nhwc[value] = self._reordered(value, value, TO_LAST, reader)
        return self.nhwc[value]

    def plain(self, value: Value, reader: Op | None = None) -> Value:
        """The NCHW form of a value."""
        if value not in self.moved:
            return value
        if value not in self.nchw:
            self.nchw[value] = self._reordered(value, self.nhwc[value], TO_FIRST, reader)
        return self.nchw[value]

    def _reordered(
        self, value: Value, source: Value, perm: tuple[int, ...], reader: Op | None
    ) -> Value:
        form = "nhwc" if perm == TO_LAST else "nchw"
        reason = f"{reader.name} takes {form.upper()}" if reader else f"a result is {form}"
        maker = self.editor.graph.ops[value.op]
        name = f"{value.op}/{form}" + (f"_{value.index}" if value.index else "")
        op, type_ = self.reorder(name, maker, source, perm, reason, value.index)
        return self.editor.add(op, (type_,), maker, 0.5).output()

    def reorder(
        self, name: str, maker: Op, source: Value, perm: tuple[int, ...], reason: str, index: int
    ) -> tuple[Op, TensorType]:
        """An op that changes the layout of one of ``maker``'s values, and the type it gives."""
        of = self.editor.type_of(source)
        type_ = tensor_type(tuple(of.shape[axis] for axis in perm), of.dtype)
        place = maker.placement.only(index % maker.placement.size)  # an exchange has several
        longer = [axis for axis in perm if of.shape[axis] > 1]
        if longer == sorted(longer):  # by axes: equal sizes of several look as if none had moved
            return Op(name, "reshape", (source,), Attrs({"shape": type_.shape}), place), type_
        attrs: dict[str, AttrValue] = {"perm": perm, "reason": reason, "reordered": type_.nbytes}
        op = Op(name, self.table.reorder, (source,), Attrs(attrs), place)
        asked = self.table.reorder in self.editor.kernels
        if asked and not self.editor.accepts(op, (type_,)):  # numbers it has no kernel for
            attrs = {"perm": perm, "batch_axis_non_change": False}
            op = Op(name, "transpose", (source,), Attrs(attrs), place)
        return op, type_

    # ---------------------------------------------------------------------- changes

    def replace(self, op: Op, new: Op, types: tuple[TensorType, ...], wide: int = 1) -> None:
        """Puts the NHWC form of an op in its place, whose first outputs are in NHWC."""
        self.editor.add(new, types, op)
        for index in range(wide):
            value = Value(op.name, index)
            self.nhwc[value] = value
            self.moved.add(value)

    def attempt(self, op: Op, new: Op, *types: TensorType) -> bool:
        """Replaces an op if one of the backend's kernels takes the new one."""
        if not self.editor.accepts(new, types):
            return False
        self.replace(op, new, types)
        return True

    def leave(self, op: Op) -> None:
        """An op that stays: it reads NCHW."""
        inputs = tuple(self.plain(v, op) for v in op.inputs)
        self.editor.ops[op.name] = op.with_inputs(inputs)

    def visit(self, op: Op) -> bool:
        """Whether an op was rewritten to NHWC."""
        rule = self.table.wants.get(op.type)
        if rule is not None:
            return rule(self, op)
        if not any(v in self.moved for v in op.inputs):
            return False
        return self.table.follows.get(op.type, follow)(self, op)

    def finish(self) -> Graph:
        """The new graph; its results are in NCHW."""
        graph = self.editor.graph
        results = tuple([self.plain(v) for v in graph.results])
        made = self.editor.finish()
        return Graph(made.ops, made.types, results, made.effects, made.lines, made.origins)


Rule = Callable[[Layouts, Op], bool]
"""Rewrites an op to NHWC and says whether it did."""


def follow(work: Layouts, op: Op) -> bool:
    """An elementwise op with an input in NHWC whose other inputs have its shape or one element."""
    spec, types = work.specs[op.type], work.outputs(op)
    if not spec.elementwise or spec.random or spec.effect or len(types) != 1:
        return False
    shape = types[0].shape
    if len(shape) != 4:
        return False
    given = work.editor.graph.input_types(op)
    if any(t.shape != shape and t.size != 1 for t in given):
        return False
    inputs = [
        work.wide(v, op) if t.shape == shape else v for v, t in zip(op.inputs, given, strict=True)
    ]
    work.replace(op, op.with_inputs(tuple(inputs)), (wide_type(types[0]),))
    return True


def to_channels_last(
    graph: Graph,
    table: LayoutTable,
    specs: Mapping[str, OpSpec],
    kernels: Mapping[str, Sequence[KernelSpec]],
    devices: Sequence[str],
) -> Graph:
    """The graph with NHWC activations between the ops that like them.

    Args:
        graph: with an op per device.
        table: of the backend.
        specs: of all op types.
        kernels: the backend's, by op, for `Layouts.attempt`; what its op ``reorder`` does not take
            is transposed, unless it has no kernels here: then it takes all.
        devices: types of the devices whose ops the backend computes.
    """
    if not any(op.type in table.wants for op in graph.ops.values()):
        return graph
    work = Layouts(table, edit(graph, kernels), specs)
    for op in graph.ops.values():
        if op.placement.device_type not in devices or not work.visit(op):
            work.leave(op)
    return work.finish()
