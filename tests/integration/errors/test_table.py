"""A table of misuse of the public API: each is an error of flow's that names the user's line."""

from __future__ import annotations

import copy
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mistakes import FIXED, PAIR, ZEROS

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import FlowError

HUGE = 10**5000
ONES = np.ones((2, 3), np.float32)


def predict(body: Callable[[Any], Any], x: Any = ZEROS) -> Any:
    """Define a predict job of a body, and call it."""

    def job(x: Any) -> Any:
        return body(x)

    job.__annotations__ = {"x": PAIR, "return": tp.Numpy}
    return flow.global_function()(job)(x)


def train(body: Callable[[Any], Any], config: Any = None) -> Any:
    """Define a train job that minimizes by what a body says, and call it."""

    def job(x: Any) -> Any:
        loss = flow.math.reduce_mean(x * flow.get_variable("w", shape=(3,)))
        body(loss)
        return loss

    job.__annotations__ = {"x": PAIR, "return": tp.Numpy}
    return flow.global_function("train", config)(job)(ONES)


def annotated(parameter: Any, result: Any = tp.Numpy, body: Any = lambda x: x) -> Any:
    """A job with these annotations."""

    def job(x: Any) -> Any:
        return body(x)

    job.__annotations__ = {"x": parameter, "return": result}
    return flow.global_function()(job)


def plain() -> Any:
    """A job that gives what it is fed."""
    return annotated(PAIR)


FOREIGN: list[Any] = []


@pytest.fixture(autouse=True)
def foreign_blob() -> None:
    """Puts a blob of another job into `FOREIGN`."""
    predict(lambda x: FOREIGN.append(x) or x)
    flow.clear_default_session()


def foreign() -> Any:
    """A blob of another job."""
    return FOREIGN[-1]


def configured(change: Callable[[Any], Any]) -> None:
    """Change a function config, and call a train job with it."""
    config = flow.function_config()
    change(config)
    train(lambda loss: flow.optimizer.SGD(0.1).minimize(loss), config)


def variable() -> Any:
    """A variable of the session."""
    predict(lambda x: x + flow.get_variable("v", shape=(2, 3)))
    return flow.get_all_variables()["v"]


def v(**given: Any) -> Any:
    """A variable of given arguments."""
    return flow.get_variable(**{"name": "v", "shape": (2, 3), **given})


def image(x: Any) -> Any:
    return flow.reshape(x, (1, 1, 2, 3))


