"""The budget of cores of a process, and its division among concurrent computations.

The module also defines `host_memory`, the amount of memory of the host.

Cores are used by kernels (OpenMP threads), numpy's matrix products (BLAS threads), stream threads,
and the loaders of flow-data.  The steps of a process, including asynchronous ones, run one at a
time.  Therefore, each plan has the whole budget, which `divide` splits.

The order in which BLAS adds numbers depends on its number of threads.  The number of threads for a
device's kernels is therefore derived from the plan's devices and the cores of a host, neither of
which depends on the number of processes that share the host.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path

from flow_core.base.errors import ConfigError

SETTING = "ONEFLOW_CPU_THREADS"
STANDARD = "OMP_NUM_THREADS"


@dataclass(frozen=True, slots=True)
class Budget:
    """The cores that a process may keep busy.

    Attributes:
        count: the number of cores, at least 1.
        source: the origin of the number, for messages.
        pool: the number of cores that the processes of one host share; 0 stands for ``count``.
        pools: the number of such pools in the program, each of which serves a part of the devices.
    """

    count: int
    source: str
    pool: int = 0
    pools: int = 1

    def __str__(self) -> str:
        return f"{self.count} by {self.source}"

    def per_device(self, devices: int) -> int:
        """Return the number of cores for each of several devices.

        The result does not depend on which processes own the devices.

        >>> Budget(4, "its cores").per_device(2)
        2
        >>> Budget(1, "4 cores for 4 processes", pool=4).per_device(2)
        2
        """
        per_host = -(-max(1, devices) // self.pools)
        return max(1, (self.pool or self.count) // per_host)


def asked(env: Mapping[str, str]) -> Budget | None:
    """Return the budget that environment variables request.

    `SETTING` takes precedence over `STANDARD`.  If `STANDARD` holds a list (one number per nesting
    level), its first number counts.

    Raises:
        ConfigError: `SETTING` is not a positive number.

    >>> print(asked({"OMP_NUM_THREADS": "4,2", "ONEFLOW_CPU_THREADS": "3"}))
    3 by ONEFLOW_CPU_THREADS
    >>> print(asked({"OMP_NUM_THREADS": "4,2"}), asked({"OMP_NUM_THREADS": "all"}))
    4 by OMP_NUM_THREADS None
    """
    text = env.get(SETTING, "")
    if text and not (text.isdigit() and int(text)):
        raise ConfigError(f"setting {SETTING}", found=repr(text), allowed="a positive integer")
    if text:
        return Budget(int(text), SETTING)
    match = re.match(r"\s*(\d+)\s*(,|$)", env.get(STANDARD, ""))
    return Budget(int(match[1]), STANDARD) if match and int(match[1]) else None


def find_budget(
    wish: Budget | None = None, share: Budget | None = None, processes: int = 1
) -> Budget:
    """Return the requested budget, else a share of the host's cores, else all usable cores.

    Args:
        wish: the budget that environment variables request; see `asked`.
        share: the cores left by other processes of the program; None for a single process.
        processes: the number of processes; a request applies to each of them.

    >>> find_budget(Budget(2, "a wish"), Budget(1, "a share", 4, 2), processes=4)
    Budget(count=2, source='a wish', pool=0, pools=4)
    """
    if wish:
        return replace(wish, pools=processes)
    return share or Budget(len(usable_cores()), "its cores")


def usable_cores() -> Collection[int]:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@cache
def host_memory() -> int | None:
    """Return the host's memory in bytes, or its container's limit if lower; None if unknown."""
    try:
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
    try:
        return min(physical, int(_CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return physical


def fair_share(own: Collection[int], others: Collection[Collection[int]]) -> Budget:
    """Return the budget of one of several processes on a host.

    Each core is divided evenly among the processes that may use it.  Therefore, a process that is
    bound to cores that no other process may use gets all of these cores.

    Args:
        own: the cores that the process may use.
        others: the cores that each other process of the host may use.

    >>> print(fair_share({0, 1, 2, 3}, [{0, 1, 2, 3}]))
    2 by 4 cores for 2 processes
    >>> print(fair_share({0, 1}, [{2, 3}]))
    2 by 2 cores for 1 processes
    """
    users = [1 + sum(core in theirs for theirs in others) for core in own]
    count = int(sum(Fraction(1, n) for n in users))
    source = f"{len(own)} cores for {max(users, default=1)} processes"
    return Budget(max(1, count), source, len(set(own).union(*others)))


@dataclass(frozen=True, slots=True)
class Cores:
    """The division of the budget in a plan."""

    budget: int = 0  # number of cores of the process; 0 if the budget has not been divided
    source: str = ""  # the origin of the budget
    # Number of OpenMP threads of a kernel, which does not depend on the number of processes on a
    # host.
    kernels: int = 0
    # Number of BLAS threads of a matrix product, on which the bits of the product may depend.
    products: int = 0
    # Number of batches that loaders prepare concurrently while a step computes.  While a step waits
    # for a batch, loaders may use the whole budget.
    loaders: int = 0

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield the division as rows of text, each with a label and a value."""
        yield "budget", f"{self.budget} by {self.source}"
        yield "each kernel", str(self.kernels)
        yield "each product by numpy", str(self.products)
        yield "loaders while a step computes", str(self.loaders)


NOT_DIVIDED = Cores()


def divide(budget: Budget, streams: int, computes: bool, foreign: bool, kernels: int) -> Cores:
    """Divide a budget among the kernels, the matrix products and the loaders of a plan.

    Args:
        streams: the number of streams of this process that compute concurrently.
        computes: whether steps compute on these cores rather than on accelerators.
        foreign: whether most work is in kernels with threads other than BLAS's.  BLAS threads would
            compete with these threads, because threads spin for tens of milliseconds after work.

    >>> divide(Budget(4, "its cores"), 2, True, False, 2)
    Cores(budget=4, source='its cores', kernels=2, products=2, loaders=1)
    >>> divide(Budget(4, "its cores"), 1, False, False, 4).loaders
    4
    """
    used = kernels * max(1, streams) if computes else 0
    products = 1 if foreign else kernels
    left = max(1, budget.count - used)
    return Cores(budget.count, budget.source, kernels, products, left)
