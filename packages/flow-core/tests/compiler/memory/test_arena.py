"""The arena planner: live blocks do not overlap, and the size is close to the lower bound."""

from random import Random

import pytest
from hypothesis import given
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
def test_live_blocks_never_overlap(items: list[Block]) -> None:
    layout = plan_arena(items)
    spans = list(zip(items, layout.offsets, strict=True))
    for i, (a, low_a) in enumerate(spans):
        assert low_a % ALIGNMENT == 0
        assert low_a + aligned(a.nbytes) <= layout.nbytes
        for b, low_b in spans[i + 1 :]:
            apart = low_a + aligned(a.nbytes) <= low_b or low_b + aligned(b.nbytes) <= low_a
            assert apart or not together(a, b) or not a.nbytes or not b.nbytes


@pytest.mark.slow
@given(blocks)
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


WAYS = {
    "lists": {"FEW": 0, "CROWDED": 1000},
    "loop": {"FEW": 1000},
    "arrays": {"FEW": 0, "CROWDED": 0},
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@given(items=blocks.filter(bool), random=st.randoms(use_true_random=False))
def test_all_ways_to_place_agree(way: str, items: list[Block], random: Random) -> None:
    """Also if blocks that have not moved are not placed again."""
    order = list(range(len(items)))
    random.shuffle(order)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in WAYS[way].items():
            patch.setattr(arena, name, value)
        placer, offsets, same = arena._Placer(items), list[int](), 0
        for _ in range(4):
            offsets = placer.placed(order, offsets, same)
            assert offsets == by_definition(items, order)
            order, same = placer.raised(order, offsets, random)


def by_definition(items: list[Block], order: list[int]) -> list[int]:
    """Place each block at 0 or at the end of another one, whichever is the lowest that is free."""
    found: dict[int, int] = {}
    for i in order:
        size, others = aligned(items[i].nbytes), [j for j in found if together(items[i], items[j])]
        spans = [(found[j], found[j] + aligned(items[j].nbytes)) for j in others]
        found[i] = min(
            start
            for start in (0, *(high for _, high in spans))
            if all(start + size <= low or start >= high for low, high in spans)
        )
    return [found[i] for i in range(len(items))]


def together(a: Block, b: Block) -> bool:
    return a.first <= b.last and b.first <= a.last
