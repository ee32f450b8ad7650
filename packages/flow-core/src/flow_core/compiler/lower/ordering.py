"""The order in which a plan starts its ops, and the replicas that its devices share.

Invariant: the constraints that `Order.sharing` adds are not circular.  The first kind of sharing
for which this holds is taken: sharing with batched ops, with in-place sums, or neither.
"""

from __future__ import annotations

from dataclasses import dataclass

from flow_core.base.errors import GraphError
from flow_core.compiler.lower.inputs import Inputs
from flow_core.compiler.memory.aliases import alias_roots
from flow_core.compiler.memory.device_batching import with_device_batching
from flow_core.compiler.memory.inplace_reduction import with_inplace_sums
from flow_core.compiler.memory.replica_dedup import ReplicaDedup
from flow_core.compiler.schedule.op_order import constraints, schedule
from flow_core.compiler.schedule.prefetch import late_gathers
from flow_core.compiler.schedule.streams import Timetable, timetable, useful_workers
from flow_core.ir.graph import Op


@dataclass(frozen=True, slots=True)
class Order:
    """The ops in the order in which they start."""

    ops: list[Op]
    sharing: ReplicaDedup  # with batched ops and in-place sums
    table: Timetable | None = None  # of the streams; None if all ops run on a single device


def order_ops(inputs: Inputs) -> Order:
    """Order ops as one device runs them, or as the streams of several devices start them.

    Raises `GraphError` if an op depends on itself.
    """
    graph, specs, options = inputs.graph, inputs.specs, inputs.options
    if len({op.placement for op in graph.ops.values()}) <= 1:
        return Order(schedule(graph, specs), options.sharing)
    plain = _timed(inputs, options.sharing)
    if not options.inplace or worker_count(inputs, plain, len(graph)) > 1:
        return plain  # with several threads, devices that add to one sum would wait for each other
    sums = with_inplace_sums(graph, options.sharing, specs, inputs.has_kernel)
    find, tried = inputs.kernels.find_kernel, [sums]
    if options.batching:
        tried.insert(0, with_device_batching(graph, sums, specs, find, inputs.constant))
    for sharing in tried:
        try:
            return _timed(inputs, sharing)
        except GraphError:  # with this sharing, ops would wait for each other
            continue
    return plain


def _timed(inputs: Inputs, sharing: ReplicaDedup) -> Order:
    graph, specs = inputs.graph, inputs.specs
    before, rank = constraints(graph, specs, sharing)
    views = {v.op for v in alias_roots(graph, specs)}
    free = views | inputs.constant | sharing.idle()
    arguments = rank, inputs.costs.seconds, free, inputs.options.postpone
    table = timetable(graph, before, *arguments)
    ahead = inputs.options.ahead
    if ahead is not None:
        later = late_gathers(graph, specs, table.order, free, ahead)
        before = {name: others | later.get(name, set()) for name, others in before.items()}
        table = timetable(graph, before, *arguments, like=table)
    return Order(table.order, sharing, table)


def worker_count(inputs: Inputs, order: Order, streams: int) -> int:
    """Return the number of threads that run the given number of streams."""
    if order.table is None or streams < 2:
        return 1
    wish = inputs.options.workers
    useful = useful_workers(order.table, inputs.options.budget.count // inputs.threads)
    return min(streams, useful if wish is None else wish)
