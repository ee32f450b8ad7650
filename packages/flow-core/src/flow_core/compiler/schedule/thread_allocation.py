"""The division of the process's cores among the streams, kernels and loaders of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

from flow_core.base.thread_budget import Budget, Cores, divide
from flow_core.comm.exchange import BOXING
from flow_core.compiler.schedule.op_costs import OpCosts
from flow_core.compiler.schedule.streams import LONG
from flow_core.costs.model import HOST
from flow_core.ir.graph import Op
from flow_core.plugins.specs import KernelSpec
from flow_core.sharding.topology import Device, Placement

SPIN = 5e-3
"""The seconds that a kernel of another library loses to the threads of BLAS.

After a product, BLAS threads spin for tens of milliseconds on cores that the threads of the other
library need, and a kernel ends only when the slowest of its threads does.
"""

SHORT = 2e-5
"""The seconds of a kernel up to which no library starts threads for it."""


class User(Enum):
    """The library whose threads a kernel of this process uses."""

    BLAS = "numpy's"
    OTHER = "another library's"


def divided(
    costs: OpCosts,
    order: Sequence[Op],
    # The kernels of the ops; empty before kernels are chosen, when it is not known which kernels
    # are numpy's.
    found: Mapping[str, KernelSpec],
    budget: Budget,
    streams: int,  # the number of streams of this process that compute at the same time
    kernels: int,
) -> Cores:
    """Divide a budget among the kernels of a plan, its streams and its loaders."""
    users = list(_users(costs, order, found))
    products = [op for op, user in users if user is User.BLAS and costs.is_product(op)]
    gain = sum(map(costs.seconds, products))
    gain *= 1 - 1 / kernels
    lost = SPIN * _handovers(costs, users)
    return divide(budget, streams, computes=bool(users), foreign=lost > gain, kernels=kernels)


def kernel_threads(costs: OpCosts, budget: Budget, classes: Mapping[Device, int]) -> int:
    """Return the number of threads of a kernel, which is the same in all processes of a host.

    All devices of one type compute concurrently and divide the cores among them.  For short ops,
    one thread is faster than several threads that wait for each other, especially on a busy
    machine.  The threads of loaders are not counted, because loaders use the remaining cores.

    Args:
        costs: the costs of the ops of the physical graph, with the devices of all processes.
        classes: the number of devices of each class, by its first device; empty if the graph has
            ops of all devices.
    """
    found: dict[str, dict[Placement, int]] = {}
    seconds, count = 0.0, 0
    for op in costs.graph.ops.values():
        type_ = op.placement.device_type
        computes = op.type != BOXING and type_ not in costs.accelerators
        if computes and not costs.specs[op.type].host:
            alike = classes.get(op.placement.device(0), 0) if classes else 1
            found.setdefault(type_, {})[op.placement] = alike
            seconds += alike * costs.seconds(op)
            count += alike
    devices = max((sum(of_type.values()) for of_type in found.values()), default=1)
    return budget.per_device(devices) if devices == 1 or seconds >= LONG * count else 1


def _users(
    costs: OpCosts, order: Sequence[Op], found: Mapping[str, KernelSpec]
) -> Iterator[tuple[Op, User]]:
    """Yield the ops, except loaders, that compute on this process's cores, and their libraries."""
    for op in order:
        kernel = found.get(op.name)
        if kernel is not None and kernel.device == HOST and not costs.specs[op.type].host:
            yield op, User.OTHER if kernel.priority > 0 else User.BLAS


def _handovers(costs: OpCosts, users: Sequence[tuple[Op, User]]) -> int:
    """Count the kernels of other libraries that start while the threads of BLAS may still spin."""
    count, last = 0, User.OTHER
    for op, user in users:
        if costs.seconds(op) > SHORT:
            count += (last, user) == (User.BLAS, User.OTHER)
            last = user
    return count
