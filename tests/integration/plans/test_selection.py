"""What the selectors make of whole programs: a transformer layer, jobs that share variables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from suite import work

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.config import Settings
from flow_core.base.errors import ConfigError
from flow_core.compiler.memory import arena_assignment as placing_module
from flow_core.compiler.memory.arena import plan_arena
from flow_core.frontend.session import session as sessions
from flow_core.frontend.session.session import Session
from flow_core.observe.text import plan_report
from flow_core.plugins.host import load_plugins

pytestmark = pytest.mark.arithmetic

INIT = flow.random_normal_initializer(stddev=0.3)
REGISTRY = load_plugins(Settings(emulate_gpus=4))
HIDDEN, HEADS = 256, 8


@pytest.fixture(autouse=True)
def four_gpus(fresh_session: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sessions, "_default", [Session(REGISTRY)])
    yield
    flow.clear_default_session()


def dense(x: Any, units: int, name: str, **more: Any) -> Any:
    return flow.layers.dense(x, units, kernel_initializer=INIT, name=name, **more)


def attention(x: Any, name: str, hidden: int, heads: int) -> Any:
    batch, rows, _ = x.shape
    each = hidden // heads

    def split(kind: str) -> Any:
        y = flow.reshape(dense(x, hidden, f"{name}-{kind}"), (batch, rows, heads, each))
        return flow.transpose(y, (0, 2, 1, 3))

    scores = flow.matmul(split("q"), split("k"), transpose_b=True) * each**-0.5
    mixed = flow.matmul(flow.nn.softmax(scores), split("v"))
    y = flow.reshape(flow.transpose(mixed, (0, 2, 1, 3)), (batch, rows, hidden))
    return dense(y, hidden, f"{name}-o")


def layer(x: Any, name: str, hidden: int = HIDDEN, heads: int = HEADS) -> Any:
    x = x + attention(flow.layers.layer_norm(x, name=f"{name}-ln1"), name, hidden, heads)
    y = flow.layers.layer_norm(x, name=f"{name}-ln2")
    y = dense(y, 4 * hidden, f"{name}-up", activation=flow.math.gelu)
    return x + dense(y, hidden, f"{name}-down")


def transformer(
    layers: int,
    batch: int,
    rows: int,
    selector: str = "auto",
    devices: str = "0:0-3",
    **sizes: int,
) -> Any:
    config = flow.function_config()
    config.sbp_selector(selector)
    hidden = sizes.get("hidden", HIDDEN)

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((batch, rows, hidden))) -> tp.Numpy:
        with flow.scope.placement("gpu", devices):
            y = x
            for i in range(layers):
                y = layer(y, f"l{i}", **sizes)
            loss = flow.math.reduce_mean(flow.math.square(y))
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.001])
            flow.optimizer.Adam(rate).minimize(loss)
        return loss

    return job


def moved(compiled: Any, *, gradients: bool) -> dict[str, int]:
    """Bytes that cross devices by value: those of variables' gradients, or all others."""
    ops = compiled.optimized_logical.ops.values()
    updates = {str(op.inputs[1]) for op in ops if op.type == "adam_update"}
    found: dict[str, int] = {}
    for entry in compiled.plan.ledger:
        if (entry.value in updates) == gradients and not entry.value.startswith("Input_"):
            found[entry.value] = found.get(entry.value, 0) + entry.nbytes
    return {value: nbytes for value, nbytes in found.items() if nbytes}


@pytest.mark.slow
@pytest.mark.representative(r"\[1\]", "the others differ in sizes")
@pytest.mark.parametrize("layers", [1, 3])
def test_few_rows_make_a_layer_tensor_parallel(layers: int) -> None:
    batch, rows = 4, 8
    compiled = transformer(layers, batch, rows).compile()
    signatures = {n: str(s) for n, s in compiled.physical.signatures.items()}
    for i in range(layers):
        for column in ("q", "k", "v", "up"):  # weights are (out, in)
            assert signatures[f"l{i}-{column}-matmul"] == "(B, S(0)) -> S(1)"
        for row in ("o", "down"):
            assert signatures[f"l{i}-{row}-matmul"] == "(S(1), S(1)) -> P"
    all_reduce = 2 * 3 * batch * rows * HIDDEN * 4
    activations = moved(compiled, gradients=False)
    backward = [n for value, n in activations.items() if "/grad/" in value]
    forward = [n for value, n in activations.items() if "/grad/" not in value]
    assert forward == [all_reduce] * 2 * layers
    assert backward == [all_reduce] * (2 * layers - 1)  # feeds need no gradient
    small = {
        str(op.inputs[1])
        for op in compiled.optimized_logical.ops.values()
        if op.type == "adam_update"
    }
    assert set(moved(compiled, gradients=True)) <= {value for value in small if "-ln1/" in value}


