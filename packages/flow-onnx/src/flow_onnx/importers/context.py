"""The context of importers: a node of a model, with its inputs as blobs or known arrays."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import numpy as np
from onnx import GraphProto, NodeProto, helper

from flow_core.authoring import specs
from flow_core.base.dtypes import DType, as_dtype
from flow_core.base.shapes import Shape
from flow_onnx.importers.folding import Folder, Known, emit

Blob = Any
"""A blob of the job being traced, or a `Known`; pieces do not import the class of blobs."""

LARGEST_LITERAL = 1024
"""The largest number of elements of an array that is stored in the graph of the job."""


class UnsupportedNode(Exception):
    """A node, or one of its attributes, has no counterpart in flow.

    Args:
        reason: why there is none.
    """


class InvalidNode(Exception):
    """A node violates the definition of its operator."""

    def __init__(self, found: str, allowed: str) -> None:
        super().__init__(found)
        self.allowed = allowed


@dataclass(frozen=True, slots=True)
class Weight:
    """An initializer of a model, which becomes a variable when an op needs it as a blob."""

    name: str  # in the model
    array: Any

    @property
    def is_trained(self) -> bool:
        """Whether it becomes a variable that train jobs update."""
        kind = self.array.dtype
        return bool(self.array.size > 1 and (kind.kind == "f" or kind.name == "bfloat16"))

    @property
    def shape(self) -> Shape:
        """The shape."""
        return tuple(self.array.shape)


class Bodies(Protocol):
    """Adds the ops of the graphs that are attributes of nodes."""

    tools: specs.ImportTools  # what importers use beside `emit`

    def run(self, graph: GraphProto, inputs: Sequence[tuple[Blob, int]]) -> list[Any]:
        """Add the ops of a graph; return its results as blobs, arrays and `Weight` records.

        Args:
            inputs: the values of its inputs, and their element types.
        """

    def blob(self, name: str, value: Any) -> Blob:
        """Return a value as a blob."""

    def is_known(self, name: str) -> bool:
        """Return whether a value of the model is known while the job is defined."""


@dataclass(slots=True)
class Node:
    """One node of a model."""

    proto: NodeProto
    # Its inputs: blobs, arrays, `Weight` records, and None for omitted inputs.
    inputs: Sequence[Any]
    elements: Sequence[int]  # the element types of the inputs, as ONNX numbers them
    opset: int  # the version of ONNX's operators
    variable: Callable[[str, Any, bool], Blob]  # see `ImportTools`
    folder: Folder  # computes ops on known inputs
    bodies: Bodies  # adds the ops of graphs within the model
    folds: bool = False  # whether all inputs are known, so that `blob` returns `Known` values
    attrs: Mapping[str, Any] = field(init=False)  # the attributes that the node sets
    # Names of attributes and numbers of inputs that the importer did not read.
    unread: set[str | int] = field(init=False)

    def __post_init__(self) -> None:
        self.attrs = {a.name: helper.get_attribute_value(a) for a in self.proto.attribute}
        self.unread = {*self.attrs, *(i for i, x in enumerate(self.inputs) if x is not None)}

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute as a Python value."""
        self.unread.discard(name)
        value = self.attrs.get(name, default)
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def axis(self, rank: int, default: int = 0, last: int = 0) -> int:
        """Return the attribute ``axis``, counted from the first axis.

        Args:
            rank: the number of axes; the attribute is from ``-rank`` to ``rank - 1``.
            default: the value of an omitted attribute.
            last: 1 if ``rank`` is permitted, too.
        """
        return self.axes([self.attr("axis", default)], rank, "axis", last)[0]

    def axes(self, given: Sequence[int], rank: int, what: str = "axes", last: int = 0) -> list[int]:
        """Return axes counted from the first one."""
        for axis in given:
            if not -rank <= axis < rank + last:
                allowed = f"-{rank} to {rank - 1 + last}"
                raise InvalidNode(f"{what}={axis} for a value of {rank} axes", allowed)
        found = [axis + rank if axis < 0 else axis for axis in given]
        if len(set(found)) < len(found):
            raise InvalidNode(f"{what}={list(given)}", "each axis once")
        return found

    def has(self, index: int) -> bool:
        """Return whether an optional input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> Any:
        """Return an input as a blob or, if it is known, as an array."""
        if not self.has(index):
            raise InvalidNode(f"no input number {index}", "all inputs that are not optional")
        self.unread.discard(index)
        given = self.inputs[index]
        return given.array if isinstance(given, Weight) else given

    def known(self, index: int, what: str) -> Any:
        """Return the array of an input whose value must be known; None if it is omitted."""
        if not self.has(index):
            return None
        array = self.value(index)
        if not isinstance(array, np.ndarray):
            self.unsupported(f"{what} computed from the inputs of the job")
        return array

    def number(self, index: int, what: str, default: Any) -> Any:
        """Return the only element of an input whose value must be known."""
        array = self.known(index, what)
        if array is None:
            return default
        if array.size != 1:
            raise InvalidNode(f"{what} of shape {array.shape}", "one number")
        return numbers(array)[0]

    def ints(self, index: int, what: str) -> list[int] | None:
        """Return the integers of an input whose value must be known; None if it is omitted."""
        array = self.known(index, what)
        return None if array is None else [int(n) for n in array.reshape(-1)]

    def ints_of(self, name: str, index: int) -> list[int] | None:
        """Return integers that are an attribute in early opsets and an input in later ones."""
        if name not in self.attrs:
            return self.ints(index, name)
        given = self.attr(name)
        return [int(n) for n in (given if isinstance(given, Sequence) else [given])]

    def shape(self, index: int = 0) -> Shape:
        """Return the shape of an input, without using its value."""
        return tuple(self.value(index).shape)

    def blob(self, index: int = 0, trainable: bool = True) -> Blob:
        """Return an input as a blob; weights become variables, and other arrays constants."""
        array = self.value(index)
        given = self.inputs[index]
        if not isinstance(array, np.ndarray):
            return array
        if self.folds:
            return Known(array, self.folder)
        if not isinstance(given, Weight):
            return self.constant(array, f"{self.proto.output[0]}-constant-{index}")
        if given.is_trained:
            return self.variable(variable_name(given.name), array, trainable)
        return self.constant(array, given.name)

    def blobs(self) -> list[Blob]:
        """Return all inputs as blobs."""
        return [self.blob(i) for i in range(len(self.inputs))]

    def constant(self, array: Any, name: str) -> Blob:
        """Return a blob with the values of an array; large arrays become frozen variables."""
        if self.folds:
            return Known(array, self.folder)
        if array.size > LARGEST_LITERAL:
            return self.variable(variable_name(name), array, False)
        attrs = {"shape": array.shape, "dtype": as_dtype(array.dtype).name}
        data = numbers(array)
        if data and array.tobytes() == array.flat[0].tobytes() * array.size:
            return specs.emit("constant", value=data[0], **attrs)
        return specs.emit("literal", data=tuple(data), **attrs)

    def counting(self, limit: int, dtype: DType) -> Blob:
        """Return the integers from 0 to ``limit - 1``."""
        if not self.folds and limit:
            return specs.emit("range", start=0, limit=limit, delta=1, dtype=dtype.name)
        self.folder.allow((limit,), dtype.itemsize)
        return self.constant(np.arange(limit, dtype=dtype.numpy), "no-number")

    def unsupported(self, reason: str) -> NoReturn:
        """Raise `UnsupportedNode`."""
        raise UnsupportedNode(reason)

    def invalid(self, found: str, allowed: str) -> NoReturn:
        """Raise `InvalidNode`."""
        raise InvalidNode(found, allowed)


def variable_name(name: str) -> str:
    """Return the name of a weight as a relative path, as names of variables must be.

    >>> variable_name("/layer/./Add_output_0")
    'layer/Add_output_0'
    """
    return "/".join(part for part in re.split(r"[/\\]", name) if part not in ("", ".", ".."))


Importer = Callable[[Node], Any]
"""Adds the ops of a node; returns a tensor, or a tuple of tensors."""


def numbers(array: Any) -> list[Any]:
    """Return the elements of an array as Python numbers."""
    is_foreign = array.dtype.kind == "V" or array.dtype.name == "bfloat16"
    found: list[Any] = (array.astype(np.float32) if is_foreign else array).reshape(-1).tolist()
    return found


def scalar(n: Node, index: int) -> float | None:
    """Return the value of an input that is one known number, else None."""
    array = n.value(index)
    if isinstance(array, np.ndarray) and array.size == 1 and array.ndim <= 1:
        value: float = numbers(array)[0]
        return value
    return None


def by_kind(name: str, value: float, dtype: DType, integral: str = "integral") -> dict[str, Any]:
    """Return the two attributes, for floating-point types and for integers, that hold a number.

    >>> by_kind("{}_value", float("inf"), as_dtype("float32"))
    {'floating_value': inf, 'integral_value': 0}
    """
    pair = (float(value), 0) if dtype.is_floating else (0.0, int(value))
    return dict(zip((name.format("floating"), name.format(integral)), pair, strict=True))


def reshaped(x: Blob, shape: Sequence[int]) -> Blob:
    """Return a blob with another shape."""
    return x if tuple(x.shape) == tuple(shape) else emit("reshape", x, shape=tuple(shape))


def transposed(x: Blob, perm: Sequence[int]) -> Blob:
    """Return a blob with permuted axes."""
    if list(perm) == list(range(len(perm))):
        return x
    return emit("transpose", x, perm=tuple(perm))


def as_type(x: Blob, dtype: str) -> Blob:
    """Return a blob with another element type."""
    return x if x.dtype.name == dtype else emit("cast", x, dtype=dtype)


def widened(x: Blob) -> Blob:
    """Return a blob in a type in which sums of its elements do not overflow."""
    if x.dtype.is_floating:
        return as_type(x, x.dtype.accumulate.name)
    return as_type(x, "int64")


def expanded(x: Blob, shape: Shape) -> Blob:
    """Broadcast a blob to a shape."""
    if tuple(x.shape) == tuple(shape):
        return x
    x = reshaped(x, (1,) * (len(shape) - len(x.shape)) + tuple(x.shape))
    return x if tuple(x.shape) == tuple(shape) else emit("broadcast_to", x, shape=tuple(shape))


def moved_last(x: Blob, axis: int, run: Callable[[Blob], Any]) -> Any:
    """Apply a function to a blob whose axis was moved to the end, and move it back."""
    rank = len(x.shape)
    perm = [*(i for i in range(rank) if i != axis), axis]
    inverse = sorted(range(rank), key=perm.__getitem__)
    found = run(transposed(x, perm))
    many = found if isinstance(found, tuple) else (found,)
    back = tuple(transposed(y, inverse) for y in many)
    return back if isinstance(found, tuple) else back[0]
