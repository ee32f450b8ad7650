"""The arena planner: live blocks do not overlap, and the size is close to the lower bound."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_core.base.alignment import ALIGNMENT, aligned
from flow_core.compiler.memory import arena
from flow_core.compiler.memory.arena import Block, live_peak, plan_arena

blocks = st.lists(
    st.builds(
        lambda size, first, length: Block(size, first, first + length),
        st.integers(0, 5000),
        st.integers(0, 30),
        st.integers(0, 12),
    ),
    max_size=40,
)


@pytest.mark.slow
@given(blocks)
@settings(deadline=None)
def test_live_blocks_never_overlap(items: list[Block]) -> None:
    layout = plan_arena(items)
    spans = list(zip(items, layout.offsets, strict=True))
    for i, (a, low_a) in enumerate(spans):
        assert low_a % ALIGNMENT == 0
        assert low_a + aligned(a.nbytes) <= layout.nbytes
        for b, low_b in spans[i + 1 :]:
            together = a.first <= b.last and b.first <= a.last
            apart = low_a + aligned(a.nbytes) <= low_b or low_b + aligned(b.nbytes) <= low_a
            assert apart or not together or not a.nbytes or not b.nbytes


@pytest.mark.slow
@given(blocks)
@settings(deadline=None)
def test_lower_bound_is_the_largest_live_set(items: list[Block]) -> None:
    bound, peak = live_peak(items)
    live = [sum(aligned(b.nbytes) for b in items if b.first <= t <= b.last) for t in range(45)]
    assert bound == max(live)
    assert live[peak] == bound
    assert plan_arena(items).nbytes >= bound


def test_training_graph_meets_the_lower_bound() -> None:
    """Activations live from the forward op to its backward op: nested intervals."""
    n = 60
    items = [Block(1000 * (i % 7 + 1), i, 2 * n - i) for i in range(n)]
    items += [Block(500 * (i % 5 + 1), n + i, n + i + 1) for i in range(n)]
    layout = plan_arena(items)
    assert layout.nbytes <= 1.05 * layout.lower_bound


def test_planning_many_blocks_is_fast() -> None:
    items = [Block(64 * (i % 11 + 1), i, i + i % 5) for i in range(20_000)]
    layout = plan_arena(items)
    assert layout.nbytes <= 1.6 * layout.lower_bound


@pytest.mark.slow
@given(blocks, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_array_and_loop_placement_agree(items: list[Block], random: Random) -> None:
    order = list(range(len(items)))
    random.shuffle(order)
    assert arena._place_by_arrays(items, order) == arena._place_by_loop(items, order)
