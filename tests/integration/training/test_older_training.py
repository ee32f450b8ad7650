"""Training by ``function_config.train``: the same numbers as by ``flow.optimizer``."""

from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import ConfigError, JobError

o = flow.optimizer
RATE = 0.1


def constant() -> Any:
    return o.PiecewiseConstantScheduler([], [RATE])


EQUAL = {
    "naive": ({"naive_conf": {}}, lambda: o.SGD(constant(), momentum=0)),
    "momentum": ({"momentum_conf": {"beta": 0.5}}, lambda: o.SGD(constant(), momentum=0.5)),
    "adam": ({"adam_conf": {"epsilon": 1e-6}}, lambda: o.Adam(constant(), epsilon=1e-6)),
    "corrected adam": (
        {"adam_conf": {"do_bias_correction": True}},
        lambda: o.Adam(constant(), do_bias_correction=True),
    ),
    "lazy adam": ({"lazy_adam_conf": {"beta1": 0.8}}, lambda: o.LazyAdam(constant(), beta1=0.8)),
    "rmsprop": ({"rmsprop_conf": {}}, lambda: o.RMSProp(constant())),
    "centered": (
        {"rmsprop_conf": {"centered": True, "decay_rate": 0.9}},
        lambda: o.RMSProp(constant(), 0.9, centered=True),
    ),
    "lars": (
        {"lars_conf": {"lars_coefficient": 0.1}},
        lambda: o.LARS(constant(), lars_coefficient=0.1),
    ),
    "lamb": (
        {"lamb_conf": {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-6}},
        lambda: o.LAMB(constant(), beta1=0.9, beta2=0.99, epsilon=1e-6),
    ),
    "clip": (
        {"naive_conf": {}, "clip_conf": {"clip_by_global_norm": {"clip_norm": 0.01}}},
        lambda: o.SGD(constant(), momentum=0, grad_clipping=o.grad_clipping.by_global_norm(0.01)),
    ),
    "weight decay": (
        {
            "adam_conf": {},
            "weight_decay_conf": {"weight_decay_rate": 0.2, "includes": {"pattern": ["^w$"]}},
        },
        lambda: o.AdamW(constant(), weight_decay=0.2, weight_decay_includes=["^w$"]),
    ),
    "exponential": (
        {
            "naive_conf": {},
            "learning_rate_decay": {"exponential_conf": {"decay_batches": 2, "decay_rate": 0.5}},
        },
        lambda: o.SGD(o.ExponentialScheduler(RATE, 2, 0.5), momentum=0),
    ),
    "natural": (
        {
            "naive_conf": {},
            "learning_rate_decay": {
                "natural_exp_conf": {"decay_batches": 2, "decay_rate": 0.5, "staircase": True}
            },
        },
        lambda: o.SGD(o.NaturalExpScheduler(RATE, 2, 0.5, True), momentum=0),
    ),
    "inverse": (
        {
            "naive_conf": {},
            "learning_rate_decay": {"inverse_time_conf": {"decay_batches": 2, "decay_rate": 0.5}},
        },
        lambda: o.SGD(o.InverseTimeScheduler(RATE, 2, 0.5), momentum=0),
    ),
    "piecewise": (
        {
            "naive_conf": {},
            "learning_rate_decay": {
                "piecewise_constant_conf": {"boundaries": [1, 3], "values": [0.1, 0.2, 0.3]}
            },
        },
        lambda: o.SGD(o.PiecewiseConstantScheduler([1, 3], [0.1, 0.2, 0.3]), momentum=0),
    ),
    "scaling": (
        {
            "naive_conf": {},
            "learning_rate_decay": {
                "piecewise_scaling_conf": {"boundaries": [2], "scales": [1.0, 0.1]}
            },
        },
        lambda: o.SGD(o.PiecewiseScalingScheduler(RATE, [2], [0.1]), momentum=0),
    ),
    "polynomial": (
        {
            "naive_conf": {},
            "learning_rate_decay": {"polynomial_conf": {"decay_batches": 3, "power": 2.0}},
        },
        lambda: o.SGD(o.PolynomialScheduler(RATE, 3, power=2.0), momentum=0),
    ),
    "linear cosine": (
        {"naive_conf": {}, "learning_rate_decay": {"linear_cosine_conf": {"decay_batches": 5}}},
        lambda: o.SGD(o.LinearCosineScheduler(RATE, 5), momentum=0),
    ),
    "cosine with warm-up": (
        {
            "naive_conf": {},
            "learning_rate_decay": {"cosine_conf": {"decay_batches": 5, "alpha": 0.1}},
            "warmup_conf": {"linear_conf": {"warmup_batches": 2, "start_multiplier": 0.25}},
        },
        lambda: o.SGD(o.CosineScheduler(RATE, 5, 0.1, o.warmup.linear(2, 0.25)), momentum=0),
    ),
    "constant warm-up": (
        {
            "naive_conf": {},
            "warmup_conf": {"constant_conf": {"warmup_batches": 2, "multiplier": 0.5}},
        },
        lambda: o.SGD(
            o.PiecewiseConstantScheduler([], [RATE], o.warmup.constant(2, 0.5)), momentum=0
        ),
    ),
}  # fmt: skip


