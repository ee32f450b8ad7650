"""Compilation reads its request alone: equal requests give equal plans, and nothing changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from importlib import import_module
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import FlowError, OutOfMemoryError, UnsupportedError
from flow_core.compiler import compile as compiling
from flow_core.compiler.compile import compile_plan
from flow_core.compiler.digest import plan_digest, request_digest
from flow_core.compiler.request import Compiled, CompileRequest, HostedOp
from flow_core.compiler.reshard.planner import TensorLayout
from flow_core.compiler.stage_cache import StageCache
from flow_core.frontend.session.session import default_session
from flow_core.ir.text import print_graph
from flow_core.passes.bucket_all_reduces import BucketAllReduces
from flow_core.plugins import machine
from flow_core.plugins.host import load_plugins
from flow_core.plugins.machine import describe_machine
from flow_core.plugins.registry import Registry
from flow_core.sharding.sbp import B
from flow_core.sharding.topology import Placement

DEVICES = "0:0-3"
WEIGHTS = flow.random_normal_initializer(stddev=0.1)


@pytest.fixture(autouse=True)
def devices() -> None:
    flow.clear_default_session()
    flow.config.cpu_device_num(4)


def network(x: Any, name: str) -> Any:
    hidden = flow.layers.dense(
        x, 16, activation=flow.nn.relu, kernel_initializer=WEIGHTS, name=f"{name}-hidden"
    )
    return flow.layers.dense(hidden, 3, kernel_initializer=WEIGHTS, name=f"{name}-output")


def train_job(name: str = "net", **settings: Any) -> Any:
    config = flow.function_config()
    for setting, value in settings.items():
        getattr(config, setting)(value)

    def train(
        x: tp.Numpy.Placeholder((8, 4)), y: tp.Numpy.Placeholder((8,), flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement("cpu", DEVICES):
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, network(x, name))
            flow.optimizer.Adam(0.1).minimize(loss)
            return loss

    train.__name__ = f"train_{name}"
    return flow.global_function("train", config)(train)


def predict_job() -> Any:
    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
        return network(x, "net")

    return predict


FORMS: dict[str, Callable[[], Any]] = {
    "predict": predict_job,
    "train": train_job,
    "bfloat16": lambda: train_job(enable_auto_mixed_precision=True),
    "sharded-states": lambda: train_job(
        optimizer_placement_optimization_mode="distributed_split",
        optimizer_placement_optimization_threshold=1,
    ),
    "optimal": lambda: train_job(sbp_selector="optimal"),
}


def described(compiled: Compiled) -> tuple[Any, ...]:
    """Return all that is compiled but its times."""
    plan = [getattr(compiled.plan, f.name) for f in fields(compiled.plan)]
    passes = [(t.name, t.before, t.after) for t in compiled.timings]
    graphs = [
        print_graph(g) for g in (compiled.logical, compiled.optimized_logical, compiled.graph)
    ]
    return plan, passes, graphs, compiled.variables, compiled.shared, compiled.inputs


@pytest.mark.parametrize("form", FORMS)
def test_equal_requests_give_equal_plans(form: str) -> None:
    job, session = FORMS[form](), default_session()
    first = job.compile()
    other = train_job("other", sbp_selector="greedy")
    other.compile()  # records layouts in the session, which the request does not see
    layouts, sharing = dict(session.layouts), dict(session.sharing)
    again = compile_plan(first.request)
    assert described(again) == described(first)
    assert (session.layouts, session.sharing) == (layouts, sharing)


def test_a_request_cannot_be_changed() -> None:
    request = train_job().compile().request
    with pytest.raises(FrozenInstanceError):
        request.memory_price = 10.0


def test_a_refused_request_leaves_nothing_behind() -> None:
    request, session = train_job().compile().request, default_session()
    layouts, sharing = dict(session.layouts), dict(session.sharing)
    small = replace(request, limits=replace(request.limits, memory=lambda _: 64))
    with pytest.raises(OutOfMemoryError):
        compile_plan(small)
    assert (session.layouts, session.sharing) == (layouts, sharing)
    assert described(compile_plan(request)) == described(compile_plan(request))


def test_the_price_of_memory_is_part_of_the_request() -> None:
    request = train_job(sbp_selector="optimal").compile().request
    cheap, dear = (compile_plan(replace(request, memory_price=p)) for p in (1.0, 1e4))
    needed = [sum(a.nbytes for a in found.plan.arenas) for found in (cheap, dear)]
    assert needed[1] <= needed[0]


@pytest.mark.parametrize("form", FORMS)
def test_a_digest_does_not_depend_on_the_order_of_mappings(form: str) -> None:
    compiled = FORMS[form]().compile()
    request = compiled.request
    turned = replace(
        request,
        settings=dict(reversed(request.settings.items())),
        layouts=dict(reversed(request.layouts.items())),
        requested=request.requested[::-1],
    )
    assert request_digest(turned) == request_digest(request)
    assert plan_digest(compile_plan(turned)) == plan_digest(compiled)


def without_dead_code(registry: Registry) -> Registry:
    return replace(registry, passes=tuple(p for p in registry.passes if p.name != "dead_code"))


LAYOUT = TensorLayout(Placement.parse("cpu", "0:0"), (B,))
CHANGES: dict[str, Callable[[CompileRequest], CompileRequest]] = {
    "job": lambda r: replace(r, job="another"),
    "graph": lambda r: replace(r, graph=replace(r.graph, results=())),
    "inputs": lambda r: replace(r, inputs=r.inputs[::-1]),
    "registry": lambda r: replace(r, registry=without_dead_code(r.registry)),
    "requested": lambda r: replace(r, requested=(BucketAllReduces(max_ops=3),)),
    "settings": lambda r: replace(r, settings={**r.settings, "math_mode": "bfloat16"}),
    "options": lambda r: replace(r, options=replace(r.options, seed=3)),
    "layouts": lambda r: replace(
        r, layouts={"w": TensorLayout(Placement.parse("cpu", "0:0"), (B,))}
    ),
    "shared": lambda r: replace(r, shared={"w": True}),
    "share_replicas": lambda r: replace(r, share_replicas=not r.share_replicas),
    "may_host": lambda r: replace(r, may_host=r.may_host | {"other"}),
    "hosted": lambda r: replace(r, hosted={"w": HostedOp("relu", "gpu", None)}),
    "selector": lambda r: replace(r, selector="greedy"),
    "selector_seconds": lambda r: replace(r, selector_seconds=3.0),
    "memory_price": lambda r: replace(r, memory_price=3.0),
    "micro_batches": lambda r: replace(r, micro_batches=3),
    "devices": lambda r: replace(r, devices=()),
}


def test_each_field_of_a_request_changes_its_digest() -> None:
    request = train_job().compile().request
    assert CHANGES.keys() | {"cache", "limits"} == {f.name for f in fields(request)}
    digests = [request_digest(change(request)) for change in CHANGES.values()]
    assert len({request_digest(request), *digests}) == len(CHANGES) + 1


def variants(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield copies of a value with one part changed, each with the path of the part."""
    if is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            for name, part in variants(getattr(value, f.name), f"{path}.{f.name}"):
                other = copy(value)
                object.__setattr__(other, f.name, part)  # without checks: it need not be valid
                yield name, other
    elif isinstance(value, Mapping):
        yield path, {**value, "another": 1}
        for key, part in value.items():
            yield from ((name, {**value, key: v}) for name, v in variants(part, f"{path}[{key}]"))
    elif isinstance(value, tuple):
        yield path, (*value, 1)
        for i, part in enumerate(value):
            for name, other in variants(part, f"{path}[{i}]"):
                yield name, (*value[:i], other, *value[i + 1 :])
    elif isinstance(value, frozenset):
        yield path, value | {"another"}
    elif isinstance(value, str):
        yield path, f"{value} and more"
    else:
        yield path, value + 1 if isinstance(value, int | float) else 1