@pytest.mark.slow
def test_many_rows_make_it_data_parallel() -> None:
    compiled = transformer(1, 64, 256).compile()
    assert set(moved(compiled, gradients=False)) <= {"reduce_mean:0"}  # the loss
    reduced = moved(compiled, gradients=True)
    weights = [op for op in compiled.optimized_logical.of_type("variable") if op.attrs["trainable"]]
    sizes = [compiled.optimized_logical.type_of(op.output()).nbytes for op in weights]
    assert sum(reduced.values()) == 2 * 3 * sum(sizes)
    assert all(str(compiled.layouts[op.output()].sbp[0]) == "B" for op in weights)


@pytest.mark.slow
@pytest.mark.representative("8-64", "the others differ in sizes")
@pytest.mark.parametrize(("batch", "rows"), [(4, 8), (8, 64), (64, 256)])
def test_it_never_costs_more_than_greedy(batch: int, rows: int) -> None:
    reports = {}
    for selector in ("auto", "optimal", "greedy"):
        flow.clear_default_session()
        reports[selector] = transformer(2, batch, rows, selector).compile().physical.report
    assert reports["optimal"].gap == 0
    assert reports["optimal"].cost.total <= reports["auto"].cost.total
    assert reports["auto"].cost.total <= reports["greedy"].cost.total
    assert reports["optimal"].greedy == reports["greedy"].cost


def run(job: Any, shape: tuple[int, ...], steps: int = 3) -> Any:
    rng = np.random.default_rng(0)
    return np.array([job(rng.normal(size=shape).astype(np.float32)) for _ in range(steps)])


