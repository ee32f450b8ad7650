"""Convert a graph to ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onnx import NodeProto, ValueInfoProto, helper

from flow_core.authoring.specs import ExportedJob, Graph, Op, Value
from flow_core.base.errors import UnsupportedError
from flow_onnx.emission import Emission, Network, UnsupportedOp
from flow_onnx.emitters import EMITTERS
from flow_onnx.options import Options
from flow_onnx.types import Dims, value_info

SOURCES = ("input", "variable")
"""Op types that become inputs or weights of the model and not nodes."""

Open = Mapping[Value, frozenset[int]]


@dataclass(slots=True)
class Built:
    """A converted graph.

    Attributes:
        network: nodes and constants.
        values: name of each value.
        results: names of the results, in order.
        made_by: the op of each node, by the node's name.
        kept: ops that are kept unconverted, each with the reason why it has no equivalent.
    """

    network: Network
    values: dict[Value, str] = field(default_factory=dict)
    results: list[str] = field(default_factory=list)
    made_by: dict[str, Op] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)


def build(job: ExportedJob, graph: Graph, options: Options, open_axes: Open) -> Built:
    """Convert a graph to ONNX nodes, constants and names.

    Args:
        job: the exported job.
        graph: its graph, possibly with other sizes.
        options: the export options.
        open_axes: the axes of open size, by value.

    Raises:
        UnsupportedError: some ops have no ONNX equivalent; the error lists all of them.
    """
    built = Built(Network(options.opset))
    for name, value in job.inputs.items():
        built.values[value] = built.network.unique(name)
    for op in graph.of_type("variable"):
        built.values[op.output()] = built.network.unique(op.name)
    consumed = {*graph.consumers(), *graph.results}
    gaps: dict[str, str] = {}
    for op in graph.ops.values():
        if op.type not in SOURCES:
            used = frozenset(
                i for i in range(len(graph.types[op.name])) if (op.name, i) in consumed
            )
            _emit(built, graph, op, used, open_axes, gaps)
            if op.name in gaps:
                _keep_custom_op(built, graph, op, options)
    if gaps and not options.keep:
        raise _unsupported(job, graph, gaps, options)
    built.kept = gaps
    _name_results(built, graph)
    _drop_unread(built)
    return built


def _emit(
    built: Built, graph: Graph, op: Op, used: frozenset[int], open_axes: Open, gaps: dict[str, str]
) -> None:
    """Emit the nodes of an op or, if the op is unsupported, add the reason to ``gaps``."""
    network, outputs = built.network, graph.types[op.name]
    emission = Emission(
        network=network,
        graph=graph,
        names=built.values,
        op=op,
        inputs=tuple(built.values[v] for v in op.inputs),
        types=graph.input_types(op),
        outputs=outputs,
        used=used,
        open=tuple(open_axes.get(Value(op.name, i), frozenset()) for i in range(len(outputs))),
    )
    first = len(network.nodes)
    try:
        emitter = EMITTERS.get(op.type) or _no_counterpart
        found = emitter(emission)
    except UnsupportedOp as error:
        del network.nodes[first:]
        gaps[op.name] = str(error)
        return
    new = network.nodes[first:]
    built.made_by |= {node.name: op for node in new}
    _name_outputs(built, op, (found,) if isinstance(found, str) else found, new)


def _no_counterpart(e: Emission) -> str:
    e.unsupported("no counterpart in ONNX")


def _name_outputs(built: Built, op: Op, names: tuple[str, ...], new: list[NodeProto]) -> None:
    """Rename the outputs of an op's nodes after the op; outputs without a node have no name."""
    made = {name for node in new for name in node.output}
    renamed: dict[str, str] = {}
    for i, name in enumerate(names):
        if name in made and name not in renamed:
            renamed[name] = built.network.unique(op.name if i == 0 else f"{op.name}:{i}")
        if name:
            built.values[Value(op.name, i)] = renamed.get(name, name)
    for node in new:
        for names_of in (node.input, node.output):
            names_of[:] = [renamed.get(name, name) for name in names_of]


