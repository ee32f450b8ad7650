"""Selectors against brute force, each other and the compiled plan."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from importlib import import_module

import pytest

from flow_core.compiler.distribute.physical_graph import to_physical
from flow_core.compiler.reshard.planner import TensorLayout
from flow_core.compiler.select import SELECTORS, Problem, Selection, auto, greedy, optimal
from flow_core.compiler.select.candidates import shares_work
from flow_core.compiler.select.costs import Costs
from flow_core.compiler.select.hints import relaxations
from flow_core.compiler.select.price import PICO
from flow_core.compiler.select.problem import Space
from flow_core.costs.links import LinkModel
from flow_core.costs.model import DEFAULT
from flow_core.sharding.sbp import B, P, S, Split
from flow_core.sharding.topology import Placement

from .making import GPUS, SPECS, Making, perceptron

search = import_module(
    "flow_core.compiler.select.optimal"
)  # the package exports a function of this name


def brute_force(problem: Problem) -> int:
    """Return the minimum cost over signatures that leave variables without hints in place."""
    space, costs = Space(problem), Costs(problem)
    ops = list(problem.graph.ops.values())
    least = []
    for choice in itertools.product(*(space.allowed(op) for op in ops)):
        selection = Selection()
        for op, signature in zip(ops, choice, strict=True):
            selection.take(problem, op, signature)
        if is_possible(problem, costs, selection):
            least.append(costs.evaluate(selection).total)
    return min(least)


def is_possible(problem: Problem, costs: Costs, selection: Selection) -> bool:
    for op in problem.graph.ops.values():
        signature = selection.signatures[op.name]
        if SPECS[op.type].work and not shares_work(signature, op.placement.hierarchy):
            return False
        for i, (value, sbp) in enumerate(zip(op.inputs, signature.inputs, strict=True)):
            have, want = selection.layouts[value], TensorLayout(op.placement, sbp)
            move = costs.move(problem.graph.type_of(value), have, want)
            stays = problem.stays(problem.graph.ops[value.op])
            if move.reshard_steps is None or (stays and move.cost.communication):
                return False
            if i in SPECS[op.type].mutates and have != want:
                return False
    return True


def shared_uses() -> Problem:
    """Build a partial sum read whole by three ops and split by one."""
    make = Making()
    x = make.fed(8, 64)
    w = make.variable("w", 64, 256)
    h = make.op("matmul", x, w)
    outs = [make.op("matmul", h, h, transpose_b=True), make.op("softmax", h)]
    return make.problem(*outs)


def update() -> Problem:
    make = Making()
    w = make.variable("w", 64, 32)
    g = make.op("matmul", make.fed(64, 16), make.fed(32, 16, name="y"), transpose_b=True)
    rate = make.fed(name="rate", batch_axis=None)
    make.op("sgd_update", w, g, rate)
    return make.problem()


SMALL = {
    "narrow batch": lambda: perceptron(4, 256),
    "wide batch": lambda: perceptron(4096, 64),
    "requested": lambda: perceptron(64, 64, (S(1),)),
    "several uses": shared_uses,
    "update": update,
}


@pytest.mark.parametrize("name", SMALL)
def test_optimal_selector_finds_the_minimum_cost(name: str) -> None:
    problem = SMALL[name]()
    report = optimal(problem).report
    assert report is not None
    assert report.method == "elimination"
    assert report.gap == 0
    assert report.cost.total <= brute_force(problem)
    assert report.greedy is not None
    assert report.cost.total <= report.greedy.total


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("name", SMALL)
def test_cost_model_predicts_the_ledger(name: str, selector: str) -> None:
    physical = to_physical(SMALL[name](), selector)
    assert physical.report is not None
    seconds = sum(entry.seconds for entry in physical.ledger)
    assert physical.report.cost.communication == pytest.approx(seconds * PICO, abs=1e3)


def test_selectors_are_deterministic() -> None:
    for selector in SELECTORS.values():
        first, second = (selector(perceptron(16, 128)).signatures for _ in range(2))
        assert first == second


def test_few_rows_split_the_weights_by_column_then_by_row() -> None:
    selection = optimal(perceptron(4, 1024))
    signatures = {name: str(s) for name, s in selection.signatures.items()}
    assert signatures["up"] == "(B, S(1)) -> S(1)"
    assert signatures["down"] == "(S(1), S(0)) -> P"


def test_many_rows_stay_split_with_broadcast_weights() -> None:
    signatures = optimal(perceptron(1 << 20, 64)).signatures
    assert str(signatures["up"]) == str(signatures["down"]) == "(S(0), B) -> S(0)"


def test_greedy_keeps_data_parallelism() -> None:
    signatures = greedy(perceptron(4, 1024)).signatures
    assert str(signatures["up"]) == str(signatures["down"]) == "(S(0), B) -> S(0)"


def test_auto_deviates_from_greedy_only_at_lower_cost() -> None:
    small = perceptron(4, 64)
    report = auto(small).report
    assert report is not None
    assert report.selector == "greedy"
    assert report.gap is not None
    large = update_of(4, 2048)
    chosen = auto(large).report
    assert chosen is not None
    assert chosen.selector == "optimal"


def update_of(batch: int, width: int, placement: Placement = GPUS) -> Problem:
    """Build a matrix product and the update of its weights."""
    make = Making(placement)
    x, dy = make.fed(batch, width), make.fed(batch, width, name="dy")
    w = make.variable("w", width, width)
    y = make.op("matmul", x, w)
    dw = make.op("matmul", x, dy, transpose_a=True)
    make.op("sgd_update", w, dw, make.fed(name="rate", batch_axis=None))
    return make.problem(y)


def test_no_device_repeats_divisible_work() -> None:
    for name, signature in optimal(perceptron(4, 4)).signatures.items():
        if name in ("up", "down"):
            assert shares_work(signature, GPUS.hierarchy)


def test_variables_without_a_hint_are_never_gathered() -> None:
    problem = update_of(1 << 16, 64)
    selection = optimal(problem)
    assert selection.layouts[problem.graph.ops["w"].output()].sbp == (B,)
    hinted = Making()
    w = hinted.variable("w", 64, 64, sbp=(S(0),))
    out = hinted.op("matmul", hinted.fed(1 << 16, 64), w, name="up")
    signature = optimal(hinted.problem(out)).signatures["up"]
    assert str(signature) == "(S(0), B) -> S(0)"  # gathered, as requested by a hint


def test_value_with_several_readers_is_boxed_once() -> None:
    make = Making()
    h = make.op("matmul", make.fed(4, 512), make.variable("w", 512, 64, sbp=(S(0),)))
    outs = [make.op("softmax", h, name=f"s{i}") for i in range(3)]
    physical = to_physical(make.problem(*outs), "optimal")
    assert sum(e.value == str(h) for e in physical.ledger) <= 2  # scatter and gather


def test_layouts_of_earlier_jobs_are_kept() -> None:
    free = perceptron(4, 1024)
    value = free.graph.ops["w"].output()
    assert optimal(free).layouts[value].sbp == (S(1),)
    for sbp in ((B,), (S(0),), (S(1),)):
        fixed = replace(free, fixed={"w": TensorLayout(GPUS, sbp)})
        for selector in SELECTORS.values():
            assert selector(fixed).layouts[value] == TensorLayout(GPUS, sbp)


def test_parts_on_other_devices_are_fetched() -> None:
    make = Making(Placement.parse("gpu", "0:0"))
    w = make.variable("w", 64, 64)
    problem = make.problem(
        make.op("matmul", make.fed(8, 64), w), fixed={"w": TensorLayout(GPUS, (S(0),))}
    )
    physical = to_physical(problem)
    assert physical.layouts[w] == TensorLayout(GPUS, (S(0),))
    assert {e.value for e in physical.ledger} == {str(w)}
    assert sum(e.nbytes for e in physical.ledger) == 3 * 16 * 64 * 4


def test_broadcast_variable_on_other_devices_is_copied() -> None:
    make = Making()
    w = make.variable("w", 64, 64)
    elsewhere = {"w": TensorLayout(Placement.parse("gpu", "0:0"), (B,))}
    selection = optimal(make.problem(make.op("relu", w), fixed=elsewhere))
    assert selection.layouts[w] == TensorLayout(GPUS, (B,))


def test_two_dimensional_placement() -> None:
    make = Making(Placement.parse("gpu", "0:0-3", (2, 2)))
    x, w = make.fed(512, 512), make.variable("w", 512, 512)
    problem = make.problem(make.op("matmul", x, w, name="up"))
    report = optimal(problem).report
    assert report is not None
    assert report.gap == 0
    assert report.cost.total <= brute_force(problem)


def test_large_hierarchy_is_searched_one_dimension_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = update_of(8, 1024, Placement.parse("gpu", "0:0-3", (2, 2)))
    exact = optimal(problem).report
    monkeypatch.setattr(search, "MOST_PLANNED", 0)
    step_by_step = optimal(problem).report
    assert exact is not None
    assert step_by_step is not None
    assert step_by_step.greedy is not None
    assert step_by_step.method == search.BY_DIMENSION
    assert step_by_step.gap is None
    assert exact.cost.total <= step_by_step.cost.total < step_by_step.greedy.total


def test_search_stops_at_its_budget() -> None:
    hurried = replace(perceptron(4, 1024), seconds=1e-9)
    report = optimal(hurried).report
    assert report is not None
    assert (report.selector, report.method, report.gap) == ("greedy", search.SPENT, None)


def test_result_is_independent_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is the same if an hour passes between any two readings of the clock."""
    problem = update_of(4, 2048)
    usual = optimal(problem)
    hours = itertools.count(0.0, 3600.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(hours))
    slow = optimal(problem)
    assert usual.report is not None
    assert slow.report is not None
    assert slow.signatures == usual.signatures
    assert slow.report.method == usual.report.method == "elimination"


