"""Tensors and nodes of simulated graphs, and their serialization."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Ints = tuple[int, ...]


@dataclass(eq=False)
class FakeTensor:
    """A tensor of a graph; setters return the tensor."""

    name: str
    dim: Ints = ()
    stride: Ints = ()
    data_type: Any = None
    uid: int = -1
    virtual: bool = True
    by_value: bool = False

    def set_uid(self, uid: int) -> FakeTensor:
        """Set the tensor's key in variant packs."""
        self.uid = uid
        return self

    def set_output(self, value: bool) -> FakeTensor:
        """Set whether the tensor is an output, written to memory."""
        self.virtual = not value
        return self

    def set_data_type(self, value: Any) -> FakeTensor:
        """Set the element type."""
        self.data_type = value
        return self

    def set_dim(self, dim: Sequence[int]) -> FakeTensor:
        """Set the sizes."""
        self.dim = tuple(dim)
        return self

    def set_stride(self, stride: Sequence[int]) -> FakeTensor:
        """Set the strides in elements."""
        self.stride = tuple(stride)
        return self


@dataclass(frozen=True, eq=False)
class FakeNode:
    """A graph node.

    Attributes:
        kind: name of the method that created it.
        inputs: the inputs, by the library's names.
        outputs: the outputs, in the library's order.
        params: the other parameters of the method.
    """

    kind: str
    inputs: Mapping[str, FakeTensor]
    outputs: tuple[FakeTensor, ...]
    params: Mapping[str, Any]


def packed(given: Sequence[FakeTensor], nodes: Sequence[FakeNode]) -> dict[str, Any]:
    """Return a graph as plain data."""
    tensors = [*given, *(t for node in nodes for t in node.outputs)]
    place = {id(t): i for i, t in enumerate(tensors)}
    return {
        "tensors": [_packed(t) for t in tensors],
        "given": len(given),
        "nodes": [
            {
                "kind": node.kind,
                "inputs": {name: place[id(t)] for name, t in node.inputs.items()},
                "outputs": [place[id(t)] for t in node.outputs],
                "params": {name: _plain(value) for name, value in node.params.items()},
            }
            for node in nodes
        ],
    }


def _packed(tensor: FakeTensor) -> dict[str, Any]:
    return {name: _plain(getattr(tensor, name)) for name in FakeTensor.__dataclass_fields__}


def _plain(value: Any) -> Any:
    return value.name if isinstance(value, enum.Enum) else value


def unpacked(data: Mapping[str, Any], types: Any) -> tuple[list[FakeTensor], list[FakeNode]]:
    """Return the graph that was passed to `packed`; ``types`` enumerates the library's types."""
    tensors = [
        FakeTensor(**{**row, "data_type": row["data_type"] and types[row["data_type"]]})
        for row in data["tensors"]
    ]
    nodes = [
        FakeNode(
            row["kind"],
            {name: tensors[i] for name, i in row["inputs"].items()},
            tuple(tensors[i] for i in row["outputs"]),
            row["params"],
        )
        for row in data["nodes"]
    ]
    return tensors[: data["given"]], nodes