def _keep_custom_op(built: Built, graph: Graph, op: Op, options: Options) -> None:
    """Add a node with the type of the op, in a custom ONNX domain."""
    outputs = [
        built.network.unique(op.name if i == 0 else f"{op.name}:{i}")
        for i in range(len(graph.types[op.name]))
    ]
    built.values |= {Value(op.name, i): name for i, name in enumerate(outputs)}
    node = helper.make_node(
        op.type,
        [built.values[v] for v in op.inputs],
        outputs,
        name=op.name,
        domain=options.domain[0],
        **{key: value for key, value in op.attrs.items() if _is_attribute(value)},
    )
    built.network.nodes.append(node)
    built.made_by[op.name] = op


def _is_attribute(value: Any) -> bool:
    """Return whether ONNX supports the value: a number, a string or a list of one of these."""
    if isinstance(value, tuple):
        kinds = {type(v) for v in value}
        return len(kinds) == 1 and kinds <= {int, float, str}
    return isinstance(value, int | float | str)


def _unsupported(
    job: ExportedJob, graph: Graph, gaps: Mapping[str, str], options: Options
) -> UnsupportedError:
    lines = [
        f"{graph.ops[name].type} {name!r}"
        + (f" (at {graph.lines[name]})" if name in graph.lines else "")
        + f": {reason}"
        for name, reason in gaps.items()
    ]
    return UnsupportedError(
        f"exporting job {job.name!r} to ONNX, opset {options.opset}",
        at=job.at,
        found="".join(f"\n    {line}" for line in lines),
        allowed=f"ops with a counterpart in ONNX: {len(EMITTERS)} types, see flow_onnx.emitters",
        hint="return a value before these ops, or pass continue_on_error=True to keep them "
        f"as nodes of the domain {options.domain[0]!r}",
    )


def _name_results(built: Built, graph: Graph) -> None:
    """Give each result a name of its own: copy returned inputs, and values returned twice."""
    nodes = built.network.nodes
    made = {name for node in nodes for name in node.output}
    for value in graph.results:
        name = built.values[value]
        if name not in made or name in built.results:
            copy = built.network.unique(f"{name}_result")
            nodes.append(helper.make_node("Identity", [name], [copy], name=copy))
            name = copy
        built.results.append(name)


def _drop_unread(built: Built) -> None:
    """Drop nodes whose outputs nothing reads, since one node may replace those of several ops."""
    read, nodes = set(built.results), built.network.nodes
    kept, gone = list[NodeProto](), set[str]()
    for node in reversed(nodes):
        if read.isdisjoint(node.output):
            gone.update(node.output)
        else:
            read.update(node.input)
            kept.append(node)
    nodes[:] = reversed(kept)
    built.values = {v: name for v, name in built.values.items() if name not in gone}


def declared(
    built: Built, graph: Graph, dims: Callable[[Value], Dims]
) -> tuple[list[ValueInfoProto], list[ValueInfoProto], list[ValueInfoProto]]:
    """Return the declarations of the model's inputs, results and intermediate values."""
    named = dict(built.values)

    def info(value: Value, name: str) -> ValueInfoProto:
        return value_info(name, graph.type_of(value).dtype, dims(value))

    sources = {v for v in named if graph.ops[v.op].type in SOURCES}
    inputs = [info(v, name) for v, name in named.items() if graph.ops[v.op].type == "input"]
    results = [info(v, n) for v, n in zip(graph.results, built.results, strict=True)]
    taken = {*built.results, *(named[v] for v in sources)}
    between: dict[str, ValueInfoProto] = {}
    for value, name in named.items():
        if name not in taken and not graph.type_of(value).dtype.is_object:
            between.setdefault(name, info(value, name))
    return inputs, results, list(between.values())
