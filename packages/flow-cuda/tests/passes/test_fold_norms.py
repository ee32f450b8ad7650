"""Batch normalization for inference: folded into weights and biases, or fused with readers."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cuda_cases import core_registry, simulated_registry
from cuda_simulator import host_compiler
from cuda_simulator.cudnn import SimulatedCudnn
from cuda_simulator.hardware import simulated_plans

import oneflow as flow
import oneflow.typing as tp
from flow_core.frontend.session import session as sessions
from flow_core.ir.graph import Attrs, Graph, Op, rebuild, verify
from flow_core.passes.base import PassContext
from flow_cuda.passes.convolutions import Convolutions
from flow_cuda.passes.fold_norms import configured
from flow_cuda.passes.plain_norms import PlainNorms

needs_compiler = pytest.mark.skipif(
    host_compiler.compiler() is None, reason="no C++ compiler to run the kernels with"
)
BATCH, SIDE, WIDTH = 2, 5, 8


@pytest.fixture(autouse=True)
def own_sessions() -> Iterator[None]:
    before = list(sessions._default)
    yield
    sessions._default[:] = before


def shape_of(form: str) -> tuple[int, ...]:
    return (BATCH, 3, SIDE, SIDE) if form == "NCHW" else (BATCH, SIDE, SIDE, 3)


def conv(t: Any, form: str, name: str, bias: bool, size: int = 3, width: int = WIDTH) -> Any:
    start = flow.random_uniform_initializer(-0.4, 0.4)
    return flow.layers.conv2d(
        t, width, size, padding="SAME", data_format=form, use_bias=bias, name=name,
        kernel_initializer=start, bias_initializer=start,
    )  # fmt: skip


def norm(t: Any, form: str, name: str) -> Any:
    """Normalize with variables that all affect the result."""
    axis, start = (1 if form == "NCHW" else 3), flow.random_uniform_initializer(0.4, 1.6)
    return flow.layers.batch_normalization(
        t, axis=axis, epsilon=0.05, name=name, beta_initializer=start, gamma_initializer=start,
        moving_mean_initializer=start, moving_variance_initializer=start,
    )  # fmt: skip


def plain(x: Any, form: str) -> Any:
    return norm(conv(x, form, "c", False), form, "n")


def with_bias_and_relu(x: Any, form: str) -> Any:
    return flow.nn.relu(norm(conv(x, form, "c", True), form, "n"))


def residual(x: Any, form: str) -> Any:
    side = norm(conv(x, form, "s", False, 1), form, "m")
    return flow.nn.relu(norm(conv(x, form, "c", False), form, "n") + side)


def without_relu(x: Any, form: str) -> Any:
    return norm(conv(x, form, "c", False), form, "n") + conv(x, form, "s", True, 1)


def alone(x: Any, form: str) -> Any:
    return flow.nn.relu(norm(flow.math.sigmoid(x), form, "n"))


def read_twice(x: Any, form: str) -> Any:
    h = conv(x, form, "c", False)
    return norm(h, form, "n") + h


def heavy(x: Any, form: str) -> Any:
    """Build a network with more weights than results."""
    h = conv(x, form, "c", False, 5, 64)
    return norm(h, form, "n")


NETS = {
    f.__name__: f
    for f in (plain, with_bias_and_relu, residual, without_relu, alone, read_twice, heavy)
}


# with mixed precision, a norm before a convolution has the half type
def job_of(net: str, device: str = "gpu", form: str = "NCHW", amp: bool = False, **wishes: Any):  # type: ignore[no-untyped-def]
    config = flow.function_config()
    config.enable_auto_mixed_precision(amp)
    for name, value in wishes.items():
        getattr(config, name)(value)

    @flow.global_function("predict", config)
    def job(x: tp.Numpy.Placeholder(shape_of(form))) -> tp.Numpy:
        with flow.scope.placement(device, "0:0"):
            made = NETS[net](x, form)
            return conv(made, form, "last", False, 1) if amp else made

    return job


def fresh() -> None:
    sessions._default[:] = [sessions.Session(simulated_registry())]


def counts(graph: Graph) -> dict[str, int]:
    """Count the remaining and the joined ops, with the number of inputs of convolutions."""
    found: dict[str, int] = {}
    for op in graph.ops.values():
        if op.type in ("normalization", "bias_add", "conv2d") or op.type.startswith("cudnn"):
            inputs = len(op.inputs) if op.type == "cudnn_conv" else ""
            name = f"{op.type} {inputs} {op.attrs.get('activation', '')}"
            found[" ".join(name.split())] = found.get(" ".join(name.split()), 0) + 1
    return found


EXPECTED = {
    "plain": {"cudnn_conv 3": 1},
    "with_bias_and_relu": {"cudnn_conv 3 relu": 1},
    "residual": {"cudnn_conv 4 relu": 1, "cudnn_conv 3": 1},
    "without_relu": {"cudnn_conv 4": 1, "cudnn_conv 3": 1},
    "alone": {},
    "read_twice": {"cudnn_conv 2": 1},
    "heavy": {"cudnn_conv 2": 1},
}


@pytest.mark.parametrize("form", ["NCHW", "NHWC"])
@pytest.mark.parametrize("net", NETS)
def test_norms_are_folded(net: str, form: str) -> None:
    fresh()
    graph = job_of(net, form=form).compile().graph
    verify(graph)
    assert counts(graph) == EXPECTED[net]


def test_cast_includes_the_factor() -> None:
    """For any number of weights: float32 weights are cast to the half type anyway."""
    fresh()
    graph = job_of("heavy", amp=True).compile().graph
    assert counts(graph) == {"cudnn_conv 3": 1, "cudnn_conv 2": 1}
    groups = [op for op in graph.of_type("fused") if len(graph.types[op.name][0].shape) == 4]
    weights = [t for op in groups for t in graph.types[op.name] if t.shape[0] == 64]
    assert [str(t.dtype) for t in weights] == ["float16"]


def test_folding_does_not_require_a_library() -> None:
    fresh()
    graph = job_of("residual", enable_cudnn=False).compile().graph
    assert counts(graph) == {"conv2d": 2, "bias_add": 2}


def test_norm_and_relu_form_one_kernel() -> None:
    fresh()
    graph = job_of("alone").compile().graph
    wide = [
        op
        for op in graph.ops.values()
        if op.type == "fused" and len(graph.types[op.name][0].shape) == 4
    ]
    assert [op.placement.device_type for op in wide] == ["gpu"]


def training(device: str, freeze: bool):  # type: ignore[no-untyped-def]
    """Build a job that trains, with a second norm in inference mode."""

    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder(shape_of("NCHW"))) -> tp.Numpy:
        with flow.scope.placement(device, "0:0"):
            h = norm(conv(x, "NCHW", "c", False), "NCHW", "n")
            if freeze:
                axis = {"axis": 1, "trainable": False, "name": "f"}
                h = flow.layers.batch_normalization(conv(h, "NCHW", "d", False), **axis)
            loss = flow.math.reduce_mean(flow.math.square(h - 0.5))
            schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(schedule, momentum=0).minimize(loss)
        return loss

    return train


def test_trained_norms_are_kept() -> None:
    fresh()
    graph = training("gpu", freeze=True).compile().graph
    found = counts(graph)
    assert found["normalization"] == 1, "its gradient reads the statistics"
    assert found["cudnn_norm"] == 1


def test_norms_of_variables_that_change_within_the_job_are_kept() -> None:
    """A norm for inference with variables that a norm for training changes."""
    fresh()

    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder(shape_of("NCHW"))) -> tp.Numpy:
        with flow.scope.placement("gpu", "0:0"):
            h = norm(conv(x, "NCHW", "c", False), "NCHW", "n")
            loss = flow.math.reduce_mean(flow.math.square(h))
            schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(schedule, momentum=0).minimize(loss)
        return loss

    graph = job.compile().graph
    specs = simulated_registry().ops
    (trained,) = job.compile().logical.of_type("normalization")
    logical = job.compile().logical
    still = Op("still", "normalization", trained.inputs,
               Attrs({**trained.attrs, "training": False}), trained.placement)  # fmt: skip
    types = {**logical.types, "still": logical.types[trained.name]}
    both = rebuild(logical, [*logical.ops.values(), still], types=types)
    for each in (configured(), PlainNorms()):
        assert each.apply(both, PassContext(specs)) is both
    assert graph.of_type("cudnn_norm")


@pytest.mark.representative(
    r"\[without_relu-NHWC-True\]", "16-bit weights, which are scaled before their cast"
)
@needs_compiler
@pytest.mark.parametrize(("form", "amp"), [("NCHW", False), ("NHWC", True)])
@pytest.mark.parametrize("net", NETS)
def test_results_match_the_cpu(net: str, form: str, amp: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape_of(form)).astype(np.float32)
    found = []
    for device, registry in (("gpu", simulated_registry()), ("cpu", core_registry())):
        sessions._default[:] = [sessions.Session(registry)]
        found.append(job_of(net, device, form, amp)(x))
    tolerance = 2e-2 if amp else 2e-5
    np.testing.assert_allclose(*found, rtol=tolerance, atol=tolerance)


@needs_compiler
def test_predictions_use_updated_variables() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape_of("NCHW")).astype(np.float32)
    found = []
    for device, registry in (("gpu", simulated_registry()), ("cpu", core_registry())):
        sessions._default[:] = [sessions.Session(registry)]
        predict, train = job_of("plain", device), training(device, freeze=False)
        first = predict(x)
        for _ in range(2):
            train(x)
        found.append((first, predict(x)))
    assert np.abs(found[0][0] - found[0][1]).max() > 0.01
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-4)


def test_library_without_sums_runs_the_rest() -> None:
    """A plan with bias, sum and relu is tried first, then one with the bias alone."""
    fresh()
    compiled = job_of("residual").compile()
    context = PassContext(simulated_registry().ops)
    folded = configured().apply(compiled.logical, context)
    verify(folded)
    refused = ["conv_fprop bias add relu", "conv_fprop bias add"]
    plans = simulated_plans(SimulatedCudnn(refused))
    made = Convolutions(lambda: plans).apply(folded, context)
    verify(made)
    assert counts(made) == {"cudnn_conv 3": 2}