def test_search_effort_depends_on_the_setting_only() -> None:
    problem = update_of(8, 1024, Placement.parse("gpu", "0:0-3", (2, 2)))
    methods = {}
    for seconds in (0.01, 0.3, 10.0):
        report = optimal(replace(problem, seconds=seconds)).report
        assert report is not None
        methods[seconds] = report.method
    assert methods[0.01] == search.SPENT
    assert methods[10.0] == "elimination"


def test_cost_of_a_hint() -> None:
    hinted = perceptron(4, 1024, (S(0),))
    report = optimal(hinted).report
    assert report is not None
    (relaxed,) = relaxations(hinted, report.cost)
    free = optimal(perceptron(4, 1024)).report
    assert free is not None
    assert str(relaxed.hint) == "'w' is S(0) at model.py:2"
    assert relaxed.cost == free.cost
    assert relaxed.saved == report.cost.total - free.cost.total > 0
    assert list(relaxations(hinted, report.cost, most=0)) == []


def test_work_model() -> None:
    problem = perceptron(8, 16)
    op, costs = problem.graph.ops["up"], Costs(problem)
    states = Space(problem).allowed(op)
    times = {str(state): costs.op(op, state) for state in states}
    device = DEFAULT.device("gpu")
    flops, touched = 2 * 8 * 16 * 16, 4 * (8 * 16 + 16 * 16 + 8 * 16)
    assert times["(B, S(1)) -> S(1)"].compute == round(device.seconds(flops, touched) * PICO)
    assert times["(B, B) -> B"].compute > 3 * times["(B, S(1)) -> S(1)"].compute
    assert times["(P, B) -> P"].memory == times["(B, B) -> B"].memory


def test_slow_links_are_avoided() -> None:
    """Partial sums between machines cost more than repeated work within them."""
    make = Making(Placement.parse("gpu", ["0:0-1", "1:0-1"], (2, 2)))
    x, w = make.fed(4, 256), make.variable("w", 256, 256)
    v = make.variable("v", 256, 256)
    problem = make.problem(make.op("matmul", make.op("matmul", x, w), v))
    links = LinkModel((replace(LinkModel().classes[0], joins="all"),))
    fast = replace(problem, costs=replace(DEFAULT, links=links))
    slow, quick = optimal(problem).report, optimal(fast).report
    assert slow is not None
    assert quick is not None
    assert slow.cost.communication > quick.cost.communication


def test_partial_results_occur_only_where_rules_allow_them() -> None:
    for signature in optimal(perceptron(4, 1024)).signatures.values():
        for nd in signature.outputs:
            assert all(isinstance(s, Split) or s in (B, P) for s in nd)
