"""The context of importers: a node of a model, with its inputs as blobs or known arrays."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from onnx import NodeProto, helper

from flow_core.authoring.specs import emit
from flow_core.base.dtypes import as_dtype
from flow_core.base.shapes import Shape

Blob = Any
"""A blob of the job being traced; pieces do not import its class."""

Tensor = Any
"""A blob, a numpy array whose value is known at compile time, or None for an omitted input."""

LARGEST_LITERAL = 1024
"""The largest number of elements of an array that is stored in the graph of the job."""


class UnsupportedNode(Exception):
    """A node, or one of its attributes, has no counterpart in flow.

    Args:
        reason: why there is none.
    """


@dataclass(frozen=True, slots=True)
class Weight:
    """An initializer of a model, which becomes a variable when an op needs it as a blob.

    Attributes:
        name: its name in the model.
        array: its values.
    """

    name: str
    array: Any


@dataclass(slots=True)
class Node:
    """One node of a model.

    Attributes:
        proto: the node.
        inputs: its inputs; initializers are `Weight` records.
        opset: the version of ONNX's operators.
        variable: adds a variable, or returns the existing one; called with the name, the array and
            whether the variable is trainable if the program does not freeze it.
    """

    proto: NodeProto
    inputs: Sequence[Any]
    opset: int
    variable: Callable[[str, Any, bool], Blob]

    @property
    def attrs(self) -> Mapping[str, Any]:
        """All attributes that the node sets."""
        return {a.name: helper.get_attribute_value(a) for a in self.proto.attribute}

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute as a Python value."""
        value = self.attrs.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def has(self, index: int) -> bool:
        """Return whether an optional input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def known(self, index: int, what: str) -> Any:
        """Return the array of an input whose value must be known; None if it is omitted."""
        if not self.has(index):
            return None
        given = self.inputs[index]
        array = given.array if isinstance(given, Weight) else given
        if not isinstance(array, np.ndarray):
            self.unsupported(f"{what} computed from the inputs of the job")
        return array

    def ints(self, index: int, what: str) -> list[int] | None:
        """Return the integers of an input whose value must be known; None if it is omitted."""
        array = self.known(index, what)
        return None if array is None else [int(n) for n in array.reshape(-1)]

    def ints_of(self, name: str, index: int) -> list[int] | None:
        """Return integers that are an attribute in early opsets and an input in later ones."""
        given = self.attrs.get(name)
        return self.ints(index, name) if given is None else [int(n) for n in given]

    def blob(self, index: int = 0, trainable: bool = True) -> Blob:
        """Return an input as a blob; weights become variables, and other arrays constants."""
        given = self.inputs[index]
        if isinstance(given, Weight) and given.array.size > 1 and given.array.dtype.kind == "f":
            return self.variable(variable_name(given.name), given.array, trainable)
        if isinstance(given, Weight):
            return self.constant(given.array, given.name)
        if isinstance(given, np.ndarray):
            return self.constant(given, f"{self.proto.output[0]}-constant-{index}")
        return given

    def blobs(self) -> list[Blob]:
        """Return all inputs as blobs."""
        return [self.blob(i) for i in range(len(self.inputs))]

    def constant(self, array: Any, name: str) -> Blob:
        """Return a blob with the values of an array; large arrays become frozen variables."""
        array = array.astype(np.int8) if array.dtype == np.bool_ else array
        if array.size > LARGEST_LITERAL:
            return self.variable(variable_name(name), array, False)
        attrs = {"shape": array.shape, "dtype": as_dtype(array.dtype).name}
        if array.size and (array == array.flat[0]).all():
            return emit("constant", value=array.flat[0].item(), **attrs)
        return emit("literal", data=tuple(array.reshape(-1).tolist()), **attrs)

    def unsupported(self, reason: str) -> NoReturn:
        """Raise `UnsupportedNode`."""
        raise UnsupportedNode(reason)


def variable_name(name: str) -> str:
    """Return the name of a weight as a relative path, as names of variables must be.

    >>> variable_name("/layer/./Add_output_0")
    'layer/Add_output_0'
    """
    return "/".join(part for part in re.split(r"[/\\]", name) if part not in ("", ".", ".."))


Importer = Callable[[Node], Any]
"""Adds the ops of a node; returns a tensor, or a tuple of tensors."""


def scalar(n: Node, index: int) -> float | None:
    """Return the value of an input that is one known number, else None."""
    given = n.inputs[index]
    array = given.array if isinstance(given, Weight) else given
    if isinstance(array, np.ndarray) and array.size == 1 and array.ndim <= 1:
        value: float = array.item()
        return value
    return None


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


def expanded(x: Blob, shape: Shape) -> Blob:
    """Broadcast a blob to a shape."""
    if tuple(x.shape) == tuple(shape):
        return x
    x = reshaped(x, (1,) * (len(shape) - len(x.shape)) + tuple(x.shape))
    return x if tuple(x.shape) == tuple(shape) else emit("broadcast_to", x, shape=tuple(shape))


def moved_last(x: Blob, axis: int, run: Callable[[Blob], Any]) -> Any:
    """Apply a function to a blob whose axis was moved to the end, and move it back."""
    rank = len(x.shape)
    axis %= rank
    perm = [*(i for i in range(rank) if i != axis), axis]
    inverse = sorted(range(rank), key=perm.__getitem__)
    found = run(transposed(x, perm))
    many = found if isinstance(found, tuple) else (found,)
    back = tuple(transposed(y, inverse) for y in many)
    return back if isinstance(found, tuple) else back[0]
