"""What the functions that emit nodes see of an op, and what they emit into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from onnx import NodeProto, helper

from flow_core.authoring.specs import AttrValue, Op, TensorType
from flow_core.base.dtypes import DType
from flow_core.base.shapes import Shape
from flow_onnx.types import element_type

SMALL_INTEGERS = ("int8", "uint8", "char", "bool")
"""Element types for which many operators of ONNX are not defined."""


class Gap(Exception):
    """An op, or one of its attributes, has no counterpart.

    Args:
        reason: in words.
    """


@dataclass(slots=True)
class Network:
    """Nodes and constants, as they are emitted.

    Attributes:
        opset: version of ONNX's operators.
        nodes: in an order in which each comes after its inputs.
        constants: arrays by name.
        names: all names that are taken.
    """

    opset: int
    nodes: list[NodeProto] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    _known: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def unique(self, wanted: str) -> str:
        """``wanted``, or ``wanted_1``, ``wanted_2`` ... when it is taken; taken from now on."""
        name, number = wanted, 0
        while name in self.names:
            number += 1
            name = f"{wanted}_{number}"
        self.names.add(name)
        return name

    def constant(self, array: Any, wanted: str) -> str:
        """The name of an array; arrays with the same bytes are one."""
        key = (array.dtype.str, array.shape, array.tobytes())
        name = self._known.get(key)
        if name is None:
            name = self._known[key] = self.unique(wanted)
            self.constants[name] = array
        return name


@dataclass(slots=True)
class Emission:
    """One op while its nodes are emitted.

    Attributes:
        network: what they are added to.
        op: the op.
        inputs: names of its inputs.
        types: types of its inputs.
        outputs: types of its outputs.
        used: indices of the outputs that are read.
        open: per output, the axes whose sizes are open.
    """

    network: Network
    op: Op
    inputs: tuple[str, ...]
    types: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    used: frozenset[int] = frozenset((0,))
    open: tuple[frozenset[int], ...] = ()

    @property
    def opset(self) -> int:
        """The version of ONNX's operators."""
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
        """An attribute of the op."""
        return self.op.attrs[name]

    def gap(self, reason: str) -> NoReturn:
        """Says why this op cannot be exported."""
        raise Gap(reason)

    def since(self, opset: int, what: str) -> None:
        """A `Gap` before a version of ONNX's operators."""
        if self.opset < opset:
            self.gap(f"{what} needs opset {opset} or later, and this is {self.opset}")

    def nodes(self, op_type: str, *inputs: str, outputs: int, **attrs: Any) -> list[str]:
        """Adds a node; gives the names of its outputs."""
        name = self.network.unique(f"{self.op.name}/{op_type}")
        results = [self.network.unique(f"{name}:{i}") for i in range(outputs)]
        node = helper.make_node(op_type, list(inputs), results, name=name, **attrs)
        self.network.nodes.append(node)
        return results

    def node(self, op_type: str, *inputs: str, **attrs: Any) -> str:
        """Adds a node of one output; gives its name."""
        return self.nodes(op_type, *inputs, outputs=1, **attrs)[0]

    # ----------------------------------------------------------------- constants and shapes

    def const(self, value: Any, dtype: DType | str) -> str:
        """A constant."""
        kind = dtype.numpy if isinstance(dtype, DType) else np.dtype(dtype)
        return self.network.constant(np.asarray(value).astype(kind), f"{self.op.name}/const")

    def ints(self, values: Sequence[int]) -> str:
        """Sizes, axes and the like: a vector of int64."""
        return self.const(np.array(values, np.int64), "int64")

    def cast(self, x: str, dtype: DType | str) -> str:
        """``x`` in another element type."""
        return self.node("Cast", x, to=element_type(dtype))

    def truth(self, x: str, kind: TensorType) -> str:
        """``x`` as truth values: what is not 0 is true."""
        return x if kind.dtype.name == "bool" else self.cast(x, "bool")

    def reshape(
        self, x: str, shape: Shape, open: frozenset[int] = frozenset(), source: Shape = ()
    ) -> str:
        """``x`` in another shape.

        Args:
            x: what to reshape.
            shape: the new shape.
            open: its axes whose sizes are open: those that ``x`` has at the same place are copied,
                one more is worked out.
            source: the shape of ``x``, where sizes are to be copied.
        """
        copied = {i for i in open if shape[: i + 1] == source[: i + 1]}
        if len(open - copied) > 1:
            self.gap("more than one size of its result is open")
        if 0 in shape:
            self.since(14, "a tensor without elements")
            return self.node("Reshape", x, self.ints(shape), allowzero=1)
        sizes = [0 if i in copied else -1 if i in open else n for i, n in enumerate(shape)]
        return self.node("Reshape", x, self.ints(sizes))

    def as_output(self, x: str, source: Shape = ()) -> str:
        """``x`` in the shape of the first output; ``source`` as for `reshape`."""
        open = self.open[0] if self.open else frozenset()
        return self.reshape(x, self.outputs[0].shape, open, source)

    def transpose(self, x: str, perm: Sequence[int]) -> str:
        """``x`` with its axes in another order."""
        if list(perm) == list(range(len(perm))):
            return x
        return self.node("Transpose", x, perm=list(perm))

    def along(self, op_type: str, x: str, axes: Sequence[int], since: int, **attrs: Any) -> str:
        """A node whose axes are an input from some opset on, and an attribute before."""
        if self.opset >= since:
            return self.node(op_type, x, self.ints(axes), **attrs)
        return self.node(op_type, x, axes=list(axes), **attrs)

    def slice(
        self, x: str, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int],
        steps: Sequence[int] | None = None,
    ) -> str:  # fmt: skip
        """Some elements of some axes."""
        more = () if steps is None else (self.ints(steps),)
        return self.node("Slice", x, self.ints(starts), self.ints(ends), self.ints(axes), *more)