@pytest.mark.slow
def test_tensor_parallel_training_equals_one_device() -> None:
    one = run(transformer(1, 4, 2, devices="0:0"), (4, 2, HIDDEN))
    flow.clear_default_session()
    job = transformer(1, 4, 2)
    many = run(job, (4, 2, HIDDEN))
    np.testing.assert_allclose(many, one, rtol=1e-4)
    variables = job.compile().optimized_logical.of_type("variable")
    assert any(str(job.compile().layouts[op.output()].sbp[0]) != "B" for op in variables)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_work_of_compiling_is_linear_in_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without the search for a tighter arena, which large plans go without."""
    arenas: list[Any] = []

    def placed(blocks: Any) -> Any:
        arenas.append(blocks)
        return plan_arena(blocks)

    monkeypatch.setattr(placing_module, "plan_arena", placed)
    found: dict[int, tuple[int, int]] = {}
    for layers in (1, 12, 24, 48):  # the first imports modules
        flow.clear_default_session()
        arenas.clear()
        whole = work.calls(lambda layers=layers: transformer(layers, 4, 8).compile())
        placing = work.calls(lambda: [plan_arena(blocks) for blocks in arenas])
        found[layers] = whole, whole - placing
    for layers in (24, 48):
        for part in (0, 1):
            assert found[layers][part] < 1.3 * layers / 12 * found[12][part]


# ------------------------------------------------------------------ jobs share variables


def perceptron(x: Any) -> Any:
    x = dense(x, 4096, "up", activation=flow.nn.relu)
    return dense(x, 1024, "down")


def two_jobs(devices: str = "0:0-3", others: str = "0:0-3") -> tuple[Any, Any]:
    """A train job for which split weights pay, and a predict job for which they do not."""

    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((4, 1024))) -> tp.Numpy:
        with flow.scope.placement("gpu", devices):
            loss = flow.math.reduce_mean(flow.math.square(perceptron(x)))
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.001])
            flow.optimizer.SGD(rate, momentum=0).minimize(loss)
        return loss

    @flow.global_function
    def predict(x: tp.Numpy.Placeholder((4, 1024))) -> tp.Numpy:
        with flow.scope.placement("gpu", others):
            return perceptron(x)

    return train, predict


def layout_of(job: Any, name: str) -> str:
    compiled = job.compile()
    return str(compiled.layouts[compiled.optimized_logical.ops[name].output()])


X = np.random.default_rng(1).normal(size=(4, 1024)).astype(np.float32)


def expected() -> tuple[Any, Any]:
    """The loss of the first step on one device, and the prediction after it."""
    train, predict = two_jobs("0:0", "0:0")
    result = train(X), predict(X)
    flow.clear_default_session()
    return result


@pytest.mark.slow
def test_the_job_that_is_compiled_first_lays_variables_out() -> None:
    loss, prediction = expected()
    train, predict = two_jobs()
    assert layout_of(train, "up-weight") == "gpu[0:0-3] S(0)"
    assert layout_of(predict, "up-weight") == "gpu[0:0-3] S(0)"
    np.testing.assert_allclose(train(X), loss, rtol=1e-4)
    np.testing.assert_allclose(predict(X), prediction, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_a_train_job_takes_what_a_predict_job_has_chosen() -> None:
    loss, prediction = expected()
    train, predict = two_jobs()
    assert layout_of(predict, "up-weight") == "gpu[0:0-3] B"
    predict(X)
    assert layout_of(train, "up-weight") == "gpu[0:0-3] B"
    np.testing.assert_allclose(train(X), loss, rtol=1e-4)
    np.testing.assert_allclose(predict(X), prediction, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_a_job_on_one_device_reads_the_parts_of_four() -> None:
    loss, prediction = expected()
    train, predict = two_jobs("0:0-3", "0:0")
    np.testing.assert_allclose(train(X), loss, rtol=1e-4)
    assert layout_of(predict, "up-weight") == "gpu[0:0-3] S(0)"
    np.testing.assert_allclose(predict(X), prediction, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_initial_values_are_there_before_a_job_splits_them(tmp_path: Path) -> None:
    loss, prediction = expected()
    train, _ = two_jobs()
    flow.train.CheckPoint().init()
    np.testing.assert_allclose(train(X), loss, rtol=1e-4)
    flow.train.CheckPoint().save(str(tmp_path / "saved"))
    flow.clear_default_session()
    _, predict = two_jobs()
    flow.train.CheckPoint().load(str(tmp_path / "saved"))
    np.testing.assert_allclose(predict(X), prediction, rtol=1e-3, atol=1e-3)


# ------------------------------------------------------------------------------- settings


def test_a_variable_of_one_device_may_be_sent_to_several() -> None:
    @flow.global_function()
    def job() -> tp.Numpy:
        with flow.scope.placement("gpu", "0:0"):
            x = flow.get_variable("alone", (4, 12), initializer=INIT)
        with flow.scope.placement("gpu", "0:0-3"):
            return x.with_distribute(flow.distribute.split(1)) * 2.0

    np.testing.assert_array_equal(job(), 2 * flow.get_all_variables()["alone"].numpy())
    assert [entry.steps for entry in job.plan().ledger] == [("scatter",), ("gather",)]


def test_the_report_says_which_selector_and_what_it_costs() -> None:
    report = plan_report(transformer(1, 4, 8))
    assert "selector" in report
    rows = {line.split()[0]: line for line in report.splitlines() if line.startswith("  ")}
    assert "optimal" in rows["selector"]
    assert "elimination" in rows["search"]
    assert "communication" in rows["cost"]
    assert "0.00%" in rows["gap"]


def test_a_job_can_ask_for_greedy() -> None:
    report = transformer(1, 4, 8, "greedy").compile().physical.report
    assert (report.selector, report.method) == ("greedy", "op by op")
    assert report.gap is None


@pytest.mark.parametrize(
    ("name", "value"), [("sbp_selector", "best"), ("sbp_selector_seconds", 0), ("sbp_selector", 3)]
)
def test_settings_are_checked(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"function_config.{name}"):
        getattr(flow.function_config(), name)(value)


def test_a_search_that_may_do_nothing_takes_greedy() -> None:
    job = transformer(1, 4, 8)
    job.config.sbp_selector_seconds(1e-9)
    report = job.compile().physical.report
    assert (report.selector, report.method) == ("greedy", "more work than sbp_selector_seconds")
