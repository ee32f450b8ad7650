"""The shared-memory exchange between ranks that are threads: which rank combines, which copies."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_ranks import Mail, together

from flow_core.base.dtypes import float32
from flow_core.sharding.topology import Device
from flow_core.testing import comm_cases
from flow_dist.control.waiting import WAIT_POLICY
from flow_dist.phases import phases_of
from flow_dist.shm.counters import TOTAL_STORE_ORDER
from flow_dist.shm.exchange import bind_exchange
from flow_dist.shm.memory import PeerGroup, SharedMemory

if not TOTAL_STORE_ORDER:
    pytest.skip("needs stores that are seen in their order", allow_module_level=True)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    kept = WAIT_POLICY.spins, WAIT_POLICY.home, WAIT_POLICY.same_core
    yield
    WAIT_POLICY.spins, WAIT_POLICY.home, WAIT_POLICY.same_core = kept


class Ranks:
    """An all-reduce between ranks with a device each.

    Attributes:
        sums: how often each rank has combined two arrays.
    """

    def __init__(self, size: int, lengths: Sequence[int], in_place: bool) -> None:
        self.size, self.in_place = size, in_place
        devices = tuple(Device("cpu", 0, rank) for rank in range(size))
        self.exchange = comm_cases.all_reduce(*[(n,) for n in lengths])(devices, float32)
        self.sums: Counter[int] = Counter()
        self._mail = Mail(size)

    def bind(self, rank: int, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """The launch of a rank."""

        def combine(a: Any, b: Any, out: Any) -> None:
            self.sums[rank] += 1
            np.add(a, b, out)

        swap = partial(self._mail.swap, rank)
        group = PeerGroup(rank, lambda device: device.index, swap, lambda t, s: ())
        own = self.exchange.part_of([Device("cpu", 0, rank)])
        phases = phases_of(own, inputs, outputs)
        (launch,) = bind_exchange(replace(phases, combine=combine), SharedMemory(), group)
        return launch

    def run(self, steps: Sequence[Sequence[Any]], late: Callable[[int, int], None]) -> list[Any]:
        """Per rank, its outputs after each launch."""
        found: list[list[Any]] = [[] for _ in range(self.size)]

        def work(rank: int) -> None:
            inputs = [a.copy() if i % self.size == rank else None for i, a in enumerate(steps[0])]
            outputs = inputs if self.in_place else [None if a is None else a * 0 for a in inputs]
            launch = self.bind(rank, inputs, outputs)
            for number, arrays in enumerate(steps):
                for mine, array in zip(inputs, arrays, strict=True):
                    if mine is not None:
                        mine[...] = array
                late(rank, number)
                launch()
                found[rank].append([a.copy() for a in outputs if a is not None])

        together([partial(work, rank) for rank in range(self.size)])
        return found

    def expected(self, arrays: Sequence[Any]) -> list[Any]:
        """The sums, rank by rank."""
        sums = []
        for first in range(0, len(arrays), self.size):
            total = arrays[first]
            for array in arrays[first + 1 : first + self.size]:
                total = total + array
            sums.append(total)
        return sums


def drawn(seed: int, size: int, lengths: Sequence[int], launches: int) -> list[list[Any]]:
    chance = np.random.default_rng(seed)
    scale = 10.0 ** chance.integers(-6, 6, (launches, len(lengths) * size))
    return [
        [
            (scale[step, m * size + r] * chance.normal(size=n)).astype(np.float32)
            for m, n in enumerate(lengths)
            for r in range(size)
        ]
        for step in range(launches)
    ]


def on_one_core(size: int) -> None:
    """All ranks keep to one core."""
    WAIT_POLICY.spins, WAIT_POLICY.home, WAIT_POLICY.same_core = 0, 0, frozenset(range(size))


@pytest.mark.slow
@settings(max_examples=20)
@given(
    st.integers(2, 4),
    st.lists(st.integers(1, 6), min_size=1, max_size=2),
    st.booleans(),
    st.booleans(),
    st.integers(0, 1 << 32),
)
def test_sums_are_in_rank_order_whichever_rank_combines(
    size: int, lengths: list[int], in_place: bool, near: bool, seed: int
) -> None:
    WAIT_POLICY.home, WAIT_POLICY.same_core = None, frozenset()
    if near:
        on_one_core(size)
    steps = drawn(seed, size, lengths, 7)
    ranks = Ranks(size, lengths, in_place)
    found = ranks.run(steps, lambda rank, number: time.sleep(1e-3 * (number % size == rank)))
    for outputs in found:
        assert len(outputs) == len(steps)
        for arrays, got in zip(steps, outputs, strict=True):
            for one, other in zip(got, ranks.expected(arrays), strict=True):
                np.testing.assert_array_equal(one, other)


def test_later_ranks_copy_the_sum_of_the_first() -> None:
    on_one_core(4)
    ranks = Ranks(4, [3], in_place=False)
    ranks.run(drawn(0, 4, [3], 20), lambda rank, number: time.sleep(2e-3 * (rank == number % 4)))
    assert 20 * 3 <= ranks.sums.total() < 20 * 3 * 4


def test_ranks_with_a_core_of_their_own_combine_themselves() -> None:
    WAIT_POLICY.home, WAIT_POLICY.same_core = None, frozenset()
    ranks = Ranks(4, [3], in_place=False)
    ranks.run(drawn(0, 4, [3], 5), lambda rank, number: None)
    assert ranks.sums == dict.fromkeys(range(4), 5 * 3)
