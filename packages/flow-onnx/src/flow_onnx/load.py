"""Add the ops of an ONNX model to the job being traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, NodeProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from flow_core.base.errors import ConfigError, SourceLine, UnsupportedError, nearest
from flow_onnx.importers import IMPORTERS
from flow_onnx.importers.context import Node, UnsupportedNode, Weight

DOMAINS = ("", "ai.onnx")

Variable = Callable[[str, Any, bool], Any]


def read(
    path: str,
    inputs: Sequence[Any] | Mapping[str, Any],
    variable: Variable,
    at: SourceLine | None,
) -> Any:
    """Add the ops of a model to the job being traced, and return the blobs of its results.

    Args:
        path: the model's file.
        inputs: the blobs of the model's inputs, in order or by name.
        variable: adds a variable; see `Node`.
        at: the line of the user's program.

    Returns:
        A blob, or a tuple of blobs if the model has several results.

    Raises:
        ConfigError: the file cannot be read, or the inputs do not fit the model.
        UnsupportedError: operators have no counterpart; the error lists all of them.
    """
    attempted = f"loading the ONNX model {path}"
    model = _model(path, attempted, at)
    graph = model.graph
    weights = {t.name: Weight(t.name, numpy_helper.to_array(t)) for t in graph.initializer}
    names = [value.name for value in graph.input if value.name not in weights]
    _check_operators(graph, attempted, at)
    loading = _Loading(model, variable, attempted, at)
    loading.values = {**weights, **_bound(names, inputs, attempted, at)}
    _check_types(graph, loading.values, names, attempted, at)
    for node in graph.node:
        loading.add(node)
    found = tuple(loading.result(value.name) for value in graph.output)
    return found[0] if len(found) == 1 else found


def _model(path: str, attempted: str, at: SourceLine | None) -> ModelProto:
    try:
        model: ModelProto = onnx.load(path)
        onnx.checker.check_model(path)
    except (OSError, ValueError, DecodeError, onnx.checker.ValidationError) as error:
        raise ConfigError(attempted, at=at, found=str(error), allowed="an ONNX model") from error
    return model


def _check_operators(graph: GraphProto, attempted: str, at: SourceLine | None) -> None:
    odd = {
        f"{node.domain}.{node.op_type}".lstrip(".")
        for node in graph.node
        if node.domain not in DOMAINS
        or (node.op_type not in IMPORTERS and node.op_type not in ("Constant", "Range"))
    }
    if odd:
        raise UnsupportedError(
            attempted,
            at=at,
            found=f"operators without a counterpart: {', '.join(sorted(odd))}",
            allowed=f"{len(IMPORTERS)} operators of ONNX, see flow_onnx.importers",
            hint="export the model with simpler operators, or split it before these",
        )


def _bound(
    names: Sequence[str],
    inputs: Sequence[Any] | Mapping[str, Any],
    attempted: str,
    at: SourceLine | None,
) -> dict[str, Any]:
    """Return the blobs by the names of the model's inputs."""
    found = dict(inputs) if isinstance(inputs, Mapping) else dict(zip(names, inputs, strict=False))
    if set(found) != set(names) or len(inputs) != len(names):
        odd = [name for name in found if name not in names]
        raise ConfigError(
            attempted,
            at=at,
            found=f"{len(inputs)} inputs" + (f": {', '.join(map(repr, inputs))}" if odd else ""),
            allowed=f"a blob for each of {', '.join(map(repr, names))}",
            hint=nearest(odd[0], names) if odd else None,
        )
    return found


def _check_types(
    graph: GraphProto,
    values: Mapping[str, Any],
    names: Sequence[str],
    attempted: str,
    at: SourceLine | None,
) -> None:
    """Compare the shapes of the blobs with those that the model declares."""
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        sizes = [d.dim_value if d.HasField("dim_value") else None for d in dims]
        if value.name not in names or not value.type.tensor_type.HasField("shape"):
            continue
        shape = tuple(values[value.name].shape)
        fits = len(sizes) == len(shape)
        if not fits or any(n not in (None, m) for n, m in zip(sizes, shape, strict=True)):
            declared = ", ".join("any" if n is None else str(n) for n in sizes)
            raise ConfigError(
                attempted,
                at=at,
                found=f"a blob of shape {shape} for the input {value.name!r}",
                allowed=f"shape ({declared})",
            )


@dataclass(slots=True)
class _Loading:
    """The state of a load.

    Attributes:
        model: the model.
        variable: see `Node`.
        attempted, at: for errors.
        values: the values by name: blobs, weights and arrays that are known at compile time.
    """

    model: ModelProto
    variable: Variable
    attempted: str
    at: SourceLine | None
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def opset(self) -> int:
        """The version of ONNX's operators."""
        return next((o.version for o in self.model.opset_import if o.domain in DOMAINS), 1)

    def add(self, proto: NodeProto) -> None:
        """Add the ops of a node, or compute it at once if all of its inputs are known."""
        inputs = [self.values[name] if name else None for name in proto.input]
        arrays = [x.array if isinstance(x, Weight) else x for x in inputs]
        if all(x is None or isinstance(x, np.ndarray) for x in arrays) and _is_computed(inputs):
            found = self._computed(proto, arrays)
        else:
            found = self._imported(proto, inputs)
        for name, value in zip(proto.output, found, strict=False):
            self.values[name] = value

    def _computed(self, proto: NodeProto, arrays: Sequence[Any]) -> Sequence[Any]:
        evaluator = ReferenceEvaluator(proto, opsets={"": self.opset})
        given = {name: x for name, x in zip(proto.input, arrays, strict=True) if name}
        return [np.asarray(x) for x in evaluator.run(None, given)]

    def _imported(self, proto: NodeProto, inputs: Sequence[Any]) -> Sequence[Any]:
        node = Node(proto, inputs, self.opset, self.variable)
        try:
            importer = IMPORTERS.get(proto.op_type)
            if importer is None:
                node.unsupported("arguments computed from the inputs of the job")
            found = importer(node)
        except UnsupportedNode as error:
            raise UnsupportedError(
                self.attempted,
                at=self.at,
                found=f"{proto.op_type} {proto.name or proto.output[0]!r}: {error}",
                allowed="operators with a counterpart in flow, see flow_onnx.importers",
            ) from None
        return found if isinstance(found, tuple) else (found,)

    def result(self, name: str) -> Any:
        """Return the blob of a result."""
        proto = onnx.helper.make_node("Identity", [name], [name])
        return Node(proto, [self.values[name]], self.opset, self.variable).blob()


def _is_computed(inputs: Sequence[Any]) -> bool:
    """Return whether a node of known inputs is computed at once.

    A node of trainable weights is not, because its result changes as they are trained.
    """
    return not any(isinstance(x, Weight) and _is_trained(x) for x in inputs)


def _is_trained(weight: Weight) -> bool:
    return bool(weight.array.dtype.kind == "f" and weight.array.size > 1)
