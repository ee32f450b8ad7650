"""Mixed precision: which ops compute in float16, and that training works as in float32."""

from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import ConfigError, JobError
from flow_core.observe.text import plan_report

RNG = np.random.default_rng(3)
X = RNG.normal(0, 1, (16, 8)).astype(np.float32)
LABELS = RNG.integers(0, 4, 16).astype(np.int32)


def train_job(mixed: bool, policy: object = None, name: str = "train", half: object = None):
    config = flow.function_config()
    if mixed:
        config.enable_auto_mixed_precision(True)
    if half is not None:
        config.mixed_precision_data_type(half)

    def job(
        x: tp.Numpy.Placeholder((16, 8)), y: tp.Numpy.Placeholder((16,), flow.int32)
    ) -> tp.Numpy:
        ones = flow.random_uniform_initializer(-0.5, 0.5)
        hidden = flow.layers.dense(x, 12, flow.nn.relu, kernel_initializer=ones, name="first")
        logits = flow.layers.dense(hidden, 4, kernel_initializer=ones, name="last")
        loss = flow.math.reduce_mean(flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
        flow.optimizer.SGD(schedule, momentum=0.9, loss_scale_policy=policy).minimize(loss)
        return loss

    job.__name__ = name
    return flow.global_function("train", config)(job)


def dtypes_by_type(job) -> dict[str, set[str]]:
    graph = job.compile().graph
    found: dict[str, set[str]] = {}
    for op in graph.ops.values():
        found.setdefault(op.type, set()).update(t.dtype.name for t in graph.types[op.name])
    return found


def losses(mixed: bool, policy: object = None, steps: int = 30, half: object = None) -> list[float]:
    flow.clear_default_session()
    job = train_job(mixed, policy, half=half)
    return [job(X, LABELS).item() for _ in range(steps)]


HALVES = ("float16", "bfloat16")


@pytest.mark.parametrize("half", HALVES)
def test_products_are_half_and_the_rest_is_not(half: str) -> None:
    found = dtypes_by_type(train_job(True, half=half))
    assert found["matmul"] == {half}
    assert found["bias_add"] == {half, "float32"}, "the last one is on no path to a product"
    assert found["relu"] == {half}
    assert half not in found["variable"]
    assert found["sparse_softmax_cross_entropy"] == {"float32"}


@pytest.mark.parametrize("half", [None, "bfloat16"], ids=["none", "a type alone"])
def test_without_the_setting_nothing_is_half(half: object) -> None:
    found = dtypes_by_type(train_job(False, half=half))
    assert all(names.isdisjoint(HALVES) for names in found.values())


@pytest.mark.parametrize("half", [flow.bfloat16, "bfloat16", flow.float16])
def test_the_plan_says_which_half_type_it_is(half: object) -> None:
    job = train_job(True, half=half)
    name = "float16" if half is flow.float16 else "bfloat16"
    assert job.plan().settings["mixed_precision_data_type"] == name
    assert f"mixed precision in {name}" in plan_report(job).splitlines()[1]


def test_a_plan_without_mixed_precision_says_nothing() -> None:
    assert "mixed precision" not in plan_report(train_job(False, half="bfloat16"))


@pytest.mark.parametrize("wrong", [flow.float32, "float8", 16, None, True])
def test_other_types_are_no_half_types(wrong: object) -> None:
    config = flow.function_config()
    with pytest.raises(ConfigError, match=r"flow\.float16 or flow\.bfloat16") as caught:
        config.mixed_precision_data_type(wrong)
    assert "mixed_precision_data_type" in str(caught.value)
    assert caught.value.at is not None
    assert caught.value.at.file == __file__


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(
    "policy",
    [
        None,
        flow.optimizer.loss_scale.static_loss_scale(1024.0),
        flow.optimizer.loss_scale.dynamic_loss_scale(2.0**10, 5),
    ],
    ids=["none", "static", "dynamic"],
)
def test_training_follows_float32(policy: object, half: str) -> None:
    exact, mixed = losses(False), losses(True, policy, half=half)
    assert exact[-1] < 0.7 * exact[0]
    np.testing.assert_allclose(mixed, exact, rtol=0.03, atol=5e-3)
    assert mixed != exact


def test_bfloat16_needs_no_loss_scale() -> None:
    """It has float32's range: gradients that float16 loses are there; a scale changes no bit."""
    found = {half: losses(True, steps=4, half=half) for half in HALVES}
    scaled = flow.optimizer.loss_scale.static_loss_scale(2.0**20)
    assert losses(True, scaled, steps=4, half="bfloat16") == found["bfloat16"]
    assert losses(True, scaled, steps=4, half="float16") != found["float16"]


def test_overflow_skips_the_step_and_lowers_the_scale() -> None:
    """A scale of 2**30 overflows float16: variables stay until it has come down."""
    policy = flow.optimizer.loss_scale.dynamic_loss_scale(2.0**30, 2000)
    found = losses(True, policy, steps=40, half="float16")
    assert len(set(found[:5])) == 1, "the first steps overflow and must change nothing"
    assert found[-1] < found[0], "later ones must not"
    assert np.isfinite(found).all()


def test_gradients_of_biases_take_the_half_type_and_losses_do_not() -> None:
    """Sums over gradients do, as where casts are differentiated; sums of the forward pass never."""
    graph = train_job(True).compile().graph
    kinds = {
        op.name: graph.type_of(op.inputs[0]).dtype.name
        for op in graph.of_type("reduce_sum")
        if len(graph.type_of(op.inputs[0]).shape) == 2
    }
    assert sorted(kinds.values()) == ["float16", "float32"], "the last bias is on no path"
    losses = graph.of_type("reduce_mean")
    assert {graph.type_of(op.inputs[0]).dtype.name for op in losses} == {"float32"}


def test_results_stay_float32() -> None:
    config = flow.function_config()
    config.enable_auto_mixed_precision(True)

    @flow.global_function("predict", config)
    def job(x: tp.Numpy.Placeholder((16, 8))) -> tp.Numpy:
        return flow.matmul(x, x, transpose_b=True)

    found = job(X)
    assert found.dtype == np.float32
    half = X.astype(np.float16).astype(np.float32)
    np.testing.assert_allclose(found, half @ half.T, rtol=2e-3, atol=2e-3)


def test_normalization_keeps_its_statistics() -> None:
    config = flow.function_config()
    config.enable_auto_mixed_precision(True)

    @flow.global_function("train", config)
    def job(x: tp.Numpy.Placeholder((4, 3, 8, 8))) -> tp.Numpy:
        for i in range(2):
            x = flow.layers.conv2d(x, 4, 3, padding="SAME", name=f"conv{i}")
            x = flow.layers.batch_normalization(x, axis=1, name=f"norm{i}")
            x = flow.nn.relu(x)
        loss = flow.math.reduce_mean(x)
        schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
        flow.optimizer.SGD(schedule, momentum=0).minimize(loss)
        return loss

    graph = job.compile().graph
    norms = [op.name for op in graph.ops.values() if op.type == "normalization"]
    kinds = [[t.dtype.name for t in graph.types[name]] for name in norms]
    assert ["float16", "float32", "float32"] in kinds
    assert np.isfinite(job(RNG.normal(0, 1, (4, 3, 8, 8)).astype(np.float32)))


@pytest.mark.parametrize("half", [flow.float16, flow.bfloat16])
@pytest.mark.parametrize("source", ["fed", "computed", "constant", "variable", "scalar"])
def test_additive_masks_beyond_the_half_type(half: Any, source: str) -> None:
    """A row that is wholly masked is uniform, as in float32; before, float16 made it NaN."""
    rows = np.array([[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]], np.float32)

    def run(mixed: bool) -> Any:
        flow.clear_default_session()
        config = flow.function_config()
        config.enable_auto_mixed_precision(mixed)
        config.mixed_precision_data_type(half)

        @flow.global_function("train", config)
        def job(keep: tp.Numpy.Placeholder((4, 4)), v: tp.Numpy.Placeholder((4, 4))) -> tp.Numpy:
            q = flow.get_variable("q", (4, 4), initializer=flow.ones_initializer())
            scores = flow.matmul(q, v, transpose_b=True)
            lowest = flow.constant_initializer(-1e9)
            if source == "scalar":
                scores = scores + -1e9
            else:
                scores = (
                    scores
                    + {
                        "fed": lambda: keep,
                        "computed": lambda: (1.0 - keep) * -1e9,
                        "constant": lambda: flow.constant(-1e9, flow.float, (4, 4)),
                        "variable": lambda: flow.get_variable(
                            "m", (4, 4), initializer=lowest, trainable=False
                        ),
                    }[source]()
                )
            out = flow.matmul(flow.nn.softmax(scores), v)
            flow.optimizer.SGD(0.1, momentum=0).minimize(flow.math.reduce_sum(out * out))
            return out

        out = job((rows - 1) * 1e9 if source == "fed" else rows, np.eye(4, dtype=np.float32))
        return out, flow.get_all_variables()["q"].numpy()

    for found, exact in zip(run(True), run(False), strict=True):
        np.testing.assert_allclose(found, exact, atol=2e-2)


def test_named_ops_compute_in_float32() -> None:
    def job(x: tp.Numpy.Placeholder((16, 8))) -> tp.Numpy:
        ones = flow.random_uniform_initializer(-0.5, 0.5)
        hidden = flow.layers.dense(x, 12, kernel_initializer=ones, name="first")
        return flow.layers.dense(hidden, 4, kernel_initializer=ones, name="last")

    config = flow.function_config()
    config.enable_auto_mixed_precision(True)
    config.mixed_precision_data_type(flow.bfloat16)
    config.mixed_precision_float32_ops(["last-matmul"])
    graph = flow.global_function(function_config=config)(job).compile().optimized_logical
    assert graph.types["first-matmul"][0].dtype.name == "bfloat16"
    assert graph.types["last-matmul"][0].dtype.name == "float32"


def test_a_name_of_no_op_is_refused() -> None:
    def job(x: tp.Numpy.Placeholder((16, 8))) -> tp.Numpy:
        return flow.matmul(x, x, transpose_b=True, name="product")

    config = flow.function_config()
    config.enable_auto_mixed_precision(True)
    config.mixed_precision_float32_ops("products")
    with pytest.raises(JobError, match=r"product\b") as caught:
        flow.global_function(function_config=config)(job).compile()
    assert "mixed_precision_float32_ops" in str(caught.value)


@pytest.mark.parametrize("wrong", [3, ["a", 1], None])
def test_only_names_keep_ops_in_float32(wrong: object) -> None:
    with pytest.raises(ConfigError):
        flow.function_config().mixed_precision_float32_ops(wrong)
