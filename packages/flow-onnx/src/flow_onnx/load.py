"""Add the ops of an ONNX model to the job being traced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, defs, helper

from flow_core.authoring.specs import ImportTools, emit
from flow_core.base.errors import ConfigError, FlowError, SourceLine, UnsupportedError
from flow_onnx.importers import IMPORTERS
from flow_onnx.importers.context import InvalidNode, Node, UnsupportedNode, Weight
from flow_onnx.importers.control import subgraphs
from flow_onnx.importers.folding import LARGEST_KNOWN, Folder, Known, TooLarge
from flow_onnx.inference import ResultType, ignored, result_types, schema_of
from flow_onnx.inputs import bound
from flow_onnx.reading import UnreadableModel, initializers, read_model
from flow_onnx.types import element_of

DOMAINS = ("", "ai.onnx")

LARGEST_REPEATED = 2**30
"""Maximum bytes of a result of an operator in `REPEATING`."""

REPEATING = ("Expand", "OneHot", "Pad", "Resize", "Tile")
"""Operators with results of any size, however small their inputs and the model are."""

ROUGH = ("AveragePool", "MaxPool")
"""Operators whose shape inference in early opsets includes windows of padding only."""


def read(
    path: str, inputs: Sequence[Any] | Mapping[str, Any], tools: ImportTools, at: SourceLine | None
) -> Any:
    """Add the ops of a model to the job being traced, and return the blobs of its results.

    Args:
        inputs: the blobs of the model's inputs, in order or by name.

    Returns:
        A blob, or a tuple of blobs if the model has several results.

    Raises:
        ConfigError: the file cannot be read, ONNX does not permit the model, or the inputs do not
            fit it.
        UnsupportedError: operators have no counterpart; the error lists all of them.
    """
    attempted = f"loading the ONNX model {path}"
    try:
        model = read_model(path)
        weights = _weights(model.graph)
        loading = _Loading(model, tools, Folder(tools.ops, at), attempted, at)
        _check_operators(model.graph, loading.opset, attempted, at)
        declared = [value for value in model.graph.input if value.name not in weights]
        loading.start(bound(declared, inputs, attempted, at))
        values = loading.add_graph(model.graph)
    except UnreadableModel as error:
        raise ConfigError(attempted, at=at, found=error, allowed="an ONNX model") from error
    names = (value.name for value in model.graph.output)
    found = tuple(map(loading.blob, names, values))
    return found[0] if len(found) == 1 else found


def _weights(graph: GraphProto) -> dict[str, Weight]:
    return {name: Weight(name, _stored(array)) for name, array in initializers(graph).items()}


def _stored(array: Any) -> Any:
    """Return an array with the element type that it has in jobs: int8 for booleans."""
    return array.astype(np.int8) if array.dtype == np.bool_ else array


def _check_operators(graph: GraphProto, opset: int, attempted: str, at: SourceLine | None) -> None:
    newest = defs.onnx_opset_version()
    if opset > newest:
        raise UnsupportedError(
            attempted, at=at, found=f"opset {opset}", allowed=f"up to {newest}, as in onnx "
            f"{onnx.__version__}", hint="install a newer version of onnx",
        )  # fmt: skip
    odd = {
        f"{node.domain}.{node.op_type}".lstrip(".")
        for node in _nodes(graph)
        if node.domain not in DOMAINS or node.op_type not in IMPORTERS
    }
    if odd:
        raise UnsupportedError(
            attempted,
            at=at,
            found=f"operators without a counterpart: {', '.join(sorted(odd))}",
            allowed=f"{len(IMPORTERS)} operators of ONNX, see flow_onnx.importers",
            hint="export the model with simpler operators, or split it before these",
        )


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Yield the nodes of a graph and of the graphs within it."""
    for node in graph.node:
        yield node
        for body in subgraphs(node):
            yield from _nodes(body)


