"""The kits detect errors: each broken plugin here violates one rule of one contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from inspect import signature
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from flow_core.base.config import Settings
from flow_core.base.dtypes import float32
from flow_core.base.errors import PluginError, PluginResultError
from flow_core.ops.rules import like_input, linear, split_all_axes, with_nondecreasing
from flow_core.plugins.batchable import elementwise_batchable
from flow_core.plugins.host import load_plugins
from flow_core.plugins.registry import Registry
from flow_core.plugins.specs import BindContext, KernelSpec, OpSpec, Sample, no_rules
from flow_core.sharding.sbp import P, S, Signature
from flow_core.testing import Gap, GradientKit, KernelKit, Kit, SbpRuleKit, check_kernel


def samples(rng: Any) -> Any:
    yield Sample((rng.uniform(-2, 2, (3, 5)),))


def right(ctx: BindContext) -> Any:
    return partial(np.add, ctx.inputs[0], ctx.inputs[0], ctx.outputs[0])


TWICE = OpSpec(
    "twice",
    inputs=("x",),
    infer=like_input,
    sbp=with_nondecreasing(linear),
    gradient=lambda g: (g.dy * 2,),
    reference=lambda x: x + x,
    samples=samples,
    elementwise=True,
    inplace=(0,),
)


def kit(
    base: type[Kit], spec: OpSpec = TWICE, bind: Callable[..., Any] = right, **changes: Any
) -> Any:
    """Return a kit derived from ``base`` for a plugin with one op and its kernel."""
    kernel = KernelSpec(spec.type, "cpu", bind, name="kits.twice", **changes)
    module: Any = ModuleType("kits")
    module.FLOW_PLUGIN_API = "1.0"
    module.flow_register_ops = lambda: [spec]
    module.flow_register_kernels = lambda: [kernel]

    class Tested(base):  # type: ignore[misc, valid-type]  # a base chosen by the test
        plugin = "kits"

        def registry(self) -> Registry:
            return load_plugins(Settings(plugins=(), plugin_strict=True), [module])

    return Tested()


def wrong_result(ctx: BindContext) -> Any:
    return partial(np.multiply, ctx.inputs[0], ctx.inputs[0], ctx.outputs[0])


def past_the_end(ctx: BindContext) -> Any:
    x, y = ctx.inputs[0], ctx.outputs[0]
    longer = np.lib.stride_tricks.as_strided(y.reshape(-1), (y.size + 1,))
    return partial(np.add, x, x, y), partial(longer.__setitem__, y.size, 1)


def into_the_input(ctx: BindContext) -> Any:
    x, y = ctx.inputs[0], ctx.outputs[0]
    return partial(np.add, x, x, y), partial(np.negative, x, x)


def not_all(ctx: BindContext) -> Any:
    x, y = ctx.inputs[0], ctx.outputs[0]
    return partial(np.add, x[:-1], x[:-1], y[:-1])


def sums_up(ctx: BindContext) -> Any:
    x, y = ctx.inputs[0], ctx.outputs[0]
    total = np.zeros_like(y)
    return partial(np.add, total, x, total), partial(np.add, total, x, y)


def while_binding(ctx: BindContext) -> Any:
    return partial(np.copyto, ctx.outputs[0], ctx.inputs[0] + ctx.inputs[0])


def past_the_workspace(ctx: BindContext) -> Any:
    longer = np.lib.stride_tricks.as_strided(ctx.workspace, (ctx.workspace.size + 1,))
    return right(ctx), partial(longer.fill, 0)


@pytest.mark.parametrize(
    ("bind", "words"),
    [
        (wrong_result, "Not equal to tolerance"),
        (past_the_end, "bytes past the end of output 0"),
        (into_the_input, "wrote input 0, which must not change"),
        (not_all, "two launches on the same inputs"),
        (sums_up, "two launches on the same inputs"),
        (while_binding, "Not equal to tolerance|two launches"),
        (past_the_workspace, "1 bytes past the end of the workspace"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_wrong_kernels_are_detected(bind: Callable[..., Any], words: str) -> None:
    tested = kit(KernelKit, bind=bind, workspace=lambda _: 10)
    with pytest.raises(AssertionError, match=words):
        tested.test_agrees("twice", "float32")


def test_correct_kernel_passes() -> None:
    tested = kit(KernelKit)
    checks = [name.removeprefix("test_") for name in dir(tested) if name.startswith("test_")]
    assert len(checks) >= 7
    for check in checks:
        test = getattr(tested, f"test_{check}")
        for row in tested.parameters(check):
            test(*row[: len(signature(test).parameters)])


@pytest.mark.parametrize("base", [KernelKit, GradientKit, SbpRuleKit])
def test_kit_without_a_plugin_fails(base: type[Kit]) -> None:
    class Tested(base):  # type: ignore[misc, valid-type]
        plugin = "kitz"

    with pytest.raises(AssertionError, match="'kitz' registers no"):
        Tested().test_there_is_something_to_test()


def through_the_output(ctx: BindContext) -> Any:
    x, y = ctx.inputs[0], ctx.outputs[0]
    return partial(y.fill, 0), partial(np.add, y, x, y), partial(np.add, y, x, y)


def aligned_only(ctx: BindContext) -> Any:
    flag = np.array(2 if ctx.inputs[0].ctypes.data % 64 == 0 else 3, ctx.inputs[0].dtype)
    return partial(np.multiply, ctx.inputs[0], flag, ctx.outputs[0])


def dense_only(ctx: BindContext) -> Any:
    x = ctx.inputs[0]
    dense = np.lib.stride_tricks.as_strided(x, (x.size,), (x.itemsize,))
    return partial(np.add, dense, dense, ctx.outputs[0].reshape(-1))


def allocates(ctx: BindContext) -> Any:
    x, y = ctx.inputs[0], ctx.outputs[0]
    return lambda: np.copyto(y, x + x)


@pytest.mark.parametrize(
    ("bind", "check"),
    [
        (through_the_output, "in_place"),
        (aligned_only, "tiles"),
        (dense_only, "stretched_inputs"),
        (allocates, "allocates_nothing"),
    ],
)
def test_kernels_that_violate_detailed_rules_are_detected(
    bind: Callable[..., Any], check: str
) -> None:
    tested = kit(KernelKit, bind=bind)
    tested.test_agrees("twice", "float32")
    with pytest.raises(AssertionError):
        getattr(tested, f"test_{check}")("twice", "float32")


def test_no_floating_type() -> None:
    tested = kit(KernelKit, accepts=lambda query: not query.inputs[0].dtype.is_floating)
    with pytest.raises(AssertionError, match="no kernel of twice supports any of"):
        tested.test_takes_a_floating_type("twice")
    with pytest.raises(pytest.skip.Exception, match="not accepted"):
        tested.test_agrees("twice", "float32")


def test_no_samples() -> None:
    with pytest.raises(AssertionError, match=r"set `OpSpec\.samples`"):
        kit(KernelKit, replace(TWICE, samples=None)).test_agrees("twice", "as_given")


def test_kernel_that_accepts_no_sample_is_detected() -> None:
    tested = kit(KernelKit, accepts=lambda query: query.inputs[0].shape == (99,))
    words = r"kits\.twice was never compared: of 2 samples of twice in float32, .* accepts 0"
    with pytest.raises(AssertionError, match=words):
        tested.test_every_kernel_is_compared("twice")


def test_samples_without_elements_are_detected() -> None:
    empty = replace(TWICE, samples=lambda rng: [Sample((rng.uniform(-2, 2, (0, 5)),))])
    with pytest.raises(AssertionError, match="2 cases in float32 compare no element"):
        kit(KernelKit, empty).test_agrees("twice", "float32")
    with pytest.raises(AssertionError, match="accepts 16, none with results to compare"):
        kit(KernelKit, empty).test_every_kernel_is_compared("twice")


def test_op_without_a_reference_is_detected() -> None:
    with pytest.raises(AssertionError, match=r"twice has no reference .* `OpSpec\.reference`"):
        kit(KernelKit, replace(TWICE, reference=None)).test_agrees("twice", "float32")


def test_op_without_results_is_detected() -> None:
    nothing = replace(TWICE, outputs=(), infer=lambda ctx: (), reference=lambda x: ())
    with pytest.raises(AssertionError, match="no results to compare: neither outputs nor mutated"):
        kit(KernelKit, nothing, bind=lambda ctx: ()).test_agrees("twice", "float32")


def test_rejected_sample_is_not_skipped() -> None:
    kernel = KernelSpec("twice", "cpu", right, lambda query: False, name="kits.twice")
    with pytest.raises(AssertionError, match=r"kits\.twice does not accept float32\[2\]"):
        check_kernel(TWICE, kernel, Sample((np.ones(2),)), float32)
    count = check_kernel(TWICE, replace(kernel, accepts=None), Sample((np.ones(2),)), float32)
    assert count == 4  # two launches


def counts(ctx: BindContext) -> Any:
    total, step = ctx.inputs
    return (partial(np.add, total, step, total),)


COUNT = OpSpec(
    "count_up",
    inputs=("total", "step"),
    outputs=(),
    infer=lambda ctx: (),
    reference=lambda total, step: total + step,
    samples=lambda rng: [Sample((rng.uniform(-2, 2, (3,)), rng.uniform(-2, 2, (3,))))],
    mutates=(0,),
    effect=True,
)


def test_mutated_inputs_are_compared() -> None:
    kit(KernelKit, COUNT, counts).test_agrees("count_up", "float32")
    for change in (42, -1):
        bind = lambda ctx, n=change: partial(np.add, ctx.inputs[0], n, ctx.inputs[0])  # noqa: E731
        with pytest.raises(AssertionError, match=r"count_up \(kits.twice\)"):
            kit(KernelKit, COUNT, bind).test_agrees("count_up", "float32")
    tested = kit(KernelKit, replace(COUNT, reference=lambda total, step: (total, step)), counts)
    with pytest.raises(AssertionError, match="returns 2 arrays instead of 0 outputs and the new"):
        tested.test_agrees("count_up", "float32")


def test_reference_may_not_change_its_arguments() -> None:
    wrong = replace(COUNT, reference=lambda total, step: np.add(total, step, total))
    with pytest.raises(ValueError, match="read-only"):
        kit(KernelKit, wrong, counts).test_agrees("count_up", "float32")


def test_disabled_mutation_may_not_write() -> None:
    spec = replace(COUNT, attrs={"on": False}, mutates_if="on")
    with pytest.raises(AssertionError, match="wrote input 0, which must not change"):
        kit(KernelKit, replace(spec, outputs=("out",), infer=like_input, reference=like), both
            ).test_agrees("count_up", "float32")  # fmt: skip


def like(total: Any, step: Any, on: bool) -> Any:
    return total, total


def both(ctx: BindContext) -> Any:
    return partial(np.copyto, ctx.outputs[0], ctx.inputs[0]), counts(ctx)[0]


def remembers(ctx: BindContext) -> Any:
    x, y, seen = ctx.inputs[0], ctx.outputs[0], []

    def launch() -> None:
        if not seen:
            seen.append(x + x)
        np.copyto(y, seen[0])

    return launch


def test_state_of_an_earlier_launch_is_detected() -> None:
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        kit(KernelKit, bind=remembers).test_agrees("twice", "float32")


def test_false_promise_of_batches_is_detected() -> None:
    def mean(ctx: BindContext) -> Any:
        x, y = ctx.inputs[0], ctx.outputs[0]
        return lambda: np.copyto(y, x - x.mean())

    centered = replace(
        TWICE, reference=lambda x: x - x.mean(), elementwise=False, inplace=(), gradient=None
    )
    tested = kit(KernelKit, centered, mean, batchable=elementwise_batchable)
    assert list(tested.parameters("batchable"))
    with pytest.raises(AssertionError, match=r"kits\.twice on"):
        tested.test_batchable("twice", "float32")
    assert not list(kit(KernelKit).parameters("batchable"))  # None promises nothing


def test_elements_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    tested = kit(KernelKit)
    tested.test_agrees("twice", "float32")
    tested.teardown_class()
    # two samples of 15 elements, each with three launches
    assert "Tested: compared 90 elements of 2 cases with the references" in capsys.readouterr().out


def test_internal_ops_need_no_gradient_and_no_rules() -> None:
    internal = replace(TWICE, internal=True, gradient=None, sbp=no_rules)
    assert not list(kit(GradientKit, internal).parameters("has_a_gradient"))
    assert not list(kit(SbpRuleKit, internal).parameters("rules_hold"))
    for wrong in ({"gradient": TWICE.gradient}, {"sbp": TWICE.sbp}):
        with pytest.raises(PluginError, match="`internal=True` with a gradient or SBP rules"):
            replace(internal, **wrong)


def test_gaps_are_strict_xfails() -> None:
    class Tested(KernelKit):
        gaps = (Gap("twice", "notyet", "half", ("agrees",), ("float16",)),)

    (mark,) = Tested()._parameter("agrees", ("twice", "float16")).marks
    assert mark.kwargs == {"strict": True, "reason": "notyet: half"}
    assert not Tested()._parameter("agrees", ("twice", "float32")).marks
    assert not Tested()._parameter("tiles", ("twice", "float16")).marks


def test_gradients() -> None:
    wrong = replace(TWICE, gradient=lambda g: (g.dy * 3,))
    with pytest.raises(AssertionError, match="twice, input 0"):
        kit(GradientKit, wrong).test_gradient("twice")
    forgotten = replace(TWICE, gradient=lambda g: (None,))
    with pytest.raises(AssertionError, match="twice, input 0"):
        kit(GradientKit, forgotten).test_gradient("twice")
    with pytest.raises(AssertionError, match="without a gradient: add a rule"):
        kit(GradientKit, replace(TWICE, gradient=None)).test_has_a_gradient("twice")
    kit(GradientKit).test_gradient("twice")


def test_stale_exceptions() -> None:
    tested = kit(GradientKit)
    tested.no_gradient = {"twice": "no longer"}
    with pytest.raises(AssertionError, match="twice has a gradient, but is listed"):
        tested.test_has_a_gradient("twice")
    tested.no_gradient = {"twice.z": "no such input"}
    with pytest.raises(AssertionError, match=r"twice\.z"):
        tested.test_exceptions_are_known()


def rules(*signatures: Signature) -> OpSpec:
    return replace(TWICE, sbp=lambda _: signatures)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Signature((S(0),), (S(1),)), "a device has shape"),
        (Signature((S(0),), (P,)), "instead of"),
        (Signature((P,), (S(0),)), "instead of"),
    ],
    ids=str,
)
def test_wrong_rules_are_detected(rule: Signature, words: str) -> None:
    with pytest.raises(AssertionError, match=f"(?s)is wrong: .*{words}"):
        kit(SbpRuleKit, rules(rule)).test_rules_hold("twice")


def test_invalid_rules_are_detected() -> None:
    both = Signature((S(0),), (S(0),))
    for spec in (rules(Signature((S(2),), (S(2),))), rules(both, both), rules(Signature((), (P,)))):
        with pytest.raises((AssertionError, PluginResultError)):
            kit(SbpRuleKit, spec).test_rules_are_well_formed("twice")


def test_missing_rules_are_detected() -> None:
    with pytest.raises(AssertionError, match=r"lacks \(P\) -> P$"):
        kit(
            SbpRuleKit, replace(TWICE, sbp=with_nondecreasing(split_all_axes))
        ).test_no_rule_is_missing("twice")
    kit(SbpRuleKit).test_no_rule_is_missing("twice")
    kit(SbpRuleKit).test_mutants_are_killed("twice")