def test_each_option_changes_the_digest() -> None:
    """Also the parts of the cost model and of the budget; limits of memory only refuse orders."""
    request = train_job().compile().request
    before = request_digest(request)
    found = [(path, replace(request, options=o)) for path, o in variants(request.options)]
    assert {path for path, other in found if request_digest(other) == before} == {
        ".is_resident", ".memory_limit"
    }  # fmt: skip
    assert {".costs.links.classes[0].latency", ".costs.devices[cpu].flops", ".budget.pool"} < {
        path for path, _ in found
    }


def test_results_of_other_requests_change_no_plan() -> None:
    """Requests that share a cache have the plans, or the errors, that they have alone."""
    request, cache = train_job(sbp_selector="optimal").compile().request, StageCache()
    changes = {**CHANGES, "micro_batches": lambda r: r}  # no pass has made micro-batches
    for change, devices in product(changes.values(), (None, ())):
        alone = change(replace(request, devices=devices))
        assert outcome(replace(alone, cache=cache)) == outcome(alone)


def test_stages_that_requests_have_in_common_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    request = train_job(sbp_selector="auto").compile().request
    request, made = replace(request, cache=StageCache()), list[str]()
    search, passes = import_module("flow_core.compiler.select.optimal"), compiling._optimized
    searched = search._searched
    monkeypatch.setattr(compiling, "_optimized", lambda r: made.append("passes") or passes(r))
    monkeypatch.setattr(search, "_searched", lambda *a: made.append("search") or searched(*a))
    compile_plan(request)
    for selector in ("optimal", "grids"):
        compile_plan(replace(request, selector=selector, devices=()))
    assert made == ["passes", "search", "search"]  # the second one is for a grid of 2 x 2
    compile_plan(replace(request, memory_price=2.0))
    assert made[3:] == ["search"]


