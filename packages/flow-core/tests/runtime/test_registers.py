"""The register protocol: no interleaving loses, duplicates or reorders messages."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_core.base.errors import PlanError
from flow_core.comm.liveness import check_registers
from flow_core.plan import RegisterPlan
from flow_core.runtime.registers import Register


@pytest.mark.slow
@given(
    slots=st.integers(1, 4),
    consumers=st.integers(1, 3),
    moves=st.lists(st.integers(0, 6), max_size=200),
)
def test_any_interleaving_preserves_order_and_bounds(
    slots: int, consumers: int, moves: list[int]
) -> None:
    names = [f"c{i}" for i in range(consumers)]
    register = Register("r", names, slots)
    put, seen = 0, {name: [] for name in names}
    held: dict[str, bool] = dict.fromkeys(names, False)
    for move in moves:
        name = names[move % consumers]
        if move < 2:
            finished = min(len(s) - held[n] for n, s in seen.items())
            assert register.try_put(put) == (put - finished < slots)
            put = put + 1 if put - finished < slots else put
        elif held[name]:
            register.acknowledge(name)
            held[name] = False
        elif register.readable(name):
            seen[name].append(register.try_take(name))
            held[name] = True
        assert 0 <= register.free <= slots
    for values in seen.values():
        assert values == list(range(len(values)))


def test_slot_is_freed_after_all_readers_acknowledge() -> None:
    register = Register("r", ["a", "b"], 1)
    assert register.try_put("x")
    assert register.try_take("a") == "x"
    register.acknowledge("a")
    assert not register.try_put("y")
    assert register.try_take("b") == "x"
    register.acknowledge("b")
    assert register.try_put("y")


def test_acknowledgment_without_a_message_is_an_error() -> None:
    with pytest.raises(PlanError, match="holds no item"):
        Register("r", ["a"], 1).acknowledge("a")


def test_register_requires_slots() -> None:
    with pytest.raises(PlanError, match="0 slots"):
        Register("r", ["a"], 0)


registers = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 3), st.integers(0, 3)),
    min_size=1,
    max_size=8,
).map(
    lambda rows: [
        RegisterPlan(f"r{i}", f"a{p}", (f"a{c}",), s, min(t, s))
        for i, (p, c, s, t) in enumerate(rows)
    ]
)


@pytest.mark.slow
@given(registers)
def test_deadlock_check_agrees_with_execution(plans: list[RegisterPlan]) -> None:
    """In an accepted plan every actor fires forever; a rejected plan gets stuck."""
    actors = sorted({p.producer for p in plans} | {c for p in plans for c in p.consumers})
    full = {p.name: p.initial for p in plans}
    fired = dict.fromkeys(actors, 0)
    queue = deque(actors * 60)
    while queue:
        actor = queue.popleft()
        inputs = [p for p in plans if actor in p.consumers]
        outputs = [p for p in plans if p.producer == actor]
        loops = {p.name for p in inputs} & {p.name for p in outputs}
        ready = all(full[p.name] > 0 for p in inputs)
        has_slot = all(full[p.name] < p.slots for p in outputs if p.name not in loops)
        has_slot = has_slot and all(full[p.name] < p.slots for p in outputs if p.name in loops)
        if ready and has_slot:
            for p in inputs:
                full[p.name] -= 1
            for p in outputs:
                full[p.name] += 1
            fired[actor] += 1
    alive = all(count > 5 for count in fired.values())
    try:
        check_registers(plans)
        accepted = True
    except PlanError:
        accepted = False
    assert accepted == alive


def test_deadlock_error_names_the_registers() -> None:
    plans = [
        RegisterPlan("there", "a", ("b",), 1),
        RegisterPlan("back", "b", ("a",), 1),
    ]
    with pytest.raises(PlanError, match=r"(?s)register '(there|back)'.*register '(there|back)'"):
        check_registers(plans)
