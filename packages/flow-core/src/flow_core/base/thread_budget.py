"""One budget of cores per process, and how a plan divides it among all that computes at once.

Also `host_memory`, the bytes that the process may use.

Users of cores are the kernels (threads of OpenMP), numpy's matrix products (threads of BLAS), the
threads that run streams, and the loaders of flow-data.  Steps of a process, asynchronous ones
too, run one at a time, so that each plan has the whole budget; `divide` says who has which part.

BLAS adds up in another order with another number of threads.  A device's kernels therefore get
their number from the plan's devices and the cores of a host, which are the same for any number of
processes that share the host.
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
        count: how many, at least 1.
        source: who says so, for people.
        pool: the cores that the processes of one host divide among them; 0 stands for ``count``.
        pools: how many such pools the program has, each with its part of the devices.
    """

    count: int
    source: str
    pool: int = 0
    pools: int = 1

    def __str__(self) -> str:
        return f"{self.count} by {self.source}"

    def per_device(self, devices: int) -> int:
        """The cores of each of some devices, whichever process of a host has them.

        >>> Budget(4, "its cores").per_device(2)
        2
        >>> Budget(1, "4 cores for 4 processes", pool=4).per_device(2)
        2
        """
        here = -(-max(1, devices) // self.pools)
        return max(1, (self.pool or self.count) // here)


def asked(env: Mapping[str, str]) -> Budget | None:
    """The budget that an environment asks for.

    `SETTING` goes before `STANDARD`, of whose list (a number per level) the first one counts.

    Raises:
        ConfigError: `SETTING` is no positive number.

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
    found = re.match(r"\s*(\d+)\s*(,|$)", env.get(STANDARD, ""))
    return Budget(int(found[1]), STANDARD) if found and int(found[1]) else None


def find_budget(
    wish: Budget | None = None, share: Budget | None = None, processes: int = 1
) -> Budget:
    """What is asked for, else a share of the host's cores, else the cores that there are.

    Args:
        wish: what the environment asks for, see `asked`; None for nothing.
        share: what other processes of the same program leave; None where there are none.
        processes: how many the program has; a wish holds for each of them.

    >>> find_budget(Budget(2, "a wish"), Budget(1, "a share", 4, 2), processes=4)
    Budget(count=2, source='a wish', pool=0, pools=4)
    """
    if wish:
        return replace(wish, pools=processes)
    return share or Budget(len(usable_cores()), "its cores")


def usable_cores() -> Collection[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@cache
def host_memory() -> int | None:
    """Bytes of memory that this process may use at most: the host's, or its container's limit.

    None where the operating system does not tell.
    """
    try:
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
    try:
        return min(physical, int(_CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return physical


def fair_share(own: Collection[int], others: Collection[Collection[int]]) -> Budget:
    """The cores of one of several processes on a host.

    Each core is divided among those that may use it: processes that are bound to cores of their
    own have all of these, others as many as each other.

    Args:
        own: the cores that the process may use.
        others: those of each other process of the host.

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
    """How a plan divides the budget.

    Attributes:
        budget: cores of the process; 0 where nobody has divided any.
        source: who says so.
        kernels: threads of a kernel, OpenMP's: the same for any number of processes of a host.
        products: threads of a matrix product of numpy's, on which its bits may depend.
        loaders: batches that loaders make at a time while a step computes.  While one waits for
            a batch, it leaves them the whole budget.
    """

    budget: int = 0
    source: str = ""
    kernels: int = 0
    products: int = 0
    loaders: int = 0

    def rows(self) -> Iterator[tuple[str, str]]:
        """Who has how many, in words."""
        yield "budget", f"{self.budget} by {self.source}"
        yield "each kernel", str(self.kernels)
        yield "each product by numpy", str(self.products)
        yield "loaders while a step computes", str(self.loaders)


NOT_DIVIDED = Cores()


def divide(budget: Budget, streams: int, computes: bool, foreign: bool, kernels: int) -> Cores:
    """The division of a budget.

    Args:
        budget: of the process.
        streams: how many streams of this process compute at once.
        computes: whether steps compute on these cores, and not on devices of their own.
        foreign: whether most of that is in kernels with threads that are not BLAS's.  BLAS's then
            only get in their way: they go on spinning for tens of milliseconds after their work.
        kernels: threads of a kernel.

    >>> divide(Budget(4, "its cores"), 2, True, False, 2)
    Cores(budget=4, source='its cores', kernels=2, products=2, loaders=1)
    >>> divide(Budget(4, "its cores"), 1, False, False, 4).loaders
    4
    """
    used = kernels * max(1, streams) if computes else 0
    products = 1 if foreign else kernels
    left = max(1, budget.count - used)
    return Cores(budget.count, budget.source, kernels, products, left)
