"""The memory and the launches of a body within the kernel of a loop or a branch.

Results of the body's ops are in the workspace of the kernel, at offsets that are planned as those
of a plan; the op's own workspaces are there, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flow_core.base.arrays import Array
from flow_core.base.errors import KernelNotFoundError, PlanError
from flow_core.base.philox import op_seed
from flow_core.compiler.memory.arena import Block, plan_arena
from flow_core.device import Launch
from flow_core.ir.graph import Graph, Op, TensorType, Value
from flow_core.ops.control.bodies import Body, body_graph, op_specs
from flow_core.plugins.specs import BindContext, KernelQuery, KernelSpec, load


@dataclass(frozen=True, slots=True)
class BodyKernels:
    """The kernels of a body, and the offsets of its values."""

    graph: Graph
    # The kernel of each op that has one, and its query.
    kernels: Mapping[str, tuple[KernelSpec, KernelQuery]]
    owners: Mapping[Value, Value]  # the value whose bytes a view shares
    offsets: Mapping[Value | str, int]  # offsets of values, and of the workspaces of ops by name
    nbytes: int  # of the workspace

    @property
    def inputs(self) -> Sequence[Value]:
        return [op.output() for op in self.graph.of_type("input")]

    def owned(self, count: int) -> dict[Value, int]:
        """Return those of the first results that are no inputs and no views, with their numbers."""
        inputs = set(self.inputs)
        numbers = reversed([*enumerate(self.graph.results[:count])])
        return {v: i for i, v in numbers if self.owners[v] == v and v not in inputs}


def has_kernels(query: KernelQuery, body: Body, types: tuple[TensorType, ...]) -> bool:
    """Return whether all ops of a body have kernels."""
    try:
        dict(_kernels(query, body_graph(body, types)))
    except KernelNotFoundError:
        return False
    return True


def _kernels(
    query: KernelQuery, graph: Graph
) -> Iterator[tuple[str, tuple[KernelSpec, KernelQuery]]]:
    if query.find is None:
        raise PlanError(f"finding kernels of a body of {query.op}", found="no registry of kernels")
    specs = op_specs()
    for op in graph.ops.values():
        if op.type != "input" and not specs[op.type].is_view(len(op.inputs)):
            own = replace(
                query, op=op.type, attrs=op.attrs,
                inputs=graph.input_types(op), outputs=graph.types[op.name],
            )  # fmt: skip
            yield op.name, (query.find(own), own)


def body_kernels(
    query: KernelQuery, body: Body, types: tuple[TensorType, ...], elsewhere: int
) -> BodyKernels:
    """Find the kernels of a body, and plan its memory.

    Args:
        elsewhere: the number of results, the first ones, of which `BodyKernels.owned` returns those
            that are in other memory.
    """
    graph = body_graph(body, types)
    kernels = dict(_kernels(query, graph))
    owners = _owners(graph)
    found = BodyKernels(graph, kernels, owners, {}, 0)
    outside = {*found.inputs, *found.owned(elsewhere)}
    position = {name: i for i, name in enumerate(graph.ops)}
    last = {owners[v]: position[op.name] for op in graph.ops.values() for v in op.inputs}
    last |= {owners[v]: len(position) for v in graph.results}
    blocks: dict[Value | str, Block] = {}
    for value, owner in owners.items():
        if value == owner and value not in outside:
            first = position[value.op]
            nbytes = graph.type_of(value).nbytes
            blocks[value] = Block(nbytes, first, last.get(value, first))
    for name, (kernel, own) in kernels.items():
        if kernel.workspace is not None:
            blocks[name] = Block(kernel.workspace(own), position[name], position[name])
    layout = plan_arena([*blocks.values()])
    offsets = dict(zip(blocks, layout.offsets, strict=True))
    return replace(found, offsets=offsets, nbytes=layout.nbytes)


def _owners(graph: Graph) -> dict[Value, Value]:
    specs, owners = op_specs(), dict[Value, Value]()
    for op in graph.ops.values():
        spec = specs[op.type]
        for index in range(len(graph.types[op.name])):
            value = op.output(index)
            is_view = index == 0 and spec.is_view(len(op.inputs))
            owners[value] = owners[op.inputs[spec.alias or 0]] if is_view else value
    return owners


def bind_body(
    kernels: BodyKernels,
    ctx: BindContext,
    workspace: Array,
    given: Mapping[Value, Array],  # the arrays of values that are not in the workspace
    step: Array,  # the counter of the random numbers
) -> tuple[list[Launch], Mapping[Value, Array]]:
    """Bind the kernels of a body; return their launches, and the arrays of all values."""
    graph, arrays, launches = kernels.graph, dict(given), list[Launch]()

    def array(value: Value) -> Array:
        if value not in arrays:
            type_, owner = graph.type_of(value), kernels.owners[value]
            if owner != value:
                arrays[value] = array(owner).reshape(type_.shape)
            else:
                arrays[value] = _view(workspace, kernels.offsets[value], type_)
        return arrays[value]

    for op in graph.ops.values():
        outputs = tuple([array(op.output(i)) for i in range(len(graph.types[op.name]))])
        if op.name in kernels.kernels:
            kernel, query = kernels.kernels[op.name]
            at = kernels.offsets.get(op.name)
            size = 0 if kernel.workspace is None else kernel.workspace(query)
            own = None if at is None else workspace[at : at + size]
            bound = load(kernel.load)(
                replace(
                    ctx, query=query, inputs=tuple(map(array, op.inputs)), outputs=outputs,
                    workspace=own, step=step, seed=_seed(ctx.seed, op),
                )
            )  # fmt: skip
            launches += bound if isinstance(bound, tuple | list) else (bound,)
    return launches, arrays


def _view(workspace: Array, offset: int, type_: TensorType) -> Array:
    part = workspace[offset : offset + type_.nbytes]
    return part.view(type_.dtype.numpy).reshape(type_.shape)


def _seed(outer: int, op: Op) -> int:
    """Return the seed of an op of a body, which is the same when the op is computed again."""
    if not op_specs()[op.type].random:
        return 0
    return op_seed(outer, str(op.attrs.get("draws_as") or op.name))
