"""A second start reuses the form that the first one found, without a search or a compilation."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parallel_forms import emulated

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.disk_cache import CacheWarning, DiskCache
from flow_core.base.planning import planning
from flow_core.compiler.limits import needed_bytes
from flow_core.compiler.request import Compiled, CompileRequest
from flow_core.frontend.job import host_fallback
from flow_core.frontend.job.forms import kept
from flow_core.frontend.job.forms.search import Search

INIT = flow.random_normal_initializer(stddev=0.1)
WIDTH = 64
ROWS = {"0:0": 1024, "0:0-3": 64}
"""The rows of a batch: activations fill one device, and states of the optimizer four."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Store plans in a temporary folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "flow-core" / "plans"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The searches and the compilations since the list was cleared."""
    found: list[str] = []
    compile_plan, run = host_fallback.compile_plan, Search.run

    def compiled(request: CompileRequest) -> Compiled:
        found.append("compilation")
        return compile_plan(request)

    def searched(self: Search, *arguments: Any) -> Any:
        found.append("search")
        return run(self, *arguments)

    monkeypatch.setattr(host_fallback, "compile_plan", compiled)
    monkeypatch.setattr(Search, "run", searched)
    return found


def perceptron(devices: str, **settings: Any) -> Any:
    config = flow.function_config()
    for name, value in {"share_replicas": False, **settings}.items():
        getattr(config, name)(value)

    @flow.global_function(type="train", function_config=config)
    def train(x: tp.Numpy.Placeholder((ROWS[devices], WIDTH))) -> tp.Numpy:
        with flow.scope.placement("gpu", devices):
            for i in range(2):
                x = flow.layers.dense(
                    x, WIDTH, flow.math.tanh, kernel_initializer=INIT, name=f"layer{i}"
                )
            loss = flow.math.reduce_mean(flow.math.square(x), axis=1)
            flow.optimizer.Adam(1e-3, do_bias_correction=True).minimize(loss)
        return loss

    return train


Start = tuple[Compiled, list[bytes]]


def started(memory: int | None, devices: str, **settings: Any) -> Start:
    """Compile the job in a session of its own; return it and the bits of two steps."""
    feed = np.random.default_rng(0).normal(size=(ROWS[devices], WIDTH)).astype(np.float32)
    with emulated(4, memory=memory, plan_cache=1 << 24):
        job = perceptron(devices, **settings)
        bits = [job(feed).tobytes() for _ in range(2)]
        compiled: Compiled = job.compile()
        return compiled, bits


@cache
def needed(devices: str, **settings: Any) -> int:
    """Return the bytes that a device needs for the job as it is."""
    with emulated(4):
        plan = perceptron(devices, **settings).compile().plan
    return max(n for d, n in needed_bytes(plan).items() if d.type == "gpu")


def part_of_peak(part: float, devices: str, **settings: Any) -> int:
    """Return a part of the memory that the job needs as it is."""
    return int(part * needed(devices, **settings))


CASES: dict[str, tuple[float, str, dict[str, Any]]] = {
    "states in parts": (0.8, "0:0-3", {"sbp_selector": "greedy"}),
    "layouts": (0.7, "0:0-3", {}),
    "micro-batches": (0.7, "0:0", {"memory_search": "micro_batches"}),
}


@pytest.mark.parametrize(
    "case", [pytest.param(n, marks=pytest.mark.slow) if n == "layouts" else n for n in CASES]
)
def test_a_second_start_neither_searches_nor_compiles(case: str, calls: list[str]) -> None:
    part, devices, settings = CASES[case]
    memory = part_of_peak(part, devices, **settings)
    first, bits = started(memory, devices, **settings)
    assert first.searched is not None
    assert calls.count("search") == 1
    calls.clear()
    second, same = started(memory, devices, **settings)
    assert calls == []
    assert same == bits
    assert second.searched == first.searched
    assert second.plan == first.plan
    assert second.request.micro_batches == first.request.micro_batches
    assert second.optimized_logical.ops == first.optimized_logical.ops