DEFINITION: list[Callable[[], Any]] = [
    lambda: predict(lambda x: flow.nn.rleu(x)),
    lambda: predict(lambda x: x.foo),
    lambda: predict(lambda x: undefined_name + x),  # type: ignore[name-defined]  # noqa: F821
    lambda: predict(lambda x: 1 // 0),
    lambda: predict(lambda x: [x][3]),
    lambda: predict(lambda x: foreign()),
    lambda: predict(lambda x, y=1: pickle.dumps(x)),
    lambda: predict(lambda x: copy.deepcopy(x)),
    lambda: predict(lambda x: np.stack([x, x])),
    lambda: predict(lambda x: np.add(x, 1)),
    lambda: predict(lambda x: math.exp(x)),
    lambda: predict(lambda x: sum([x, "a"])),
    lambda: predict(lambda x: x @ 3),
    lambda: predict(lambda x: x + None),
    lambda: predict(lambda x: x + {1: 2}),
    lambda: predict(lambda x: x + 1j),
    lambda: predict(lambda x: x ** "2"),
    lambda: predict(lambda x: not (x > 0)),
    lambda: predict(lambda x: flow.matmul(x, x)),
    lambda: predict(lambda x: flow.matmul(x, 3)),
    lambda: predict(lambda x: flow.concat([], 0)),
    lambda: predict(lambda x: flow.concat(x, 0)),
    lambda: predict(lambda x: flow.concat([x, flow.reshape(x, (3, 2))], 0)),
    lambda: predict(lambda x: flow.stack([x, x], axis=7)),
    lambda: predict(lambda x: flow.transpose(x, [0, 0])),
    lambda: predict(lambda x: flow.transpose(x, 1)),
    lambda: predict(lambda x: flow.transpose(x, ["a", "b"])),
    lambda: predict(lambda x: flow.reshape(x, (HUGE,))),
    lambda: predict(lambda x: flow.reshape(x, (-1, -1))),
    lambda: predict(lambda x: flow.reshape(x, "23")),
    lambda: predict(lambda x: flow.reshape(x, None)),
    lambda: predict(lambda x: flow.reshape(x, (2.5,))),
    lambda: predict(lambda x: flow.slice(x, [0], [1, 2])),
    lambda: predict(lambda x: flow.slice_v2(x, 3)),
    lambda: predict(lambda x: flow.slice_v2(x, [[0, 1, 0]])),
    lambda: predict(lambda x: flow.slice_v2(x, [[0, "a", 1]])),
    lambda: predict(lambda x: flow.gather(x, x)),
    lambda: predict(lambda x: flow.gather(x, 1)),
    lambda: predict(lambda x: flow.one_hot(x, 3)),
    lambda: predict(lambda x: flow.cast(x, "nothing")),
    lambda: predict(lambda x: flow.cast(x, None)),
    lambda: predict(lambda x: flow.cast(3, flow.float)),
    lambda: predict(lambda x: flow.squeeze(x, axis=[0])),
    lambda: predict(lambda x: flow.expand_dims(x, 9)),
    lambda: predict(lambda x: flow.expand_dims(x, None)),
    lambda: predict(lambda x: flow.pad(x, [1])),
    lambda: predict(lambda x: flow.pad(x, 1)),
    lambda: predict(lambda x: flow.math.reduce_sum(x, axis=5)),
    lambda: predict(lambda x: flow.math.reduce_sum(x, axis="a")),
    lambda: predict(lambda x: flow.math.reduce_mean(None)),
    lambda: predict(lambda x: flow.math.top_k(x, "k")),
    lambda: predict(lambda x: flow.math.clip_by_value(x, "a", "b")),
    lambda: predict(lambda x: flow.constant("one", flow.float)),
    lambda: predict(lambda x: flow.constant(1, flow.float, (1.5,))),
    lambda: predict(lambda x: flow.constant(1, flow.float, 3.5)),
    lambda: predict(lambda x: flow.constant(None, flow.float)),
    lambda: predict(lambda x: flow.constant(1, "floot")),
    lambda: predict(lambda x: flow.constant(1, flow.float, (2**63,))),
    lambda: predict(lambda x: flow.constant(HUGE, flow.float)),
    lambda: predict(lambda x: flow.zeros((2, -3))),
    lambda: predict(lambda x: flow.range(0, 10, 0)),
    lambda: predict(lambda x: flow.random.bernoulli(x, seed="a")),
    lambda: predict(lambda x: flow.random.shuffle(3)),
    lambda: predict(lambda x: flow.random.integers(0.5, 3, (2,))),
    lambda: predict(lambda x: flow.random.integers(0, 3.5, (2,))),
    lambda: predict(lambda x: flow.random.normal((2,), stddev=-1)),
    lambda: predict(lambda x: flow.random.uniform((2,), 1, 1)),
    lambda: predict(lambda x: flow.nn.dropout(x, rate=2.0)),
    lambda: predict(lambda x: flow.nn.dropout(x, rate="a")),
    lambda: predict(lambda x: flow.nn.softmax(x, axis=4)),
    lambda: predict(lambda x: flow.nn.conv2d(x, x, 1, "SAME")),
    lambda: predict(lambda x: flow.nn.conv2d(image(x), image(x), 0, "SAME")),
    lambda: predict(lambda x: flow.nn.conv2d(image(x), image(x), "a", "SAME")),
    lambda: predict(lambda x: flow.nn.conv2d(image(x), image(x), 1, "SOME")),
    lambda: predict(lambda x: flow.nn.conv2d(image(x), image(x), 1, "SAME", groups=0)),
    lambda: predict(lambda x: flow.nn.max_pool2d(image(x), 0, 1, "SAME")),
    lambda: predict(lambda x: flow.nn.max_pool2d(image(x), "a", 1, "SAME")),
    lambda: predict(lambda x: flow.nn.max_pool2d(x, 2, 1, "SAME")),
    lambda: predict(lambda x: flow.nn.bias_add(x, x)),
    lambda: predict(lambda x: flow.nn.relu(None)),
    lambda: predict(lambda x: flow.nn.relu()),
    lambda: predict(lambda x: flow.nn.relu(x, x, x)),
    lambda: predict(lambda x: flow.nn.sparse_softmax_cross_entropy_with_logits(x, x)),
    lambda: predict(lambda x: flow.layers.dense(x, -1)),
    lambda: predict(lambda x: flow.layers.dense(x, "4")),
    lambda: predict(lambda x: flow.layers.dense(x, 4.5)),
    lambda: predict(lambda x: flow.layers.dense(x, HUGE)),
    lambda: predict(lambda x: flow.layers.dense(x, 4, kernel_initializer="zeros")),
    lambda: predict(lambda x: flow.layers.dense(x, 4, name=5)),
    lambda: predict(lambda x: flow.layers.conv2d(image(x), -2, 1)),
    lambda: predict(lambda x: flow.layers.batch_normalization(x, axis=9)),
    lambda: predict(lambda x: flow.layers.batch_normalization(x, momentum="a")),
    lambda: predict(lambda x: flow.layers.layer_norm(x, begin_norm_axis=9)),
    lambda: predict(lambda x: flow.image.Resize(x, 3)),
    lambda: predict(lambda x: flow.get_variable("")),
    lambda: predict(lambda x: flow.get_variable(b"w", shape=(1,))),
    lambda: predict(lambda x: v(shape=(2**62, 2**62))),
    lambda: predict(lambda x: v(shape=(HUGE,))),
    lambda: predict(lambda x: v(shape=(1 << 42,))),
    lambda: predict(lambda x: v(shape="ab")),
    lambda: predict(lambda x: v(shape=2**70)),
    lambda: predict(lambda x: v(dtype=object)),
    lambda: predict(lambda x: v(initializer=lambda: 1)),
    lambda: predict(lambda x: v(initializer=flow.random_normal_initializer(stddev="a"))),
    lambda: predict(lambda x: v(initializer=flow.random_uniform_initializer(None, 1))),
    lambda: predict(lambda x: v(initializer=flow.constant_initializer("a"))),
    lambda: predict(lambda x: v(random_seed="a")),
    lambda: predict(lambda x: v(random_seed=HUGE)),
    lambda: predict(lambda x: v(regularizer="l2")),
    lambda: predict(lambda x: v(distribute="split")),
    lambda: predict(lambda x: v(distribute=flow.distribute.split("a"))),
    lambda: predict(lambda x: v(distribute=flow.distribute.split(4))),
    lambda: predict(lambda x: v(parallel_distribution=["S(9)"])),
    lambda: predict(lambda x: v(parallel_distribution=3)),
    lambda: predict(lambda x: (v(), v(shape=(5,)))[1]),
    lambda: predict(lambda x: flow.assign(x, 3)),
    lambda: predict(lambda x: flow.watch(foreign())),
    lambda: predict(lambda x: flow.watch(3)),
    lambda: predict(lambda x: flow.watch(x, handler_or_prompt=3)),
    lambda: predict(lambda x: flow.watch_diff(3)),
    lambda: predict(lambda x: flow.nn.rnn(x)),
    lambda: predict(lambda x: flow.checkpoint.nothing),
    lambda: predict(lambda x: flow.get_all_variables()),
    lambda: predict(lambda x: flow.checkpoint.save("model")),
    lambda: predict(lambda x: flow.load_variables({"v": ZEROS})),
    lambda: predict(lambda x: flow.train.CheckPoint().init()),
    lambda: predict(lambda x: plain()(x)),
]

SCOPES: list[Callable[[], Any]] = [
    lambda: flow.scope.placement("cpu", "0:0-99999999"),
    lambda: flow.scope.placement("cpu", f"0:{'9' * 5000}"),
    lambda: flow.scope.placement("cpu", ",".join(f"{m}:0-9999" for m in range(9))),
    lambda: flow.scope.placement("cpu", "nonsense"),
    lambda: flow.scope.placement("cpu", 3),
    lambda: flow.scope.placement("cpu", None),
    lambda: flow.scope.placement("cpu", []),
    lambda: flow.scope.placement("cpu", [0, 1]),
    lambda: flow.scope.placement("cpu", {"0:0": 1}),
    lambda: flow.scope.placement("cpu", "0:3-1"),
    lambda: flow.scope.placement("cpu", "0:-1"),
    lambda: flow.scope.placement("cpu", "0:0,0:0"),
    lambda: flow.scope.placement("cpu", "0:0-3", 4),
    lambda: flow.scope.placement("cpu", "0:0-3", (2, 3)),
    lambda: flow.scope.placement("cpu", "0:0-3", ("a",)),
    lambda: flow.scope.placement("cpu", "0:0-3", (-2, -2)),
    lambda: flow.scope.placement(3, "0:0"),
    lambda: flow.scope.placement("", "0:0"),
    lambda: flow.scope.placement(None, "0:0"),
    lambda: predict(lambda x: flow.scope.placement("abacus", "0:0").__enter__() and x + 1),
    lambda: flow.scope.namespace(3),
    lambda: flow.scope.namespace(None),
    lambda: flow.scope.current_scope().device_parallel_desc_symbol,
    lambda: flow.experimental.scope.config(ssp_num_stages="a"),
    lambda: flow.distribute.split("a"),
    lambda: flow.distribute.split(None),
    lambda: predict(lambda x: x.with_distribute("S(0)")),
    lambda: predict(lambda x: flow.parallel_cast(x, distribute=3)),
    lambda: predict(lambda x: flow.hierarchical_parallel_cast(x, parallel_distribution=["Q"])),
]

CONFIG: list[Callable[[], Any]] = [
    lambda: configured(lambda c: c.no_such_setting(True)),
    lambda: configured(lambda c: c.default_data_type("floot")),
    lambda: configured(lambda c: c.default_data_type(None)),
    lambda: configured(lambda c: c.default_logical_view("mirrored")),
    lambda: configured(lambda c: c.default_placement_scope("0:0")),
    lambda: configured(lambda c: c.concurrency_width(0)),
    lambda: configured(lambda c: c.concurrency_width("a")),
    lambda: configured(lambda c: c.train.num_gradient_accumulation_steps(0)),
    lambda: configured(lambda c: c.train.num_gradient_accumulation_steps(5)),
    lambda: configured(lambda c: c.enable_auto_mixed_precision("yes")),
    lambda: configured(lambda c: c.random_seed("a")),
    lambda: configured(lambda c: c.sbp_selector("best")),
    lambda: configured(lambda c: c.optimizer_placement_optimization_mode("some")),
    lambda: configured(lambda c: setattr(c, "nothing", 3)),
    lambda: flow.config.gpu_device_num(-1),
    lambda: flow.config.gpu_device_num("2"),
    lambda: flow.config.gpu_device_num(99999999),
    lambda: flow.config.cpu_device_num(99999999),
    lambda: flow.config.cpu_device_num(0),
    lambda: flow.config.cpu_device_num(1.5),
    lambda: flow.config.machine_num(0),
    lambda: flow.config.machine_num(HUGE),
    lambda: flow.config.reserved_device_mem_mbyte("a"),
    lambda: flow.config.enable_tensor_float_32_compute("a"),
    lambda: flow.config.load_library("x.so"),
    lambda: flow.global_function("trian"),
    lambda: flow.global_function(3),
    lambda: flow.global_function(type="train", function_config=3),
    lambda: flow.global_function()(3),
    lambda: flow.global_function()(int),
    lambda: flow.global_function()(None),
]

ANNOTATIONS: list[Callable[[], Any]] = [
    lambda: tp.Numpy.Placeholder(3.5),
    lambda: tp.Numpy.Placeholder((2, "a")),
    lambda: tp.Numpy.Placeholder((2, -1)),
    lambda: tp.Numpy.Placeholder(None),
    lambda: tp.Numpy.Placeholder((2, 3), dtype="floot"),
    lambda: tp.Numpy.Placeholder((HUGE,)),
    lambda: annotated(int),
    lambda: annotated(tp.Numpy),
    lambda: annotated(PAIR, int),
    lambda: annotated("undefined"),
    lambda: annotated(PAIR, PAIR),
    lambda: annotated(tp.Numpy.Placeholder((2**63, 2)))(ONES),
    lambda: annotated(PAIR, tp.Numpy, lambda x: None)(ZEROS),
    lambda: annotated(PAIR, tp.Numpy, lambda x: [x])(ZEROS),
    lambda: annotated(PAIR, tp.Numpy, lambda x: ZEROS)(ZEROS),
    lambda: annotated(PAIR, None, lambda x: x)(ZEROS),
    lambda: annotated(PAIR, tp.Bundle[tp.Numpy], lambda x: {x})(ZEROS),
    lambda: annotated(PAIR, tp.Dict[str, tp.Numpy], lambda x: {1: x})(ZEROS),
    lambda: annotated(PAIR, tuple[tp.Numpy, tp.Numpy], lambda x: (x,))(ZEROS),
]

FEEDING: list[Callable[[], Any]] = [
    lambda: plain()(None),
    lambda: plain()("text"),
    lambda: plain()(3),
    lambda: plain()({}),
    lambda: plain()([]),
    lambda: plain()([[1, 2], [3]]),
    lambda: plain()([["a", "b", "c"]] * 2),
    lambda: plain()([[None] * 3] * 2),
    lambda: plain()([[2**70] * 3] * 2),
    lambda: plain()(ZEROS.astype(complex)),
    lambda: plain()(ZEROS.astype("M8[s]")),
    lambda: plain()(ZEROS[:1]),
    lambda: plain()(iter([1])),
    lambda: plain()(object()),
    lambda: plain()(foreign()),
    lambda: plain()(plain()),
    lambda: plain()(flow.global_function()(lambda x=FIXED: x)(ZEROS)),
    lambda: plain()(ZEROS, ZEROS),
    lambda: plain()(y=ZEROS),
    lambda: plain()(),
    lambda: annotated(tp.ListNumpy.Placeholder((2, 3)), tp.ListNumpy)(ZEROS),
    lambda: annotated(tp.ListNumpy.Placeholder((2, 3)), tp.ListNumpy)([None]),
    lambda: annotated(tp.ListListNumpy.Placeholder((2, 3)), tp.ListListNumpy)([ZEROS]),
    lambda: annotated(tp.ListListNumpy.Placeholder((2, 3)), tp.ListListNumpy)([[]]),
    lambda: annotated(tp.Numpy.Placeholder((2,), dtype=flow.int8))([1, 1000]),
    lambda: annotated(tp.Numpy.Placeholder((2,), dtype=flow.int32))([0.5, 1]),
    lambda: annotated(tp.Numpy.Placeholder((2,), dtype=flow.int32))([math.nan, 1]),
]

RESULTS: list[Callable[[], Any]] = [
    lambda: flow.global_function()(lambda x=FIXED: x)(ZEROS) + 1,
    lambda: flow.global_function()(lambda x=FIXED: x)(ZEROS)[0],
    lambda: float(flow.global_function()(lambda x=FIXED: x)(ZEROS)),
    lambda: np.asarray(flow.global_function()(lambda x=FIXED: x)(ZEROS)),
    lambda: flow.global_function()(lambda x=FIXED: x)(ZEROS)(3),
    lambda: flow.global_function()(lambda x=FIXED: (x, x))(ZEROS).numpy(),
    lambda: annotated(PAIR, tp.Callback[tp.Numpy])(ZEROS)(None),
    lambda: pickle.dumps(plain()),
    lambda: copy.deepcopy(plain()),
    lambda: copy.copy(plain()),
    lambda: pickle.dumps(variable()),
    lambda: copy.deepcopy(variable()),
    lambda: variable().__array__(copy=False),
    lambda: pickle.dumps(flow.global_function()(lambda x=FIXED: x)(ZEROS)),
    lambda: copy.copy(flow.global_function()(lambda x=FIXED: x)(ZEROS)),
]

OPTIMIZERS: list[Callable[[], Any]] = [
    lambda: train(lambda loss: flow.optimizer.SGD(None).minimize(loss)),
    lambda: train(lambda loss: flow.optimizer.SGD("0.1").minimize(loss)),
    lambda: train(lambda loss: flow.optimizer.SGD(math.nan).minimize(loss)),
    lambda: train(lambda loss: flow.optimizer.SGD(math.inf).minimize(loss)),
    lambda: train(lambda loss: flow.optimizer.SGD(HUGE).minimize(loss)),
    lambda: train(lambda loss: flow.optimizer.SGD([0.1]).minimize(loss)),
    lambda: train(lambda loss: flow.optimizer.SGD(0.1, momentum=math.nan).minimize(loss)),
    lambda: train(lambda loss: flow.optimizer.SGD(0.1).minimize(3)),
    lambda: train(lambda loss: flow.optimizer.SGD(0.1).minimize(None)),
    lambda: train(lambda loss: flow.optimizer.SGD(0.1).minimize([])),
    lambda: train(lambda loss: flow.optimizer.SGD(0.1).minimize([loss, loss])),
    lambda: train(lambda loss: flow.optimizer.SGD(0.1).minimize(foreign())),
    lambda: train(lambda loss: flow.optimizer.SGD(0.1).minimize(flow.math.equal(loss, loss))),
    lambda: train(lambda loss: flow.optimizer.SGD(0.1).minimize(flow.constant(1, flow.float))),
    lambda: train(lambda loss: None),
    lambda: train(lambda loss: flow.optimizer.Adam(0.1, beta1="a").minimize(loss)),
    lambda: train(lambda loss: flow.optimizer.Adam(0.1, epsilon=[1]).minimize(loss)),
    lambda: train(lambda loss: flow.optimizer.AdamW(0.1, weight_decay="a").minimize(loss)),
    lambda: train(lambda loss: flow.optimizer.AdamW(0.1, weight_decay=math.nan).minimize(loss)),
    lambda: train(
        lambda loss: flow.optimizer.AdamW(
            0.1, 0, weight_decay_includes=["("], weight_decay=1
        ).minimize(loss)
    ),
    lambda: train(
        lambda loss: flow.optimizer.AdamW(0.1, weight_decay=1, weight_decay_includes=3).minimize(
            loss
        )
    ),
    lambda: train(lambda loss: flow.optimizer.SGDW(0.1, weight_decay="a").minimize(loss)),
    lambda: train(lambda loss: flow.optimizer.RMSProp(0.1, decay_rate="a").minimize(loss)),
    lambda: train(lambda loss: flow.optimizer.LAMB(0.1, beta2=None).minimize(loss)),
    lambda: train(lambda loss: flow.optimizer.LARS(0.1, epsilon="a").minimize(loss)),
    lambda: flow.optimizer.grad_clipping.by_global_norm("a"),
    lambda: flow.optimizer.grad_clipping.by_global_norm(-1),
    lambda: flow.optimizer.grad_clipping.by_global_norm(math.nan),
    lambda: flow.optimizer.loss_scale.static_loss_scale("a"),
    lambda: flow.optimizer.loss_scale.dynamic_loss_scale("a"),
    lambda: flow.optimizer.warmup.linear("a", 0.1),
    lambda: flow.optimizer.warmup.constant(5, None),
    lambda: flow.optimizer.PiecewiseConstantScheduler([], []),
    lambda: flow.optimizer.PiecewiseConstantScheduler([], ["a"]),
    lambda: flow.optimizer.PiecewiseConstantScheduler(["a"], [1, 2]),
    lambda: flow.optimizer.PiecewiseConstantScheduler([3, 1], [1, 2, 3]),
    lambda: flow.optimizer.PiecewiseConstantScheduler(None, [1]),
    lambda: flow.optimizer.PiecewiseConstantScheduler([], 0.1),
    lambda: flow.optimizer.PiecewiseConstantScheduler([], [math.nan]),
    lambda: flow.optimizer.PiecewiseScalingScheduler(0.1, [1], "a"),
    lambda: flow.optimizer.CosineScheduler(0.1, 0),
    lambda: flow.optimizer.CosineScheduler(0.1, "a"),
    lambda: flow.optimizer.CosineScheduler(0.1, 10, alpha="a"),
    lambda: flow.optimizer.PolynomialScheduler(0.1, None),
    lambda: flow.optimizer.PolynomialScheduler(0.1, 10, power="a"),
    lambda: flow.optimizer.ExponentialScheduler(0.1, 10, "a"),
    lambda: flow.optimizer.InverseTimeScheduler(0.1, 10, None),
    lambda: flow.optimizer.NaturalExpScheduler(0.1, -1, 0.5),
    lambda: flow.optimizer.LinearCosineScheduler(0.1, "a"),
    lambda: train(
        lambda loss: flow.optimizer.SGD(flow.optimizer.CustomScheduler(3)).minimize(loss)
    ),
    lambda: train(
        lambda loss: flow.optimizer.SGD(flow.optimizer.CustomScheduler("no")).minimize(loss)
    ),
    lambda: flow.regularizers.l2("a"),
    lambda: flow.regularizers.l1_l2(None, "a"),
]

HERE = str(Path(__file__))

CHECKPOINTS: list[Callable[[], Any]] = [
    lambda: flow.checkpoint.get("/no/such/folder"),
    lambda: flow.checkpoint.get(None),
    lambda: flow.checkpoint.get(3),
    lambda: flow.checkpoint.get(HERE),
    lambda: flow.checkpoint.save(HERE),
    lambda: flow.checkpoint.save(None),
    lambda: flow.checkpoint.save(3),
    lambda: flow.checkpoint.save("/proc/nothing"),
    lambda: flow.checkpoint.save("model", var_dict=[1]),
    lambda: flow.checkpoint.save("model", var_dict={"a": "text"}),
    lambda: flow.checkpoint.save("model", var_dict={3: ZEROS}),
    lambda: flow.train.CheckPoint().load("/no/such/folder"),
    lambda: flow.train.CheckPoint().load(None),
    lambda: flow.train.CheckPoint().save(HERE),
    lambda: flow.train.SimpleCheckPointManager(HERE),
    lambda: flow.train.SimpleCheckPointManager(None),
    lambda: flow.load_variables(None),
    lambda: flow.load_variables([ZEROS]),
    lambda: (variable(), flow.load_variables({"v": np.zeros(7, np.float32)})),
    lambda: (variable(), flow.load_variables({"v": "text"})),
    lambda: (variable(), flow.load_variables({"v": None})),
    lambda: (variable(), flow.load_variables({"no": ZEROS}, ignore_mismatch=False)),
    lambda: flow.onnx.export(plain(), None, "x.onnx"),
    lambda: flow.onnx.export(3, "model", "x.onnx"),
    lambda: flow.summary.Graph(None),
]

TABLE = {
    "definition": DEFINITION,
    "scopes": SCOPES,
    "config": CONFIG,
    "annotations": ANNOTATIONS,
    "feeding": FEEDING,
    "results": RESULTS,
    "optimizers": OPTIMIZERS,
    "checkpoints": CHECKPOINTS,
}
CASES = [
    pytest.param(case, id=f"{name}-{case.__code__.co_firstlineno}")
    for name, cases in TABLE.items()
    for case in cases
]


@pytest.mark.parametrize("case", CASES)
def test_misuse_is_an_error_that_names_the_line(
    case: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FlowError) as caught:
        case()
    assert re.search(rf"{re.escape(__file__)}:\d+", str(caught.value)), str(caught.value)


def test_the_table_is_long_enough() -> None:
    assert len(CASES) >= 300
