"""Choice of data layouts: keep activations in NHWC between ops that are faster with it.

Every value with four axes exists in NCHW (the program's layout), in NHWC, or in both.  A backend's
table lists the ops that prefer NHWC, and the ops that follow, which use NHWC if one of their inputs
is in NHWC.  Elementwise ops follow without being listed.  All other ops read NCHW.  An op of the
backend converts between the layouts, with the reason as an attribute.  Each value is converted at
most once, and not at all if both layouts have the same bytes because of axes of size 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flow_core.ir.graph import Attrs, AttrValue, Graph, Op, TensorType, Value, tensor_type
from flow_core.passes.rewriting.rewriter import KernelRewriter
from flow_core.plugins.specs import KernelSpec, OpSpec

FIRST, LAST = "channels_first", "channels_last"
TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def channels_last_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the NHWC shape of NCHW activations.

    >>> channels_last_shape((8, 3, 5, 7))
    (8, 5, 7, 3)
    """
    return tuple(shape[i] for i in TO_LAST)


def wide_type(type_: TensorType) -> TensorType:
    """Return the type of activations in NHWC."""
    return tensor_type(channels_last_shape(type_.shape), type_.dtype)


@dataclass(frozen=True, slots=True)
class LayoutTable:
    """Layout preferences of a backend's ops.

    Attributes:
        wants: rewrite rules for the ops that prefer NHWC, by op type.
        follows: rewrite rules for the ops that use NHWC if one of their inputs is in NHWC, by op
            type.
        dtypes: names of the element types to which the rules apply.
        reorder: the backend's op that changes layouts; its attributes are ``perm``, ``reason``
            and ``reordered``, the number of bytes copied.
    """

    wants: Mapping[str, Rule]
    follows: Mapping[str, Rule]
    dtypes: tuple[str, ...]
    reorder: str