def network() -> Any:
    w = flow.get_variable("w", shape=(3, 4), initializer=flow.random_normal_initializer())
    v = flow.get_variable("v", shape=(4,), initializer=flow.ones_initializer())
    return flow.math.square(w * v) + v


def values(job: Any) -> Any:
    for _ in range(6):
        job()
    return {name: v.numpy() for name, v in flow.get_all_variables().items() if len(name) == 1}


@pytest.mark.parametrize("name", EQUAL)
def test_both_ways_give_the_same_numbers(name: str) -> None:
    conf, optimizer = EQUAL[name]
    config = flow.function_config()
    config.train.primary_lr(RATE)
    config.train.model_update_conf(conf)

    @flow.global_function(config)
    def older() -> tp.Numpy:
        loss = network()
        flow.losses.add_loss(loss)
        return loss

    first = values(older)
    flow.clear_default_session()

    @flow.global_function(type="train")
    def newer() -> tp.Numpy:
        loss = network()
        optimizer().minimize(loss)
        return loss

    second = values(newer)
    for key in ("w", "v"):
        np.testing.assert_allclose(first[key], second[key], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("conf", "rate", "text"),
    [
        ({}, 0.1, r"no function_config\.train\.model_update_conf"),
        ({"naive_conf": {}}, None, r"no function_config\.train\.primary_lr"),
        ({"sgd_conf": {}}, 0.1, "one of naive_conf"),
        ({"naive_conf": {}, "adam_conf": {}}, 0.1, "one of naive_conf"),
        ({"momentum_conf": {"betas": 0.9}}, 0.1, "the field 'betas'(.|\n)*did you mean beta"),
        ({"lamb_conf": {"beta1": 0.9}}, 0.1, "no field 'beta2'"),
        ({"naive_conf": {}, "warmup_conf": {}}, 0.1, "one of constant_conf, linear_conf"),
        ({"naive_conf": {}, "clip_conf": {"clip_by_global_norm": 1}}, 0.1, "a dict"),
    ],
)
def test_wrong_settings_of_training(conf: Any, rate: float | None, text: str) -> None:
    config = flow.function_config()
    if rate is not None:
        config.train.primary_lr(rate)
    config.train.model_update_conf(conf)

    @flow.global_function(type="train", function_config=config)
    def job() -> None:
        flow.losses.add_loss(network())

    with pytest.raises(JobError, match=text) as caught:
        job()
    assert caught.value.at is not None
    assert caught.value.at.file == __file__


def test_settings_of_the_session_that_mean_nothing_or_cannot_be() -> None:
    flow.config.enable_debug_mode(True)
    assert flow.env.current_resource()["enable_debug_mode"] is True
    with pytest.raises(NotImplementedError, match="plugin"):
        flow.config.load_library("my_ops.so")
    with pytest.raises(NotImplementedError, match="install the plugin flow-yolo"):
        flow.config.load_library("/anywhere/liboneflow_yolov3.so")
    with pytest.raises(ConfigError, match="an integer from 1 to"):
        flow.config.cpu_device_num(0)


def test_eager_mode_defines_the_job_anew_for_every_step() -> None:
    """The numbers are those of one job that is called as often, dropout and steps included."""
    feed = np.ones((4, 3), np.float32)

    def define() -> Any:
        @flow.global_function(type="train")
        def fit(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
            start = flow.random_normal_initializer(stddev=0.1)
            y = flow.nn.dropout(flow.layers.dense(x, 2, kernel_initializer=start), rate=0.5)
            rate = flow.optimizer.PiecewiseConstantScheduler([2], [0.1, 0.5])
            flow.optimizer.SGD(rate, momentum=0.9).minimize(y)
            return y

        return fit

    one = define()
    expected = [one(feed) for _ in range(5)]
    flow.clear_default_session()
    flow.enable_eager_execution(True)
    assert flow.eager_execution_enabled()
    for wanted in expected:
        np.testing.assert_array_equal(define()(feed), wanted)
    flow.clear_default_session()
    assert not flow.eager_execution_enabled()