@dataclass(slots=True)
class _Loading:
    """The state of a load."""

    model: ModelProto
    tools: ImportTools  # adds variables, branches and loops
    folder: Folder
    attempted: str
    at: SourceLine | None
    # The values by name: blobs, weights and arrays that are known at compile time.
    values: dict[str, Any] = field(default_factory=dict)
    # Their element types by name, as ONNX numbers them.
    elements: dict[str, int] = field(default_factory=dict)
    known_bytes: int = 0  # the bytes of the results that were computed at once
    variables: dict[str, Any] = field(default_factory=dict)  # the arrays of variables by name
    # The element types of the results of the last graph within the model.
    body_elements: Sequence[int] = ()

    @property
    def opset(self) -> int:
        """The version of ONNX's operators."""
        return next((o.version for o in self.model.opset_import if o.domain in DOMAINS), 1)

    def start(self, blobs: Mapping[str, Any]) -> None:
        """Add the inputs of the model; booleans become 0 and 1."""
        declared = {v.name: v.type.tensor_type.elem_type for v in self.model.graph.input}
        for name, blob in blobs.items():
            is_bool = declared[name] == TensorProto.BOOL
            truth = emit("scalar_logical_not_equal", blob, operand=0) if is_bool else blob
            self.values[name], self.elements[name] = truth, declared[name]

    def add_graph(self, graph: GraphProto) -> list[Any]:
        """Add the weights and nodes of a graph; return its results."""
        for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
            self.elements[tensor.name] = tensor.data_type
        self.values |= _weights(graph)
        for node in graph.node:
            self.add(node)
        return [self.values[value.name] for value in graph.output]

    def run(self, graph: GraphProto, inputs: Sequence[tuple[Any, int]]) -> list[Any]:
        """Add the ops of a graph within the model; see `Bodies`."""
        within = replace(self, values={**self.values}, elements={**self.elements})
        if len(inputs) != len(graph.input):
            found = f"a graph of {len(graph.input)} inputs"
            raise InvalidNode(found, f"{len(inputs)} inputs, as the operator gives")
        for value, (given, element) in zip(graph.input, inputs, strict=True):
            within.values[value.name], within.elements[value.name] = given, element
        results = within.add_graph(graph)
        self.known_bytes = within.known_bytes
        self.body_elements = [within.elements[value.name] for value in graph.output]
        return results

    def is_known(self, name: str) -> bool:
        """Return whether a value is known while the job is defined; see `Bodies`."""
        value = self.values.get(name)
        return isinstance(value, np.ndarray) or (isinstance(value, Weight) and not value.is_trained)

    def variable(self, name: str, array: Any, is_trained: bool) -> Any:
        """Add a variable; graphs within the model may have weights of equal names."""
        found, number = name, 0
        while self.variables.setdefault(found, array) is not array:
            number += 1
            found = f"{name}_{number}"
        return self.tools.variable(found, array, is_trained)

    def add(self, proto: NodeProto) -> None:
        """Add the ops of a node, or compute it at once if all of its inputs are known.

        A node of trainable weights is not computed, because its result changes as they are trained.
        """
        label = f"{proto.op_type} {proto.name or next(filter(None, proto.output), '')!r}"
        try:
            inputs = [self.values[name] if name else None for name in proto.input]
            arrays = [x.array if isinstance(x, Weight) else x for x in inputs]
            elements = [self.elements.get(name, 0) for name in proto.input]
            has_bodies = any(subgraphs(proto))
            types = {}
            if not has_bodies:
                types = result_types(proto, arrays, elements, self.opset, self.model.ir_version)
            read = slice(1 if proto.op_type == "CastLike" else None)  # which uses another's type
            folds = all(x is None or isinstance(x, np.ndarray) for x in arrays[read]) and not any(
                isinstance(x, Weight) and x.is_trained for x in inputs[read]
            )
            self._check_sizes(proto, types, folds)
            node = self._node(proto, inputs, elements, folds and not has_bodies)
            results = self._imported(node)
            if has_bodies:  # ONNX does not infer what bodies read from outside
                ends = self.body_elements[-len(results) :]
                types = {n: ResultType(e, None) for n, e in zip(proto.output, ends, strict=False)}
            self._keep(proto, results, types)
        except (UnsupportedNode, InvalidNode, TooLarge) as error:
            self._refuse(label, error)
        except FlowError as error:
            error.with_context(attempted=f"{self.attempted}: {label}", at=self.at)
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            found = f"{label}: {type(error).__name__}: {error}"
            raise ConfigError(self.attempted, at=self.at, found=found) from error

    def _check_sizes(self, proto: NodeProto, types: Mapping[str, ResultType], folds: bool) -> None:
        nbytes = sum(type_.nbytes for type_ in types.values())
        if folds and self.known_bytes + nbytes > LARGEST_KNOWN:
            raise TooLarge(nbytes)
        if proto.op_type in REPEATING and nbytes > LARGEST_REPEATED:
            raise TooLarge(nbytes)

    def _imported(self, node: Node) -> Sequence[Any]:
        proto = node.proto
        found = IMPORTERS[proto.op_type](node)
        ignored_parts = ignored(proto, schema_of(proto, self.opset), node.unread)
        if ignored_parts:
            node.unsupported(", ".join(ignored_parts))
        results = found if isinstance(found, tuple) else (found,)
        for name in proto.output[len(results) :]:
            if name:
                node.unsupported(f"the result {name!r}")
        return results

    def _keep(
        self, proto: NodeProto, results: Sequence[Any], types: Mapping[str, ResultType]
    ) -> None:
        """Keep the results of a node, whose types must be those that ONNX defines."""
        for name, result in zip(proto.output, results, strict=False):
            value = result.array if isinstance(result, Known) else result
            value = _stored(value) if isinstance(value, np.ndarray) else value
            type_ = types.get(name) or ResultType(element_of(value.dtype), None)
            if type_.shape not in (None, tuple(value.shape)) and proto.op_type not in ROUGH:
                raise UnsupportedNode(f"a result of shape {type_.shape}, not {value.shape}")
            if isinstance(value, np.ndarray):
                self.known_bytes += value.nbytes
            self.values[name], self.elements[name] = value, type_.element

    def _refuse(self, label: str, error: UnsupportedNode | InvalidNode | TooLarge) -> NoReturn:
        found = f"{label}: {error}"
        if isinstance(error, InvalidNode):
            raise ConfigError(
                self.attempted, at=self.at, found=found, allowed=error.allowed
            ) from None
        if isinstance(error, TooLarge):
            found = f"{label}: a result of {int(str(error)):,} bytes"
            allowed = (
                f"{LARGEST_KNOWN:,} bytes of results that do not depend on the inputs, and "
                f"{LARGEST_REPEATED:,} bytes of a result of {', '.join(REPEATING)}"
            )
            raise ConfigError(self.attempted, at=self.at, found=found, allowed=allowed)
        raise UnsupportedError(
            self.attempted,
            at=self.at,
            found=found,
            allowed="operators with a counterpart in flow, see flow_onnx.importers",
        )

    def _node(
        self, proto: NodeProto, inputs: Sequence[Any], elements: Sequence[int], folds: bool = False
    ) -> Node:
        return Node(proto, inputs, elements, self.opset, self.variable, self.folder, self, folds)

    def blob(self, name: str, value: Any) -> Any:
        """Return a result as a blob."""
        try:
            return self._node(helper.make_node("Identity", [name], [name]), [value], [0]).blob()
        except FlowError as error:
            error.with_context(attempted=f"{self.attempted}: result {name!r}", at=self.at)
            raise
