"""Unsatisfiable requests are explained and reduced to a minimal contradictory set."""

from __future__ import annotations

import pytest

from flow_core.compiler.reshard.planner import TensorLayout
from flow_core.compiler.select import SELECTORS, Problem, SelectionError, greedy, optimal
from flow_core.compiler.select.conflicts import contradiction, hints, without
from flow_core.ir.graph import Value
from flow_core.sharding.sbp import B, S
from flow_core.sharding.topology import Placement

from .making import GPUS, Making

both = pytest.mark.parametrize("selector", SELECTORS.values(), ids=SELECTORS)


def refused(problem: Problem, selector: object = optimal) -> SelectionError:
    assert callable(selector)
    with pytest.raises(SelectionError) as caught:
        selector(problem)
    error = caught.value
    op = problem.graph.ops[error.op]
    assert error.at == problem.graph.lines[op.name]
    assert op.type in str(error)
    for value in op.inputs:
        assert str(value) in str(error)
    return error


def names(error: SelectionError) -> list[str]:
    return [hint.op for hint in error.conflict]


def normalization(**requests: object) -> Problem:
    """Build batch normalization in training, which overwrites two statistics."""
    make = Making()
    x = make.fed(8, 16)
    parts = {
        name: make.variable(name, 16, sbp=requests.get(name), trainable=False)  # type: ignore[arg-type]
        for name in ("mean", "variance", "gamma", "beta")
    }
    make.op("normalization", x, *parts.values(), axis=1, training=True, name="norm")
    return make.problem(Value("norm", 0))


@both
def test_split_axis_shorter_than_the_devices(selector: object) -> None:
    make = Making()
    out = make.op("relu", make.fed(2, 16), name="short", sbp=(S(0),))
    error = refused(make.problem(out), selector)
    assert names(error) == ["short"]
    assert "axis 0 of output 0 has 2 elements for 4 devices" in str(error)
    assert "this request alone cannot be met" in str(error)


@both
def test_request_without_a_matching_rule(selector: object) -> None:
    make = Making()
    out = make.op("softmax", make.fed(16, 16), name="prob", sbp=(S(1),))
    error = refused(make.problem(out), selector)
    assert names(error) == ["prob"]
    assert "(S(0)) -> S(0): output 0 is S(0), requested is S(1)" in str(error)
    assert "(B) -> B: output 0 is B, requested is S(1)" in str(error)


@both
def test_statistics_that_require_equal_layouts(selector: object) -> None:
    problem = normalization(mean=(S(0),), variance=(B,), gamma=(S(0),), beta=(B,))
    error = refused(problem, selector)
    assert error.op == "norm"
    assert names(error) == ["mean", "variance"]  # gamma and beta can be boxed
    text = str(error)
    assert "which contradict one another" in text
    assert "'mean' is S(0) at model.py:2" in text
    assert "'variance' is B at model.py:3" in text
    assert "overwritten in its layout, gpu[0:0-3] B, not gpu[0:0-3] S(0)" in text


@pytest.mark.parametrize("dropped", ["mean", "variance"])
def test_reported_contradiction_is_minimal(dropped: str) -> None:
    problem = normalization(mean=(S(0),), variance=(B,))
    kept = without(problem, [h for h in hints(problem) if h.op == dropped])
    assert contradiction(kept, kept.graph.ops["norm"]) == ()
    assert optimal(kept).report is not None


def test_greedy_may_fail_without_a_contradiction() -> None:
    problem = normalization(variance=(S(0),))
    error = refused(problem, greedy)
    assert error.conflict == ()
    assert 'sbp_selector("optimal")' in str(error)
    chosen = optimal(problem)
    for name in ("mean", "variance"):
        assert chosen.layouts[Value(name, 0)].sbp == (S(0),)


@both
def test_update_without_a_split_rule(selector: object) -> None:
    make = Making()
    w = make.variable("w", 64, 64, sbp=(S(0),))
    states = [make.variable(f"w-{s}", 64, 64, sbp=(S(0),)) for s in "mv"]
    numbers = [make.variable(f"w-{s}", 1) for s in ("beta1", "beta2")]
    rate = make.fed(name="rate", batch_axis=None)
    diff = make.fed(64, 64, name="diff")
    make.op("lamb_update", w, diff, rate, *states, *numbers, name="update")
    error = refused(make.problem(), selector)
    assert error.op == "update"
    assert names(error) == ["w"]  # the requests of the states follow from it


@both
def test_layouts_of_an_earlier_job_are_reported(selector: object) -> None:
    make = Making()
    stats = [make.variable(n, 16, sbp=r, trainable=False) for n, r in (("m", (B,)), ("v", None))]
    rest = [make.variable(n, 16) for n in ("gamma", "beta")]
    make.op("normalization", make.fed(8, 16), *stats, *rest, axis=1, training=True, name="norm")
    problem = make.problem(Value("norm", 0), fixed={"v": TensorLayout(GPUS, (S(0),))})
    error = refused(problem, selector)
    assert names(error) == ["m", "v"]
    assert "'v' is S(0) by an earlier job" in str(error)


@both
def test_variable_split_on_other_devices_cannot_be_overwritten(selector: object) -> None:
    make = Making(Placement.parse("gpu", "0:0"))
    w = make.variable("w", 64)
    make.op("assign", w, make.fed(64, name="value"), name="put")
    error = refused(make.problem(fixed={"w": TensorLayout(GPUS, (S(0),))}), selector)
    assert names(error) == ["w"]
    assert "gpu[0:0-3] S(0)" in str(error)


def test_long_lists_are_truncated() -> None:
    make = Making(Placement.parse("gpu", "0:0-3", (2, 2)))
    a, b = make.fed(2, 8, 8, name="a"), make.fed(2, 8, 8, name="b")
    out = make.op("batch_matmul", a, b, name="product", sbp=(S(0), S(0)))
    error = refused(make.problem(out))
    assert names(error) == ["product"]
    assert "more" in str(error)
