"""Add the ops of an ONNX model to the job being traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, defs, helper

from flow_core.authoring.specs import OpSpec, emit
from flow_core.base.errors import (
    ConfigError,
    FlowError,
    SourceLine,
    UnsupportedError,
)
from flow_onnx.importers import IMPORTERS
from flow_onnx.importers.context import InvalidNode, Node, UnsupportedNode, Weight
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

Variable = Callable[[str, Any, bool], Any]


def read(
    path: str,
    inputs: Sequence[Any] | Mapping[str, Any],
    variable: Variable,
    ops: Mapping[str, OpSpec],
    at: SourceLine | None,
) -> Any:
    """Add the ops of a model to the job being traced, and return the blobs of its results.

    Args:
        path: the model's file.
        inputs: the blobs of the model's inputs, in order or by name.
        variable: adds a variable; see `Node`.
        ops: the specs of all ops, to compute constants.
        at: the line of the user's program.

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
        weights = {n: Weight(n, _stored(array)) for n, array in initializers(model.graph).items()}
    except UnreadableModel as error:
        raise ConfigError(attempted, at=at, found=error, allowed="an ONNX model") from error
    graph = model.graph
    loading = _Loading(model, variable, Folder(ops, at), attempted, at)
    _check_operators(graph, loading.opset, attempted, at)
    declared = [value for value in graph.input if value.name not in weights]
    loading.start(bound(declared, inputs, attempted, at), weights)
    for node in graph.node:
        loading.add(node)
    found = tuple(loading.result(value.name) for value in graph.output)
    return found[0] if len(found) == 1 else found


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
        for node in graph.node
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


@dataclass(slots=True)
class _Loading:
    """The state of a load.

    Attributes:
        model: the model.
        variable: see `Node`.
        folder: computes ops on known inputs.
        attempted, at: for errors.
        values: the values by name: blobs, weights and arrays that are known at compile time.
        elements: their element types by name, as ONNX numbers them.
        known_bytes: the bytes of the results that were computed at once.
    """

    model: ModelProto
    variable: Variable
    folder: Folder
    attempted: str
    at: SourceLine | None
    values: dict[str, Any] = field(default_factory=dict)
    elements: dict[str, int] = field(default_factory=dict)
    known_bytes: int = 0

    @property
    def opset(self) -> int:
        """The version of ONNX's operators."""
        return next((o.version for o in self.model.opset_import if o.domain in DOMAINS), 1)

    def start(self, blobs: Mapping[str, Any], weights: Mapping[str, Weight]) -> None:
        """Add the inputs and the weights of the model; booleans become 0 and 1."""
        graph = self.model.graph
        declared = {value.name: value.type.tensor_type.elem_type for value in graph.input}
        for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
            self.elements[tensor.name] = tensor.data_type
        for name, blob in blobs.items():
            is_bool = declared[name] == TensorProto.BOOL
            truth = emit("scalar_logical_not_equal", blob, operand=0) if is_bool else blob
            self.values[name], self.elements[name] = truth, declared[name]
        self.values |= weights

    def add(self, proto: NodeProto) -> None:
        """Add the ops of a node, or compute it at once if all of its inputs are known.

        A node of trainable weights is not computed, because its result changes as they are trained.
        """
        label = f"{proto.op_type} {proto.name or next(filter(None, proto.output), '')!r}"
        try:
            inputs = [self.values[name] if name else None for name in proto.input]
            arrays = [x.array if isinstance(x, Weight) else x for x in inputs]
            elements = [self.elements.get(name, 0) for name in proto.input]
            types = result_types(proto, arrays, elements, self.opset, self.model.ir_version)
            read = slice(1 if proto.op_type == "CastLike" else None)  # which uses another's type
            folds = all(x is None or isinstance(x, np.ndarray) for x in arrays[read]) and not any(
                isinstance(x, Weight) and x.is_trained for x in inputs[read]
            )
            self._check_sizes(proto, types, folds)
            node = Node(proto, inputs, elements, self.opset, self.variable, self.folder, folds)
            self._keep(proto, self._imported(node), types)
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

    def result(self, name: str) -> Any:
        """Return the blob of a result."""
        proto = helper.make_node("Identity", [name], [name])
        node = Node(proto, [self.values[name]], [0], self.opset, self.variable, self.folder)
        try:
            return node.blob()
        except FlowError as error:
            error.with_context(attempted=f"{self.attempted}: result {name!r}", at=self.at)
            raise
