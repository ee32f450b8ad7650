"""The choice of a kernel for every op of an ordered graph, and the division of cores among them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

from flow_core.base.errors import GraphError, KernelNotFoundError, KernelUser, located
from flow_core.base.thread_budget import Cores
from flow_core.base.thread_pools import sized_pools
from flow_core.comm.exchange import BOXING
from flow_core.compiler.lower.inputs import LEAVES, Inputs
from flow_core.compiler.lower.ordering import Order, worker_count
from flow_core.compiler.memory.device_batching import batched_query
from flow_core.compiler.memory.inplace_reduction import lowered_form
from flow_core.compiler.schedule.streams import stream_name
from flow_core.compiler.schedule.thread_allocation import divided
from flow_core.ir.graph import Graph, Op
from flow_core.plugins.missing_kernels import job_error
from flow_core.plugins.specs import KernelQuery, KernelSpec


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The kernels of a plan."""

    kernels: dict[str, KernelSpec] = field(default_factory=dict)  # by op
    workspace: dict[str, int] = field(default_factory=dict)  # in bytes, by op that needs one


NO_KERNELS = KernelChoice()


def choose_kernels(inputs: Inputs, order: Order) -> KernelChoice:
    """Find the kernel of every op, with the cores divided as the plan will divide them.

    Raises `KernelNotFoundError` if some ops have no kernel; one error lists all of them.
    """
    with sized_pools(divide_cores(inputs, order, NO_KERNELS)):
        return _found(inputs, order)


def divide_cores(inputs: Inputs, order: Order, choice: KernelChoice) -> Cores:
    """Divide the cores among the kernels of a plan, some of which might not be known yet."""
    running = [op for op in order.ops if op.type not in LEAVES and op.name not in inputs.constant]
    computing = {stream_name(op) for op in running if op.type != BOXING}
    return divided(
        inputs.costs,
        running,
        choice.kernels,
        inputs.options.budget,
        worker_count(inputs, order, len(computing)),
        inputs.threads,
    )


def _found(inputs: Inputs, order: Order) -> KernelChoice:
    missing: list[tuple[KernelUser, KernelNotFoundError]] = []
    choice = KernelChoice()
    known: _Known = {}
    executed = {name for names in order.sharing.executes.values() for name in names}
    for op in order.ops:
        if op.type in LEAVES or op.type == BOXING or op.name in executed:
            continue
        if inputs.specs[op.type].is_view(len(op.inputs)):
            continue
        try:
            with located(inputs.graph.lines.get(op.name)):
                _choose(inputs, order, op, choice, known)
        except KernelNotFoundError as error:
            missing.append((_user(inputs.graph, op), error))
    if missing:
        raise job_error(missing)
    return choice


_Known = dict[tuple[object, ...], tuple[KernelSpec, int | None]]
"""The kernel and the workspace of each query: the parts of an op on most devices are equal."""


def _choose(inputs: Inputs, order: Order, op: Op, choice: KernelChoice, known: _Known) -> None:
    """Find the kernel of an op and the size of its workspace, and add them to the choice."""
    query, device_type = _query(inputs, order, op), op.placement.device_type
    key = device_type, query.op, query.attrs, query.inputs, query.outputs
    if key not in known:
        kernel = inputs.kernels.find_kernel(query, device_type)
        known[key] = kernel, None if kernel.workspace is None else kernel.workspace(query)
    choice.kernels[op.name], size = known[key]
    if size is not None:
        choice.workspace[op.name] = size


def _user(graph: Graph, op: Op) -> KernelUser:
    """Return the logical op and the source line of an op that has no kernel, for an error."""
    line, members = graph.lines.get(op.name), graph.merged.get(op.name, ())
    return KernelUser(graph.origin(op.name).logical, line, members)


def _query(inputs: Inputs, order: Order, op: Op) -> KernelQuery:
    graph, sharing = inputs.graph, order.sharing
    if op.name not in sharing.batched:
        return inputs.query(op, lowered_form(graph, sharing, op))
    find = partial(inputs.kernels.find_kernel, device_type=op.placement.device_type)
    ops = sharing.executed_with(graph, op)
    query = batched_query(graph, ops, sharing.batched[op.name], find)
    if query is None:
        raise GraphError(
            f"batching {op.name!r} over devices", found="rows that do not form one array"
        )
    return replace(query, settings=inputs.options.settings)
