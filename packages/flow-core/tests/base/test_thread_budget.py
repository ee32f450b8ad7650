"""The core budget: which setting determines it and how it is divided."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_core.base.config import Settings
from flow_core.base.errors import ConfigError
from flow_core.base.thread_budget import (
    Budget,
    Cores,
    asked,
    divide,
    fair_share,
    find_budget,
    usable_cores,
)
from flow_core.plan import Plan

counts = st.integers(1, 64)
core_sets = st.sets(st.integers(0, 15), min_size=1)


def test_flow_setting_overrides_the_standard_one() -> None:
    both = {"ONEFLOW_CPU_THREADS": "3", "OMP_NUM_THREADS": "5"}
    assert Settings.from_env(both).cores == Budget(3, "ONEFLOW_CPU_THREADS")
    assert Settings.from_env({"OMP_NUM_THREADS": "5"}).cores == Budget(5, "OMP_NUM_THREADS")
    assert Settings.from_env({}).cores is None


@pytest.mark.parametrize("text", ["0", "all", "-2", "2.5"])
def test_invalid_core_counts_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="ONEFLOW_CPU_THREADS"):
        Settings.from_env({"ONEFLOW_CPU_THREADS": text})


@pytest.mark.parametrize("text", ["", "0", "many", "x,4"])
def test_settings_invalid_for_openmp_are_ignored(text: str) -> None:
    assert asked({"OMP_NUM_THREADS": text}) is None


def test_request_overrides_share_and_share_overrides_all_cores() -> None:
    wish, share = Budget(3, "a wish"), Budget(2, "a share")
    assert find_budget(wish, share) == wish
    assert find_budget(None, share) is share
    assert find_budget().count == len(usable_cores())


@pytest.mark.slow
@given(st.lists(core_sets, min_size=1, max_size=6))
def test_shares_do_not_exceed_the_shared_cores(processes: list[set[int]]) -> None:
    shares = []
    for i, own in enumerate(processes):
        others = [*processes[:i], *processes[i + 1 :]]
        share = fair_share(own, others).count
        assert 1 <= share <= len(own)
        if not any(own & theirs for theirs in others):
            assert share == len(own)
        shares.append(
            share if share > 1 else 0
        )  # at least one core, even on an oversubscribed host
    assert sum(shares) <= len(set().union(*processes))


@given(counts, counts, st.booleans(), st.booleans())
def test_concurrent_devices_fit_the_budget(
    cores: int, devices: int, computes: bool, foreign: bool
) -> None:
    streams = min(cores, devices)
    budget = Budget(cores, "a test")
    found = divide(budget, streams, computes, foreign, budget.per_device(devices))
    assert found.kernels == max(1, cores // devices)
    busy = found.kernels * streams
    assert busy <= cores
    if computes and busy < cores:
        assert busy + found.loaders == cores
    if not computes:
        assert found.loaders == cores
    assert found.products == (1 if foreign else found.kernels)


@given(counts, counts, st.sampled_from([1, 2, 3, 4, 8]))
def test_kernel_threads_are_independent_of_the_processes_per_host(
    cores: int, devices: int, processes: int
) -> None:
    own = range(cores)
    alone = Budget(cores, "its cores")
    shared = fair_share(own, [own] * (processes - 1))
    assert find_budget(None, shared, processes).per_device(devices) == alone.per_device(devices)


@given(counts, counts, st.integers(1, 8))
def test_request_applies_to_each_process(cores: int, each: int, processes: int) -> None:
    share = Budget(1, "a share", pool=64)
    found = find_budget(Budget(cores, "a wish"), share, processes)
    assert found.per_device(each * processes) == max(1, cores // each)
    assert found.per_device(1) == cores


def test_two_devices_on_two_cores_use_one_thread_each() -> None:
    two = Budget(2, "a test")
    assert divide(two, 2, True, False, two.per_device(2)) == Cores(2, "a test", 1, 1, 1)
    assert divide(two, 1, True, False, two.per_device(2)) == Cores(2, "a test", 1, 1, 1)
    assert divide(two, 1, True, False, two.per_device(1)) == Cores(2, "a test", 2, 2, 1)


def test_division_survives_saving_a_plan() -> None:
    cores = Cores(4, "a test", 2, 1, 1)
    plan = Plan("job", (), (), (), (), (), (), {}, cores=cores)
    assert Plan.from_json(plan.to_json()).cores == cores
    assert json.loads(plan.to_json())["cores"]["kernels"] == 2