def test_equal_physical_graphs_are_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    request = train_job(sbp_selector="optimal").compile().request
    request, made = replace(request, cache=StageCache(), devices=()), list[str]()
    lowered = compiling._lowered
    monkeypatch.setattr(compiling, "_lowered", lambda *a: made.append("plan") or lowered(*a))
    for price in (1.0, 1.001):  # a search each, which finds the same layouts
        compile_plan(replace(request, memory_price=price))
    assert made == ["plan"]
    compile_plan(replace(request, options=replace(request.options, inplace=False)))
    assert made == ["plan", "plan"]


def outcome(request: CompileRequest) -> str:
    try:
        return plan_digest(compile_plan(request))
    except FlowError as error:
        return str(error)


def test_facts_about_the_machine_change_a_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    request = train_job().compile().request
    before = request_digest(request)
    assert describe_machine(request.registry)["core.numpy: numpy"] == np.__version__
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Nehalem")
    assert request_digest(request) != before


def test_a_request_with_a_function_has_no_digest() -> None:
    request = replace(train_job().compile().request, selector=lambda problem: None)
    with pytest.raises(UnsupportedError, match="function"):
        request_digest(request)


def test_a_changed_plugin_of_one_file_changes_a_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = train_job().compile().request
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "plugin_of_one_file.py"
    file.write_text('FLOW_PLUGIN_API = "1.0"\n')
    changed = replace(request, registry=load_plugins(extra=[file.stem]))
    before = request_digest(changed)
    os.utime(file, ns=(0, 0))
    assert request_digest(changed) == before  # a process describes its own version of a file
    machine._source_stamp.cache_clear()
    assert request_digest(changed) != before


def test_a_request_with_a_plugin_without_files_has_no_digest() -> None:
    request = train_job().compile().request
    plugin = ModuleType("passing")
    vars(plugin)["FLOW_PLUGIN_API"] = "1.0"
    with pytest.raises(UnsupportedError, match="'passing', which has neither a version nor a file"):
        request_digest(replace(request, registry=load_plugins(extra=[plugin])))
