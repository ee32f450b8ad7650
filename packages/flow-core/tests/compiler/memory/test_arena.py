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
def test_all_ways_to_place_agree(items: list[Block], random: Random) -> None:
    order = list(range(len(items)))
    random.shuffle(order)
    wanted = arena._place_by_loop(items, order)
    assert arena._place_by_arrays(items, order) == wanted
    placer = arena._Placer(items)
    placer._others = arena._live_together(items)
    assert placer.placed(order) == wanted
    ends = [low + aligned(block.nbytes) for low, block in zip(wanted, items, strict=True)]
    assert placer.height(wanted) == max(ends, default=0)


@pytest.mark.slow
@given(blocks.filter(bool), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_blocks_that_have_not_moved_are_not_placed_again(
    items: list[Block], random: Random
) -> None:
    placer, order = arena._Placer(items), list(range(len(items)))
    placer._others = arena._live_together(items)
    offsets = placer.placed(order)
    for _ in range(4):
        order, same = placer.raised(order, offsets, random)
        offsets = placer.placed(order, offsets, same)
        assert offsets == arena._place_by_loop(items, order)
