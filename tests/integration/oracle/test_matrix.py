"""``flow verify --matrix``: bugs planted in plans and passes are named, and programs are right."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from parallel_forms import emulated
from parallel_networks import NETWORKS, train_job
from planted.plans import BUGS, logical
from run_forms import FORMS

import oneflow as flow
import oneflow.typing as tp
from flow_core.base import planning
from flow_core.cli.app import cli
from flow_core.ir.graph import Attrs, Graph, Op, rebuild
from flow_core.observe.matrix.forms import AUTO, Form, compiled, plan_of
from flow_core.observe.matrix.pass_check import wrong_passes
from flow_core.observe.matrix.plan_check import EVERY_STEP, Finding, PlanCheck
from flow_core.passes.dead_code import DeadCode

# ------------------------------------------------------------------------------ bugs of plans

IN_PLANS = [
    ("swapped_ranks", "data", 0), ("swapped_ranks", "zero", 0), ("swapped_ranks", "columns", 1),
    ("lost_block", "columns", 0), ("lost_block", "zero", 0), ("lost_block", "pipeline", 1),
    ("shifted_block", "columns", 0), ("shifted_block", "zero", 0),
    ("term_twice", "columns", 0), ("term_twice", "data", 0),
    ("largest_for_sum", "columns", 0), ("largest_for_sum", "data", 1),
    ("largest_for_sum", "zero", 0),
    ("wrong_scale", "columns", 0), ("wrong_scale", "pipeline", 0), ("wrong_scale", "zero", 1),
    ("skipped_update", "data", 0), ("skipped_update", "columns", 0), ("skipped_update", "zero", 0),
    ("stale_value", "data", 0), ("stale_value", "columns", 0), ("stale_value", "pipeline", 1),
    ("other_input", "columns", 0), ("other_input", "data", 0),
    ("other_seed", "columns", 0), ("other_seed", "zero", 0),
    ("missing_wait", "data", 0), ("missing_wait", "zero", 0), ("missing_wait", "pipeline", 1),
    ("shared_memory", "columns", 0), ("shared_memory", "data", 0),
    ("shifted_feed", "data", 0), ("shifted_feed", "columns", 0),
    ("shifted_shard", "zero", 0),
    ("circle", "data", 0), ("circle", "pipeline", 0),
]  # fmt: skip


@contextmanager
def job_in(form: str, network: str = "mlp") -> Iterator[Any]:
    with emulated(4):
        job = train_job(NETWORKS[network], FORMS[form])
        job.config.share_replicas(False)
        yield job


@pytest.mark.slow
@pytest.mark.representative(
    r"data-0|shifted_shard|(shifted_block|lost_block|other_seed)-zero",
    "each bug once; the other cases plant it elsewhere",
)
@pytest.mark.parametrize(("bug", "form", "seed"), IN_PLANS)
def test_a_bug_in_a_plan_is_named(bug: str, form: str, seed: int) -> None:
    with job_in(form) as job:
        planted = BUGS[bug](job.compile().plan, random.Random(seed))
        findings = PlanCheck.of_plan(job, planted.plan).check(2)
    names = {*planted.ops, *map(logical, planted.ops)}
    named = [f for f in findings if f.op in names]
    assert named, findings
    assert all(f.step in (EVERY_STEP, 0, 1) for f in named)
    assert any(f.line for f in named)
    if planted.devices:
        assert any(str(d) in f.device for f in named for d in planted.devices), findings


# ----------------------------------------------------------------------------- bugs of passes


Change = Callable[[Graph, Op], list[Op]]


@dataclass(frozen=True)
class BuggyPass:
    """Dead code elimination that also changes an op.

    Attributes:
        name: that of the pass.
        chosen: whether an op is the one to change.
        change: returns the ops in place of an op; the last one has its name.
    """

    chosen: Callable[[Op], bool]
    change: Change
    name: str = "dead_code"

    def apply(self, graph: Graph, context: Any) -> Graph:
        op = next(op for op in graph.ops.values() if self.chosen(op))
        *new, changed = self.change(graph, op)
        types = {o.name: (graph.type_of(o.inputs[0]),) for o in new}
        ops = [o for other in graph.ops.values()
               for o in ([*new, changed] if other is op else [other])]  # fmt: skip
        return rebuild(graph, ops, types={**graph.types, **types})


def scaled(attr: str, factor: float) -> Change:
    return lambda graph, op: [replace(op, attrs=op.attrs.with_(**{attr: factor * op.attrs[attr]}))]


def dropped(graph: Graph, op: Op) -> list[Op]:
    """The gradient of an update is 0."""
    zero = Op("no_gradient", "zero_like", (op.inputs[1],), Attrs({}), op.placement)
    return [zero, replace(op, inputs=(op.inputs[0], zero.output(), *op.inputs[2:]))]


def exchanged(graph: Graph, op: Op) -> list[Op]:
    """An update gets the gradient of another variable."""
    others = (o for o in graph.ops.values() if o.type == op.type and o is not op)
    wanted = graph.type_of(op.inputs[1])
    other = next(o for o in others if graph.type_of(o.inputs[1]) == wanted)
    return [replace(op, inputs=(op.inputs[0], other.inputs[1], *op.inputs[2:]))]


def ending(text: str, kind: str) -> Callable[[Op], bool]:
    return lambda op: op.name.endswith(text) and op.type == kind


IN_PASSES: dict[str, tuple[Callable[[Op], bool], Change, str]] = {
    "scaled-product": (ending("second", "matmul"), scaled("alpha", 0.25), "second"),
    "scaled-gradient": (
        ending("third/grad/matmul", "matmul"), scaled("alpha", 4.0), "third/grad/matmul",
    ),
    "dropped-bias-gradient": (
        ending("first-bias_optimizer", "adam_update"), dropped, "first-bias_optimizer",
    ),
    "gradient-of-another-bias": (
        ending("second-bias_optimizer", "adam_update"), exchanged, "second-bias_optimizer",
    ),
    "decay-of-a-moment": (
        ending("third-weight_optimizer", "adam_update"), scaled("beta1", 0.5),
        "third-weight_optimizer",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("bug", IN_PASSES)
def test_a_bug_in_a_pass_is_named(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, change, name = IN_PASSES[bug]
    wrong = BuggyPass(chosen, change)
    monkeypatch.setattr(DeadCode, "apply", lambda self, g, context: wrong.apply(g, context))
    with job_in("data") as job:
        check = PlanCheck.of_plan(job, job.compile().plan)
        found = wrong_passes(check, check.draw(0))
    assert [(f.kind, f.op) for f in found] == [("wrong pass", name)]
    assert "'dead_code'" in found[0].text
    assert found[0].line


# ------------------------------------------------------------------------------ no false alarm


def problems(job: Any, plan: Any) -> list[Finding]:
    check = PlanCheck.of_plan(job, plan)
    return [*wrong_passes(check, check.draw(0)), *check.check(2)]


@pytest.mark.slow
@pytest.mark.representative("mlp-(zero|pipeline)", "the other programs have the same ops")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("network", NETWORKS)
def test_no_false_alarm(network: str, form: str) -> None:
    with job_in(form, network) as job:
        assert problems(job, job.compile().plan) == []


# ----------------------------------------------------------------------------------- command


def program() -> Any:
    @flow.global_function("train")
    def train(
        x: tp.Numpy.Placeholder((6, 8)), y: tp.Numpy.Placeholder((6,), flow.int32)
    ) -> tp.Numpy:
        init = flow.random_normal_initializer(0.0, 0.3)
        x = flow.layers.dense(x, 8, flow.nn.relu, kernel_initializer=init, name="first")
        x = flow.layers.dense(x, 4, kernel_initializer=init, name="last")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, x)
        flow.optimizer.SGD(0.1, momentum=0).minimize(loss)
        return loss

    return train


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("passes", ["all", "none"])
@pytest.mark.parametrize(("layout", "devices"), [(AUTO, 1), ("data", 3), ("model", 2), ("zero", 2)])
def test_a_form(layout: str, devices: int, passes: str, precision: str) -> None:
    with emulated(3):
        job = program()
        form = Form(layout, devices, passes, "flow-core", precision)
        plan = plan_of(job, compiled(job, form), form)
        assert len(plan.arenas) >= devices
        types = {plan.buffers[i].type.dtype.name for t in plan.tasks for i in t.outputs}
        assert (precision in types) or precision == "float32"
        assert problems(job, plan) == []


def rows(x: Any) -> Any:
    """Return scores by another view, in whose memory the loss and its gradient are computed."""
    table = flow.get_variable("table", (4, 8), initializer=flow.random_normal_initializer(0.0, 0.3))
    return flow.reshape(flow.matmul(x, table, transpose_b=True), (2, 3, 4))


def convolved(x: Any) -> Any:
    images = flow.layers.conv2d(
        flow.reshape(x, (6, 2, 2, 2)), 4, 2, 2, name="conv",
        kernel_initializer=flow.random_normal_initializer(0.0, 0.3),
    )  # fmt: skip
    return flow.reshape(images, (2, 3, 4))


def branches(x: Any) -> Any:
    """Return scores of branches whose gradients are added in a fused op, as sums over devices."""
    random = flow.random_normal_initializer(0.0, 0.3)
    x = flow.layers.layer_norm(x, name="norm")
    made = [
        flow.layers.dense(x, 8, flow.nn.relu, kernel_initializer=random, name=name)
        for name in ("first", "second", "third")
    ]
    x = flow.layers.dense(flow.math.add_n(made), 4, kernel_initializer=random, name="last")
    return flow.reshape(x, (2, 3, 4))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("network", "layout"), [(rows, "data"), (convolved, "data"), (branches, "model")]
)
def test_values_that_no_task_shows(
    network: Callable[[Any], Any], layout: str, precision: str
) -> None:
    @flow.global_function("train")
    def train(
        x: tp.Numpy.Placeholder((6, 8)), y: tp.Numpy.Placeholder((2, 3), flow.int32)
    ) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, network(x))
        flow.optimizer.SGD(0.1, momentum=0).minimize(loss)
        return flow.math.reduce_mean(loss)

    with emulated(2):
        plan = compiled(train, Form(layout, 2, "all", "flow-core", precision)).plan
        assert problems(train, plan) == []


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_numbers_beyond_the_range_of_float16(precision: str) -> None:
    """They are infinite in mixed precision, which is no mistake of the pass."""

    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((4, 64)), y: tp.Numpy.Placeholder((4,), flow.int32)) -> None:
        for i in range(5):
            large = flow.random_normal_initializer(stddev=4.0)
            w = flow.get_variable(f"w{i}", (64, 64), initializer=large)
            x = flow.nn.relu(flow.matmul(x, w))
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, x)
        flow.optimizer.SGD(0.1, momentum=0).minimize(loss)

    with emulated(2):
        plan = compiled(train, Form("data", 2, "all", "flow-core", precision)).plan
        assert problems(train, plan) == []


def test_signs_near_0_that_bfloat16_changes() -> None:
    """A few roundings of float32 change none of them, and do not explain the gradients."""

    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((2, 8))) -> None:
        w = flow.get_variable("w", (8, 4096), initializer=flow.random_normal_initializer())
        loss = flow.math.abs(flow.matmul(x, w))
        flow.optimizer.SGD(0.1, momentum=0).minimize(loss)

    with emulated(2):
        plan = compiled(train, Form("data", 2, "all", "flow-core", "bfloat16")).plan
        assert problems(train, plan) == []


@pytest.mark.slow
@pytest.mark.usefixtures("restored_program")
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_active", [])
    script, page = tmp_path / "job.py", tmp_path / "matrix.html"
    script.write_text("""
import oneflow as flow
import oneflow.typing as tp


@flow.global_function()
def job(x: tp.Numpy.Placeholder((4, 6))) -> tp.Numpy:
    weight = flow.get_variable("w", (6, 4), initializer=flow.random_normal_initializer())
    return flow.math.tanh(flow.matmul(x, weight, name="product"))
""")
    arguments = ["verify", "--matrix", "--devices", "2", "--steps", "1", "--html", str(page)]
    with emulated(2):
        done = CliRunner().invoke(cli, [*arguments, "--json", str(script)])
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["ok"]
    forms = [cell["form"] for cell in found["cells"]]
    assert {form["devices"] for form in forms} == {1, 2}
    assert {form["layout"] for form in forms} == {"auto", "data", "model"}
    assert {form["precision"] for form in forms} == {"float32", "bfloat16", "float16"}
    assert not any(cell["findings"] or cell["refused"] for cell in found["cells"])
    assert page.read_text().count("<tr>") > len(forms)
