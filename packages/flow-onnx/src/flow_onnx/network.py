"""Convert a graph to ONNX nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from onnx import GraphProto, NodeProto, ValueInfoProto, helper

from flow_core.authoring.specs import ExportedJob, Graph, Op, Value
from flow_core.base.errors import SourceLine, UnsupportedError
from flow_onnx.emission import Emission, Network, UnsupportedOp
from flow_onnx.emitters import EMITTERS
from flow_onnx.options import Options
from flow_onnx.sizes import Sized
from flow_onnx.stored import stored_ops


@dataclass(frozen=True, slots=True)
class Gap:
    """An op without an equivalent."""

    op: Op
    reason: str
    at: SourceLine | None

    def __str__(self) -> str:
        at = f" (at {self.at})" if self.at else ""
        return f"{self.op.type} {self.op.name!r}{at}: {self.reason}"


@dataclass(slots=True)
class Built:
    """A converted graph."""

    network: Network
    values: dict[Value, str] = field(default_factory=dict)  # name of each value
    results: list[str] = field(default_factory=list)  # names of the results, in order
    made_by: dict[str, Op] = field(default_factory=dict)  # the op of each node, by the node's name
    kept: list[Gap] = field(default_factory=list)  # ops that are kept unconverted
    stored: tuple[Op, ...] = ()  # the ops whose results are weights of the model


def build(job: ExportedJob, sized: Sized, options: Options) -> Built:
    """Convert a graph to ONNX nodes, constants and names.

    Raises:
        UnsupportedError: some ops have no ONNX equivalent; the error lists all of them.
    """
    built = Built(Network(options.opset), stored=stored_ops(sized.graph, job.specs))
    for name, value in job.inputs.items():
        built.values[value] = built.network.unique(name)
    for op in built.stored:
        built.values[op.output()] = built.network.unique(op.name)
    _add_ops(built, sized, options)
    if built.kept and not options.keep:
        raise _unsupported(job, built.kept, options)
    _name_results(built, sized.graph)
    _drop_unread(built)
    return built


def _add_ops(built: Built, sized: Sized, options: Options, at: SourceLine | None = None) -> None:
    """Emit the nodes of the ops of a graph; those without an equivalent are kept unconverted.

    Args:
        at: the user's line of ops that have none.
    """
    graph = sized.graph
    consumed = {*graph.consumers(), *graph.results}
    for op in graph.ops.values():
        if op.output() in built.values:
            continue
        used = (i for i in range(len(graph.types[op.name])) if (op.name, i) in consumed)
        try:
            _emit(built, sized, op, frozenset(used), options)
        except UnsupportedOp as error:
            built.kept.append(Gap(op, str(error), graph.lines.get(op.name, at)))
            _keep_custom_op(built, graph, op, options)


def _emit(built: Built, sized: Sized, op: Op, used: frozenset[int], options: Options) -> None:
    """Emit the nodes of an op."""
    network, graph = built.network, sized.graph
    outputs = graph.types[op.name]
    emission = Emission(
        network=network,
        graph=graph,
        names=built.values,
        op=op,
        inputs=tuple(built.values[v] for v in op.inputs),
        types=graph.input_types(op),
        outputs=outputs,
        used=used,
        body=partial(_body, built, sized, op, options),
        open=tuple(sized.open.get(Value(op.name, i), frozenset()) for i in range(len(outputs))),
    )
    first = len(network.nodes)
    try:
        found = EMITTERS.get(op.type, _no_counterpart)(emission)
    except UnsupportedOp:
        del network.nodes[first:]
        raise
    new = network.nodes[first:]
    built.made_by |= {node.name: op for node in new}
    _name_outputs(built, op, (found,) if isinstance(found, str) else found, new)


def _body(
    built: Built, sized: Sized, op: Op, options: Options, attr: str, inputs: Sequence[str], own: int
) -> GraphProto:
    """Return a body of an op as a graph within the model; see `Emission`."""
    within = sized.body(op, attr)
    given = [source.output() for source in within.graph.of_type("input")]
    part = Built(replace(built.network, nodes=[]), dict(zip(given, inputs, strict=True)))
    _add_ops(part, within, options, sized.graph.lines.get(op.name))
    built.kept += part.kept
    _name_results(part, within.graph)
    _drop_unread(part)
    declared = map(within.info, inputs[:own], given)
    results = map(within.info, part.results, within.graph.results)
    nodes, name = part.network.nodes, f"{op.name}/{attr}"
    return helper.make_graph(nodes, name, list(declared), list(results))


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


def _unsupported(job: ExportedJob, gaps: Sequence[Gap], options: Options) -> UnsupportedError:
    return UnsupportedError(
        f"exporting job {job.name!r} to ONNX, opset {options.opset}",
        at=job.at,
        found="".join(f"\n    {gap}" for gap in gaps),
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


def read_by(node: NodeProto) -> Iterator[str]:
    """Yield the names of the values that a node reads, also in the graphs within it."""
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from read_by(inner)
        yield from (value.name for value in attribute.g.output)


def _drop_unread(built: Built) -> None:
    """Drop nodes and weights that nothing reads: one node may replace those of several ops."""
    read, nodes = set(built.results), built.network.nodes
    kept, gone = list[NodeProto](), set[str]()
    for node in reversed(nodes):
        if read.isdisjoint(node.output):
            gone.update(node.output)
        else:
            read.update(read_by(node))
            kept.append(node)
    nodes[:] = reversed(kept)
    unread = [op for op in built.stored if built.values[op.output()] not in read]
    gone.update(built.values[op.output()] for op in unread)
    built.stored = tuple(op for op in built.stored if op not in unread)
    built.values = {v: name for v, name in built.values.items() if name not in gone}


def declared(
    built: Built, sized: Sized
) -> tuple[list[ValueInfoProto], list[ValueInfoProto], list[ValueInfoProto]]:
    """Return the declarations of the model's inputs, results and intermediate values."""
    named, graph = dict(built.values), sized.graph
    fed = {v: n for v, n in named.items() if graph.ops[v.op].type == "input"}
    inputs = [sized.info(n, v) for v, n in fed.items()]
    results = list(map(sized.info, built.results, graph.results))
    taken = {*built.results, *fed.values(), *(named[op.output()] for op in built.stored)}
    between: dict[str, ValueInfoProto] = {}
    for value, name in named.items():
        if name not in taken and not graph.type_of(value).dtype.is_object:
            between.setdefault(name, sized.info(name, value))
    return inputs, results, list(between.values())
