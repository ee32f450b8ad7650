"""A job that does not fit into its devices runs in the cheapest form that does."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
from launching import python, run_script
from parallel_forms import emulated

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import ConfigError, OutOfMemoryError
from flow_core.compiler.limits import needed_bytes
from flow_core.compiler.request import Compiled, CompileRequest
from flow_core.frontend.job import compile as compile_module
from flow_core.frontend.job.compile_request import compile_request
from flow_core.frontend.job.forms.search import Search, Steps
from flow_core.frontend.job.forms.table import (
    COUNTS,
    GRIDS,
    KINDS,
    MICRO,
    RECOMPUTED,
    STAGES,
    STATES,
)
from flow_core.frontend.job.host_fallback import compile_with_fallback

INIT = flow.random_normal_initializer(stddev=0.1)
ROWS, TOKENS, WIDTH, HEADS = 64, 8, 32, 4
X = np.random.default_rng(0).normal(size=(ROWS, TOKENS, WIDTH)).astype(np.float32)
LARGE = 1 << 40


def dense(x: Any, units: int, name: str) -> Any:
    return flow.layers.dense(x, units, kernel_initializer=INIT, name=name)


def layer(x: Any, name: str) -> Any:
    def heads(kind: str) -> Any:
        y = flow.reshape(dense(x, WIDTH, f"{name}-{kind}"), (-1, TOKENS, HEADS, WIDTH // HEADS))
        return flow.transpose(y, (0, 2, 1, 3))

    scores = flow.nn.softmax(flow.matmul(heads("q"), heads("k"), transpose_b=True) * 0.35)
    mixed = flow.transpose(flow.matmul(scores, heads("v")), (0, 2, 1, 3))
    x = x + dense(flow.reshape(mixed, (-1, TOKENS, WIDTH)), WIDTH, f"{name}-o")
    return x + dense(flow.math.tanh(dense(x, 4 * WIDTH, f"{name}-up")), WIDTH, f"{name}-down")


def transformer(devices: str = "0:0-3", layers: int = 2, **settings: Any) -> Any:
    config = flow.function_config()
    for name, value in settings.items():
        getattr(config, name)(value)

    @flow.global_function(type="train", function_config=config)
    def train(x: tp.Numpy.Placeholder((ROWS, TOKENS, WIDTH))) -> tp.Numpy:
        with flow.scope.placement("gpu", devices):
            for i in range(layers):
                x = layer(x, f"l{i}")
            loss = flow.math.reduce_mean(flow.math.square(x), axis=[1, 2])
            flow.optimizer.Adam(1e-3, do_bias_correction=True).minimize(loss)
        return loss

    return train


def peak(compiled: Compiled) -> int:
    return max(n for device, n in needed_bytes(compiled.plan).items() if device.type == "gpu")


def planned(memory: int | None = None, devices: str = "0:0-3", **settings: Any) -> Compiled:
    with emulated(4, memory=memory):
        found: Compiled = transformer(devices, share_replicas=False, **settings).compile()
        return found


def losses(memory: int | None, devices: str = "0:0-3", **settings: Any) -> Any:
    with emulated(4, memory=memory):
        job = transformer(devices, share_replicas=False, **settings)
        return np.stack([job(X) for _ in range(3)])


def search_under(limit: int, compiled: Any = compile_with_fallback) -> Search:
    """A search under a limit that is not the session's, in a session with four devices."""
    config = transformer_config(sbp_selector="greedy")
    variant = transformer(layers=1, sbp_selector="greedy").traced_with(config)
    return Search(variant.source, replace(steps_of(variant, limit), compiled=compiled))


def transformer_config(**settings: Any) -> Any:
    config = flow.function_config()
    for name, value in settings.items():
        getattr(config, name)(value)
    return config


def steps_of(variant: Any, limit: int) -> Steps:
    def request(source: Any) -> Any:
        found = compile_request(source.build, source.values, source.inputs)
        limits = replace(found.limits, memory=lambda d: limit if d.type == "gpu" else None)
        return replace(found, limits=limits, share_replicas=False)

    return Steps(lambda *n: variant.in_form(*n).source, request, compile_with_fallback)


# ------------------------------------------------------------------------------------ decreasing