@dataclass(slots=True)
class Layouts:
    """A graph during the conversion to NHWC.

    Attributes:
        table: the backend's preferences.
        specs: the op specs, by type.
        nhwc: the NHWC forms of values of the graph, as far as they exist.
        nchw: the NCHW forms of moved values, as far as ops read them.
        moved: values that their ops now compute in NHWC instead of NCHW.
    """

    table: LayoutTable
    rewriter: KernelRewriter
    specs: Mapping[str, OpSpec]
    nhwc: dict[Value, Value] = field(default_factory=dict)
    nchw: dict[Value, Value] = field(default_factory=dict)
    moved: set[Value] = field(default_factory=set)

    # ---------------------------------------------------------------------- queries of rules

    def outputs(self, op: Op) -> tuple[TensorType, ...]:
        """Return the types of an op's outputs in the program's layout."""
        return self.rewriter.graph.types[op.name]

    def movable(self, op: Op, *indices: int) -> bool:
        """Return whether some inputs of an op have four axes and an element type of the table."""
        types = self.rewriter.graph.input_types(op)
        return all(
            len(types[i].shape) == 4 and types[i].dtype.name in self.table.dtypes for i in indices
        )

    def is_first(self, op: Op, *indices: int) -> bool:
        """Return whether an op's data format is NCHW and the given inputs are movable."""
        return op.attrs.get("data_format") == FIRST and self.movable(op, *indices)

    # ---------------------------------------------------------------------- forms of values

    def wide(self, value: Value, reader: Op) -> Value:
        """Return the NHWC form of a value."""
        if value not in self.nhwc:
            self.nhwc[value] = self._reordered(value, value, TO_LAST, reader)
        return self.nhwc[value]

    def plain(self, value: Value, reader: Op | None = None) -> Value:
        """Return the NCHW form of a value."""
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
        maker = self.rewriter.graph.ops[value.op]
        suffix = f"_{value.index}" if value.index else ""
        name = self.rewriter.unique_name(f"{value.op}/{form}{suffix}")
        op, type_ = self.reorder(name, maker, source, perm, reason, value.index)
        return self.rewriter.after(maker).add(op, (type_,)).output()

    def reorder(
        self, name: str, maker: Op, source: Value, perm: tuple[int, ...], reason: str, index: int
    ) -> tuple[Op, TensorType]:
        """Return an op that changes the layout of one of ``maker``'s values, and its output type.

        This is a ``reshape`` if both layouts have the same bytes; otherwise the table's ``reorder``
        op or, if none of the backend's kernels accepts that, a ``transpose``.
        """
        of = self.rewriter.type_of(source)
        type_ = tensor_type(tuple(of.shape[axis] for axis in perm), of.dtype)
        place = maker.placement.only(index % maker.placement.size)  # an exchange has several
        longer = [axis for axis in perm if of.shape[axis] > 1]
        if longer == sorted(longer):  # compare axes: shapes are ambiguous for equal sizes
            return Op(name, "reshape", (source,), Attrs({"shape": type_.shape}), place), type_
        attrs: dict[str, AttrValue] = {"perm": perm, "reason": reason, "reordered": type_.nbytes}
        op = Op(name, self.table.reorder, (source,), Attrs(attrs), place)
        asked = self.table.reorder in self.rewriter.kernels
        if asked and not self.rewriter.accepts(op, (type_,)):
            attrs = {"perm": perm, "batch_axis_non_change": False}
            op = Op(name, "transpose", (source,), Attrs(attrs), place)
        return op, type_

    # ---------------------------------------------------------------------- changes

    def replace(self, op: Op, new: Op, types: tuple[TensorType, ...], wide: int = 1) -> None:
        """Replace an op with its NHWC form, whose first ``wide`` outputs are in NHWC."""
        self.rewriter.replace(op, new, types)
        for index in range(wide):
            value = Value(op.name, index)
            self.nhwc[value] = value
            self.moved.add(value)

    def attempt(self, op: Op, new: Op, *types: TensorType) -> bool:
        """Replace an op if a kernel of the backend accepts the new op; return whether it does."""
        if not self.rewriter.accepts(new, types):
            return False
        self.replace(op, new, types)
        return True

    def leave(self, op: Op) -> None:
        """Keep an op unchanged, except that it reads the NCHW forms of its inputs."""
        inputs = tuple([self.plain(v, op) for v in op.inputs])
        if inputs != op.inputs:
            self.rewriter.replace(op, op.with_inputs(inputs))

    def visit(self, op: Op) -> bool:
        """Rewrite an op to NHWC if it prefers NHWC or follows; return whether it was rewritten."""
        rule = self.table.wants.get(op.type)
        if rule is not None:
            return rule(self, op)
        if not any(v in self.moved for v in op.inputs):
            return False
        return self.table.follows.get(op.type, propagate)(self, op)

    def finish(self) -> Graph:
        """Return the new graph, whose results are in NCHW."""
        self.rewriter.results = tuple([self.plain(v) for v in self.rewriter.graph.results])
        return self.rewriter.finish()


Rule = Callable[[Layouts, Op], bool]
"""A function that rewrites an op to NHWC, and returns whether it was rewritten."""


def propagate(work: Layouts, op: Op) -> bool:
    """Rewrite an elementwise op if each input has the shape of its output or one element."""
    spec, types = work.specs[op.type], work.outputs(op)
    if not spec.elementwise or spec.random or spec.effect or len(types) != 1:
        return False
    shape = types[0].shape
    if len(shape) != 4:
        return False
    given = work.rewriter.graph.input_types(op)
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
    """Return the graph with NHWC activations between the ops that prefer them.

    Args:
        graph: a graph with an op per device.
        table: the backend's preferences.
        specs: the op specs, by type.
        kernels: the backend's kernels, by op type, for `Layouts.attempt`.  If they include kernels
            for the ``reorder`` op but none of these accepts a conversion, it becomes a transpose.
        devices: types of the devices whose ops the backend computes.
    """
    if not any(op.type in table.wants for op in graph.ops.values()):
        return graph
    work = Layouts(table, KernelRewriter(graph, kernels), specs)
    for op in graph.ops.values():
        if op.placement.device_type not in devices or not work.visit(op):
            work.leave(op)
    return work.finish()