def test_only_the_plan_of_the_form_is_kept(folder: Path) -> None:
    started(part_of_peak(0.8, "0:0-3", sbp_selector="greedy"), "0:0-3", sbp_selector="greedy")
    assert len([*folder.iterdir()]) == 2  # the form and its plan


def test_the_form_is_told_again(caplog: pytest.LogCaptureFixture) -> None:
    memory = part_of_peak(0.8, "0:0-3", sbp_selector="greedy")
    for _ in range(2):
        caplog.clear()
        started(memory, "0:0-3", sbp_selector="greedy")
        assert f"does not fit into the {memory:,} bytes of gpu:0:" in caplog.text


def test_devices_with_more_memory_search_again(calls: list[str]) -> None:
    """A cheaper form may fit into them; into devices with less, the same one."""
    settings = {"sbp_selector": "greedy"}
    memory = part_of_peak(0.8, "0:0-3", **settings)
    first, _ = started(memory, "0:0-3", **settings)
    assert first.searched is not None
    calls.clear()
    same, _ = started(first.searched.nbytes, "0:0-3", **settings)
    assert calls == []
    assert same.plan == first.plan
    more, _ = started(memory + 1024, "0:0-3", **settings)
    assert "search" in calls
    assert more.searched is not None
    assert more.searched.seconds <= first.searched.seconds


def test_other_settings_of_the_search_search_again(calls: list[str]) -> None:
    memory = part_of_peak(0.8, "0:0-3", sbp_selector="greedy")
    for search in ("on", "micro_batches"):
        calls.clear()
        started(memory, "0:0-3", sbp_selector="greedy", memory_search=search)
        assert "search" in calls


def test_planning_searches(calls: list[str]) -> None:
    memory = part_of_peak(0.8, "0:0-3", sbp_selector="greedy")
    for _ in range(2):
        calls.clear()
        with planning(), emulated(4, memory=memory, plan_cache=1 << 24):
            perceptron("0:0-3", sbp_selector="greedy").compile()
        assert "search" in calls


# ------------------------------------------------------------------------------- damaged files


def started_with(change: Callable[[Any], object], memory: int) -> None:
    """Start, and change the form that is kept; the digest of its file is sound."""
    write = DiskCache.write

    def changed(self: DiskCache, key: Sequence[str], content: bytes) -> None:
        if key[0] == kept.FORMAT:
            data = json.loads(content)
            change(data)
            content = json.dumps(data).encode()
        write(self, key, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DiskCache, "write", changed)
        started(memory, "0:0-3", sbp_selector="greedy")


@pytest.mark.parametrize("levels", [[9, 0, 0, 0, 0], [-1, 0, 0, 0, 0], [0], [1, 0, 0, 0, 0]])
def test_levels_that_do_not_apply_are_searched_again(levels: list[int], calls: list[str]) -> None:
    """The last ones are a grid, which the job's selector does not allow."""
    memory = part_of_peak(0.8, "0:0-3", sbp_selector="greedy")
    started_with(lambda data: data["searched"].update(levels=levels), memory)
    for expected in (1, 0):
        calls.clear()
        started(memory, "0:0-3", sbp_selector="greedy")
        assert calls.count("search") == expected


CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "no device": (lambda data: data.update(memory={"gpu": 1}), "gpu"),
    "a field more": (lambda data: data.update(more=1), "a field 'more'"),
    "a text for a number": (lambda data: data.update(price="1"), "the text '1'"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_damaged_form_is_replaced(change: str, calls: list[str]) -> None:
    memory = part_of_peak(0.8, "0:0-3", sbp_selector="greedy")
    applied, reason = CHANGES[change]
    started_with(applied, memory)
    with pytest.warns(CacheWarning, match=f"is not used and will be replaced: .*{reason}"):
        started(memory, "0:0-3", sbp_selector="greedy")
    calls.clear()
    started(memory, "0:0-3", sbp_selector="greedy")
    assert calls == []