@pytest.mark.slow
def test_lower_limits_give_dearer_forms_that_fit() -> None:
    """States in parts and recomputation keep the bits of data parallelism."""
    whole, seconds, names = planned(sbp_selector="greedy"), [0.0], ["as it is"]
    wanted = losses(None, sbp_selector="greedy")
    np.testing.assert_allclose(wanted, losses(None, "0:0"), rtol=1e-5)
    for limit in [round(peak(whole) * part) for part in (0.9, 0.8, 0.7, 0.6)]:
        with emulated(4, memory=limit):
            job = transformer(share_replicas=False, sbp_selector="greedy")
            found, compiled = np.stack([job(X) for _ in range(3)]), job.compile()
        assert compiled.searched is not None
        assert compiled.searched.limit == limit
        assert peak(compiled) <= limit
        assert compiled.searched.gap == 0
        seconds.append(compiled.searched.seconds)
        names.append(compiled.searched.form)
        np.testing.assert_array_equal(found, wanted)
    assert len(set(names)) > 2, names
    assert all(a <= b for a, b in pairwise(seconds)), [*zip(names, seconds, strict=True)]


@pytest.mark.slow
def test_other_layouts_that_fit() -> None:
    limit = peak(planned(layers=1)) * 4 // 5
    compiled = planned(limit, layers=1)
    assert compiled.searched is not None
    assert peak(compiled) <= limit
    assert {"layouts", "a grid of devices"} <= {*compiled.searched.kinds}
    found = losses(limit, layers=1)
    np.testing.assert_allclose(found, losses(None, "0:0", layers=1), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("part", [0.9, 0.8])
def test_no_form_that_fits_is_cheaper(part: float) -> None:
    """Against all combinations of the changes, compiled one by one, hand-written forms included."""
    limit = round(peak(planned(layers=1, sbp_selector="greedy")) * part)
    with emulated(4):
        found = search_under(limit)
        best = found.run((STATES, RECOMPUTED), 1e6)
    with emulated(4):
        every = search_under(limit)
        for states, again in product(range(3), range(3)):
            every.form((0, 0, 0, states, again, 0))
    assert best is not None
    assert len(every.tried) == 9 > len(found.tried)
    assert best.seconds == every.fitting[0].seconds
    assert found.left == 0


def test_only_the_best_form_is_compiled_for_all_devices() -> None:
    """If that plan does not fit, the search goes on."""
    limit = round(peak(planned(layers=1, sbp_selector="greedy")) * 0.8)
    whole: list[CompileRequest] = []

    def compiled(request: CompileRequest, refused: int) -> Compiled:
        if request.devices is None:
            whole.append(request)
            if len(whole) <= refused:
                raise OutOfMemoryError("compiling", found="a device with less memory")
        return compile_with_fallback(request)

    found = []
    for refused in range(2):
        whole.clear()
        with emulated(4):
            search = search_under(limit, partial(compiled, refused=refused))
            best = search.run((STATES, RECOMPUTED), 1e6)
        assert best is not None
        assert best.compiled is not None
        assert not best.compiled.plan.classes
        assert len(whole) == refused + 1
        assert best is search.fitting[0]
        found.append(best)
    assert found[0].levels != found[1].levels
    assert found[0].seconds <= found[1].seconds


def test_a_job_that_fits_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(request: Any) -> Compiled:
        calls.append(request)
        return compile_with_fallback(request)

    monkeypatch.setattr(compile_module, "compile_with_fallback", counted)
    compiled = planned(LARGE, layers=1)
    assert len(calls) == 1
    assert compiled.searched is None


# ----------------------------------------------------------------------------------------- report


def test_the_report(caplog: pytest.LogCaptureFixture) -> None:
    whole = planned(layers=1, sbp_selector="greedy")
    tight = planned(peak(whole) * 4 // 5, layers=1, sbp_selector="greedy")
    assert tight.searched is not None
    rows = dict(tight.searched.rows())
    assert "states in parts, recomputation;" in rows["forms searched"]
    assert tight.searched.gap == 0
    assert "gap at most 0.00% among these forms" in rows["step"]
    assert f"{peak(whole) * 4 // 5:,} bytes of gpu:0:" in rows["form"]
    assert tight.searched.form in caplog.text
    assert tight.searched.fitting == 1 or tight.searched.runner_up is not None


def test_a_budget_ends_the_search_with_a_form_that_fits() -> None:
    whole = planned(layers=1, sbp_selector="greedy")
    limit = peak(whole) * 4 // 5
    full = planned(limit, layers=1, sbp_selector="greedy").searched
    quick = planned(limit, layers=1, sbp_selector="greedy", sbp_selector_seconds=1e-6).searched
    assert full is not None
    assert quick is not None
    assert quick.tried < full.tried
    assert quick.left > 0
    assert quick.bound <= full.seconds <= quick.seconds
    assert "sbp_selector_seconds" in dict(quick.rows())["forms searched"]


# ---------------------------------------------------------------------------------------- consent


def one_device(memory: int, search: str) -> Any:
    with emulated(1, memory=memory):
        return transformer("0:0", layers=1, memory_search=search)(X)


def test_micro_batches_need_consent() -> None:
    limit = peak(planned(devices="0:0", layers=1)) * 2 // 5
    with pytest.raises(OutOfMemoryError) as caught:
        one_device(limit, "on")
    hint = caught.value.hint or ""
    assert "no form that the settings allow fits" in hint
    assert "micro-batches" in hint
    assert 'if allowed by function_config.memory_search("micro_batches")' in hint
    found = one_device(limit, "micro_batches")
    assert found.shape == (ROWS,)
    np.testing.assert_allclose(found, one_device(LARGE, "off"), rtol=1e-5)


def test_no_search() -> None:
    limit = peak(planned(layers=1, devices="0:0")) - 64
    with emulated(1, memory=limit), pytest.raises(OutOfMemoryError) as caught:
        transformer("0:0", layers=1, memory_search="off").compile()
    assert 'if allowed by function_config.memory_search("on")' in (caught.value.hint or "")
    with pytest.raises(ConfigError):
        flow.function_config().memory_search("always")


def test_nothing_fits() -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        one_device(1000, "micro_batches")
    assert "the smallest of" in (caught.value.hint or "")
    assert "compiled" in (caught.value.hint or "")


def test_layouts_of_the_greedy_selector_are_kept() -> None:
    limit = peak(planned(layers=1, sbp_selector="greedy")) * 4 // 5
    compiled = planned(limit, layers=1, sbp_selector="greedy")
    assert compiled.request.selector == "greedy"
    assert compiled.request.memory_price == 1


def test_a_loss_that_micro_batches_would_change_is_not_split() -> None:
    config = flow.function_config()
    config.memory_search("micro_batches")
    with emulated(1, memory=20_000):

        @flow.global_function(type="train", function_config=config)
        def train(x: tp.Numpy.Placeholder((512, 16))) -> tp.Numpy:
            y = dense(x, 16, "y")
            loss = flow.math.square(flow.math.reduce_sum(y * flow.math.reduce_max(x)))
            flow.optimizer.SGD(0.1).minimize(loss)
            return loss

        with pytest.raises(OutOfMemoryError) as caught:
            train.compile()
    assert "not tried: 2 micro-batches: " in (caught.value.hint or "")


# ------------------------------------------------------------------------------------- other jobs


def test_later_jobs_follow_states_that_were_divided() -> None:
    """A job that reads weights which the search has divided over devices."""
    limit = peak(planned(layers=1, sbp_selector="greedy")) * 4 // 5
    found = []
    for memory in (None, limit):
        with emulated(4, memory=memory):
            config = transformer_config(sbp_selector="greedy", share_replicas=False)
            train = transformer(layers=1, sbp_selector="greedy", share_replicas=False)

            @flow.global_function(function_config=config)
            def predict(x: tp.Numpy.Placeholder((4, TOKENS, WIDTH))) -> tp.Numpy:
                with flow.scope.placement("gpu", "0:0-3"):
                    return dense(x, WIDTH, "l0-q")

            train(X)
            found.append(predict(X[:4]))
            compiled = train.compile()
    assert compiled.searched is not None
    assert STATES.levels[0].name in compiled.searched.form
    np.testing.assert_array_equal(*found)


def test_the_table() -> None:
    assert [change.micro_batches for change in MICRO.levels] == list(COUNTS)
    assert all(kind.levels for kind in KINDS)


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.slow
@pytest.mark.parametrize(("search", "memory"), [("on", "330000"), ("on", "170000")])
def test_processes_agree_on_the_form(search: str, memory: str) -> None:
    """Two processes that compile their own devices choose the form that one process chooses."""
    script = Path(__file__).parents[2] / "helpers" / "programs" / "run_within_memory.py"
    limits = {"ONEFLOW_EMULATE_GPUS": "4", "ONEFLOW_EMULATE_GPU_MEMORY": memory}
    one = processes.run(python(script, search), env={**os.environ, **limits}, check=True)
    two = run_script(2, script, search, **limits)
    assert two.returncode == 0, two.stderr
    assert "as it is" not in one.stdout
    assert two.stdout == one.stdout


def test_forms_that_fit_are_searched_for_faster_ones() -> None:
    """Grids and states in parts are combined, without levels that only save memory or add work."""
    with emulated(4):
        search = search_under(LARGE)
        best = search.run([kind for kind in KINDS if kind is not STAGES], 1e6)
    assert best is not None
    tried = {form.levels for form in search.tried}
    for kind, level in ((GRIDS, 0), (GRIDS, 1), (STATES, 1), (STATES, 2)):
        assert tuple(level if k is kind else 0 for k in KINDS) in tried
    assert all(levels[2] <= 1 and not any(levels[4:]) for levels in tried)
    assert best.seconds == min(form.seconds for form in search.tried)
