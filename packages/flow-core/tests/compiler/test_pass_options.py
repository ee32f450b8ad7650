"""Options of passes: declared as fields, set by settings of jobs, refused if unknown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import ConfigError, PluginOrderError, PluginResultError
from flow_core.compiler.compile import compile_plan
from flow_core.compiler.pass_list import pass_list
from flow_core.frontend.config.function_config import FunctionConfig, pass_settings
from flow_core.frontend.job.function import JobFunction
from flow_core.frontend.session.session import Session
from flow_core.ir.graph import Graph
from flow_core.passes.base import PassContext
from flow_core.passes.options import Option, configured, option, options_of
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import PassSpec, load

SEEN: list[Rounding] = []


@dataclass(frozen=True)
class Rounding:
    math_mode: str = option("float32", "the type to round to", "math_mode")
    limit: int = option(3, "the largest number of ops")
    name: str = "rounding"

    def apply(self, graph: Graph, context: PassContext) -> Graph:
        SEEN.append(self)
        return graph


@dataclass(frozen=True)
class Misspelled(Rounding):
    math_mode: str = option("float32", "the type to round to", "math_mod")


def job(**settings: Any) -> Any:
    config = flow.function_config()
    for name, value in settings.items():
        getattr(config, name)(value)

    @flow.global_function("predict", config)
    def relu(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        return flow.nn.relu(-x)

    return relu


def with_pass(request: Any, kind: type) -> Any:
    """Return a request with one more registered pass."""
    registry, spec = request.registry, PassSpec("rounding", "lower", kind)
    origin = registry.origins["passes", "dead_code"]
    changed = replace(
        registry,
        passes=(*registry.passes, spec),
        origins={**registry.origins, ("passes", "rounding"): origin},
    )
    return replace(request, registry=changed)


@pytest.fixture(autouse=True)
def nothing_seen() -> Iterator[None]:
    SEEN.clear()
    flow.clear_default_session()
    yield
    SEEN.clear()


def test_options_are_fields_with_a_default_and_a_text() -> None:
    assert list(options_of(Rounding())) == [
        Option("math_mode", "the type to round to", "math_mode"),
        Option("limit", "the largest number of ops", ""),
    ]
    assert list(options_of(object())) == []


def test_a_setting_of_a_job_reaches_the_option_that_names_it() -> None:
    compile_plan(with_pass(job(math_mode="bfloat16").compile().request, Rounding))
    assert [Rounding("bfloat16", 3)] == SEEN


def test_a_requested_pass_takes_the_registered_place_with_its_own_options() -> None:
    request = with_pass(job().compile().request, Rounding)
    compile_plan(replace(request, requested=(*request.requested, Rounding(limit=7))))
    assert [Rounding("float32", 7)] == SEEN


def test_an_option_with_an_unknown_setting_is_refused() -> None:
    request = with_pass(job().compile().request, Misspelled)
    with pytest.raises(PluginResultError, match="'math_mod'") as caught:
        compile_plan(request)
    assert "math_mode" in str(caught.value.hint)


def test_a_request_of_an_unregistered_pass_is_refused() -> None:
    request = job().compile().request
    with pytest.raises(PluginOrderError, match="rounding, which no plugin registers"):
        compile_plan(replace(request, requested=(*request.requested, Rounding())))


def test_a_job_sets_options_of_passes_by_the_names_of_pass_and_option() -> None:
    config = flow.function_config()
    config.fuse_elementwise.limit(1)
    config.bucket_all_reduces.threshold_mb(2)

    @flow.global_function("predict", config)
    def relu(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        return flow.nn.relu(-x)

    compiled = relu.compile()
    assert compiled.request.settings["fuse_elementwise.limit"] == 1
    assert {op.type for op in compiled.graph.ops.values()} == {"input", "negative", "relu"}
    changed = {row.spec.name: row.options() for row in pass_list(compiled.request) if row.run}
    assert changed["fuse_elementwise"] == {"limit": 1}
    assert changed["bucket_all_reduces"] == {"threshold_mb": 2.0}


@pytest.mark.parametrize(
    ("set_it", "found"),
    [
        (lambda c: c.fuse_elementwise.limits(1), "an unknown name"),
        (lambda c: c.fuse_element.limit(1), "an unknown name"),
        (lambda c: c.fuse_elementwise.limit("1"), "'1'"),
        (lambda c: c.fuse_elementwise.limit(True), "True"),
        (lambda c: c.fuse_elementwise.limit(), "no value"),
        (lambda c: c.fuse_elementwise(1), "a call"),
        (lambda c: c.bucket_all_reduces.threshold_mb("2"), "'2'"),
        (lambda c: c.fuse_elementwise.check_finite("all"), "an unknown name"),
        (lambda c: c.mixed_precision.half("float16"), "an unknown name"),
    ],
)
def test_wrong_options_of_passes_are_refused(set_it: Any, found: str) -> None:
    with pytest.raises(ConfigError) as caught:
        set_it(flow.function_config())
    assert found in caught.value.found


@pytest.mark.parametrize("mixed", [False, True])
def test_without_registered_passes_only_requests_fail(mixed: bool) -> None:
    def relu(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        return flow.nn.relu(-x)

    config = FunctionConfig()
    config.enable_auto_mixed_precision(mixed)
    plain = Session(replace(default_registry(), passes=()))
    found = JobFunction(relu, "predict", config, plain)
    if mixed:
        with pytest.raises(PluginOrderError, match="mixed_precision"):
            found.compile()
    else:
        assert found.compile().optimized_logical is found.compile().logical


def test_an_unknown_setting_of_a_job_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown name"):
        flow.function_config().math_mod("bfloat16")


def test_defaults_of_options_are_those_of_their_settings() -> None:
    settings = {**pass_settings(FunctionConfig()), "check_finite": "off"}
    seen = set()
    for spec in default_registry().passes:
        if spec.default:
            item = load(spec.load)()
            seen |= {row.setting for row in options_of(item)}
            assert configured(item, settings, "comparing") == item, spec.name
    assert "check_finite" in seen


def test_the_list_of_a_job_contains_all_registered_passes_in_order() -> None:
    rows = pass_list(job(enable_auto_mixed_precision=True).compile().request)
    assert [row.spec for row in rows] == list(default_registry().passes)
    ran = {row.spec.name for row in rows if row.run is not None}
    assert {"mixed_precision", "dead_code", "fuse_elementwise"} <= ran
    assert not {"checkpointing", "optimizer_placement", "shared_placement"} & ran
