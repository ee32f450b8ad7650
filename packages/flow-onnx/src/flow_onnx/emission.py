"""The context of emitters: an op, and the network to which they add nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from onnx import GraphProto, NodeProto, helper

from flow_core.authoring.specs import AttrValue, Graph, Op, TensorType, Value
from flow_core.base.dtypes import DType
from flow_core.base.shapes import Shape
from flow_onnx.types import element_type

SMALL_INTEGERS = ("int8", "uint8", "char", "bool")
"""Element types that many ONNX operators do not support."""


class UnsupportedOp(Exception):
    """An op, or one of its attributes, has no ONNX equivalent.

    Args:
        reason: why there is no equivalent.
    """


@dataclass(slots=True)
class Network:
    """The emitted nodes and constants."""

    opset: int  # version of the ONNX operators
    nodes: list[NodeProto] = field(default_factory=list)  # in topological order
    constants: dict[str, Any] = field(default_factory=dict)  # arrays of the constants, by name
    names: set[str] = field(default_factory=set)  # all names in use
    _known: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def unique(self, wanted: str) -> str:
        """Reserve the name ``wanted``, or ``wanted_1``, ``wanted_2`` ... if it is in use."""
        name, number = wanted, 0
        while name in self.names:
            number += 1
            name = f"{wanted}_{number}"
        self.names.add(name)
        return name

    def constant(self, array: Any, wanted: str) -> str:
        """Return the name of a constant; equal arrays share one constant."""
        key = (array.dtype.str, array.shape, array.tobytes())
        name = self._known.get(key)
        if name is None:
            name = self._known[key] = self.unique(wanted)
            self.constants[name] = array
        return name


@dataclass(slots=True)
class Emission:
    """The context for emitting the nodes of one op."""

    network: Network  # which receives the nodes
    graph: Graph
    names: Mapping[Value, str]  # names of the values before the op
    op: Op
    inputs: tuple[str, ...]  # names of its inputs
    types: tuple[TensorType, ...]  # types of its inputs
    outputs: tuple[TensorType, ...]
    # ``body(attr, inputs, own)`` returns a body of the op as a graph within the model; ``inputs``
    # are names for the inputs of the body, of which it declares the first ``own``, and the others
    # are values of the model.
    body: Callable[[str, Sequence[str], int], GraphProto]
    used: frozenset[int] = frozenset((0,))  # indices of the outputs that some op reads
    open: tuple[frozenset[int], ...] = ()  # axes of open size, for each output

    @property
    def opset(self) -> int:
        """The version of the ONNX operators."""
        return self.network.opset

    @property
    def x(self) -> str:
        """The name of the first input."""
        return self.inputs[0]

    @property
    def shape(self) -> Shape:
        """The shape of the first input."""
        return self.types[0].shape

    @property
    def rank(self) -> int:
        """The number of axes of the first input."""
        return len(self.types[0].shape)

    @property
    def dtype(self) -> DType:
        """The element type of the first input."""
        return self.types[0].dtype

    def attr(self, name: str) -> AttrValue:
        """Return an attribute of the op."""
        return self.op.attrs[name]

    def unsupported(self, reason: str) -> NoReturn:
        """Raise `UnsupportedOp`."""
        raise UnsupportedOp(reason)

    def require_opset(self, opset: int, what: str) -> None:
        """Raise `UnsupportedOp` if the model's opset is lower than ``opset``."""
        if self.opset < opset:
            self.unsupported(f"{what} needs opset {opset} or later, and this is {self.opset}")

    def nodes(self, op_type: str, *inputs: str, outputs: int, **attrs: Any) -> list[str]:
        """Add a node and return the names of its outputs."""
        name = self.network.unique(f"{self.op.name}/{op_type}")
        results = [self.network.unique(f"{name}:{i}") for i in range(outputs)]
        node = helper.make_node(op_type, list(inputs), results, name=name, **attrs)
        self.network.nodes.append(node)
        return results

    def node(self, op_type: str, *inputs: str, **attrs: Any) -> str:
        """Add a node with one output and return its name."""
        return self.nodes(op_type, *inputs, outputs=1, **attrs)[0]

    # ----------------------------------------------------------------- constants and shapes

    def const(self, value: Any, dtype: DType | str) -> str:
        """Return the name of a constant with the given value."""
        kind = dtype.numpy if isinstance(dtype, DType) else np.dtype(dtype)
        return self.network.constant(np.asarray(value).astype(kind), f"{self.op.name}/const")

    def ints(self, values: Sequence[int]) -> str:
        """Return the name of a constant int64 vector, such as a list of sizes or axes."""
        return self.const(np.array(values, np.int64), "int64")

    def cast(self, x: str, dtype: DType | str) -> str:
        """Cast ``x`` to another element type."""
        return self.node("Cast", x, to=element_type(dtype))

    def to_bool(self, x: str, kind: TensorType) -> str:
        """Cast ``x`` to bool; every nonzero number becomes true."""
        return x if kind.dtype.name == "bool" else self.cast(x, "bool")

    def reshape(
        self, x: str, shape: Shape, open: frozenset[int] = frozenset(), source: Shape = ()
    ) -> str:
        """Reshape ``x``.

        Args:
            open: the axes of ``shape`` that have an open size: a size equal to that of the same
                axis of ``x`` is copied, and one other size can be inferred.
            source: the shape of ``x``, from which sizes are copied; empty to copy none.
        """
        copied = {i for i in open if shape[: i + 1] == source[: i + 1]}
        if len(open - copied) > 1:
            self.unsupported("more than one size of its result is open")
        if 0 in shape:
            self.require_opset(14, "a tensor without elements")
            return self.node("Reshape", x, self.ints(shape), allowzero=1)
        sizes = [0 if i in copied else -1 if i in open else n for i, n in enumerate(shape)]
        return self.node("Reshape", x, self.ints(sizes))

    def as_output(self, x: str, source: Shape = ()) -> str:
        """Reshape ``x`` to the shape of the first output; see `reshape` for ``source``."""
        open = self.open[0] if self.open else frozenset()
        return self.reshape(x, self.outputs[0].shape, open, source)

    def transpose(self, x: str, perm: Sequence[int]) -> str:
        """Transpose ``x``; the identity permutation adds no node."""
        if list(perm) == list(range(len(perm))):
            return x
        return self.node("Transpose", x, perm=list(perm))

    def node_with_axes(
        self, op_type: str, x: str, axes: Sequence[int], since: int, **attrs: Any
    ) -> str:
        """Add a node whose axes are an input since opset ``since``, and an attribute before."""
        if self.opset >= since:
            return self.node(op_type, x, self.ints(axes), **attrs)
        return self.node(op_type, x, axes=list(axes), **attrs)

    def slice(
        self, x: str, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int],
        steps: Sequence[int] | None = None,
    ) -> str:  # fmt: skip
        """Add a ``Slice`` node."""
        more = () if steps is None else (self.ints(steps),)
        return self.node("Slice", x, self.ints(starts), self.ints(ends), self.ints(axes), *more)
