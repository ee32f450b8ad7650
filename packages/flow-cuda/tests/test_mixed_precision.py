"""Mixed precision on GPUs: a whole step on the device, in either half type, without extra casts."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cuda_cases import core_registry, simulated_registry
from cuda_simulator import host_compiler

import oneflow as flow
import oneflow.typing as tp
from flow_core.frontend.session import session as sessions
from flow_core.ir.graph import Graph

needs_compiler = pytest.mark.skipif(
    host_compiler.compiler() is None, reason="no C++ compiler to run the kernels with"
)
HALVES = ("float16", "bfloat16")
BATCH, PLACES, WIDTH, HEADS = 2, 6, 16, 2
DYNAMIC = flow.optimizer.loss_scale.dynamic_loss_scale(2.0**10, 2)
POLICIES = {
    "none": None,
    "static": flow.optimizer.loss_scale.static_loss_scale(256.0),
    "dynamic": DYNAMIC,
}


@pytest.fixture(autouse=True)
def own_sessions() -> Iterator[None]:
    before = list(sessions._default)
    yield
    sessions._default[:] = before


def start() -> Any:
    return flow.random_uniform_initializer(-0.3, 0.3)


def dense(name: str, x: Any, width: int, activation: Any = None) -> Any:
    return flow.layers.dense(x, width, activation, kernel_initializer=start(), name=name)


def encoder(x: Any) -> Any:
    """Build a BERT layer: masked attention, two sums with layer normalization, gelu."""
    rows = flow.reshape(x, (BATCH * PLACES, WIDTH))

    def heads(name: str) -> Any:
        wide = flow.reshape(dense(name, rows, WIDTH), (BATCH, PLACES, HEADS, WIDTH // HEADS))
        return flow.transpose(wide, perm=[0, 2, 1, 3])

    scores = flow.matmul(heads("q"), heads("k"), transpose_b=True) * (WIDTH // HEADS) ** -0.5
    mask = flow.constant(0.0, flow.float, (1, 1, 1, PLACES))
    mixed = flow.matmul(flow.nn.softmax(scores + mask), heads("v"))
    mixed = flow.reshape(flow.transpose(mixed, perm=[0, 2, 1, 3]), (BATCH * PLACES, WIDTH))
    rows = flow.layers.layer_norm(rows + dense("o", mixed, WIDTH), name="n1")
    h = flow.math.gelu(dense("f1", rows, 2 * WIDTH))
    rows = flow.layers.layer_norm(rows + dense("f2", h, WIDTH), name="n2")
    return flow.nn.dropout(rows, rate=0.1, name="drop")


def block(x: Any) -> Any:
    """Build a residual block after a convolution with a bias."""
    images = flow.reshape(x, (BATCH, 3, 4, 8))

    def conv(name: str, t: Any, bias: bool = False) -> Any:
        return flow.layers.conv2d(
            t, 8, 3, padding="SAME", kernel_initializer=start(), use_bias=bias, name=name
        )

    def norm(name: str, t: Any) -> Any:
        return flow.layers.batch_normalization(t, axis=1, momentum=0.7, name=name)

    h = flow.nn.relu(conv("c0", images, True))
    h = flow.nn.relu(norm("n1", conv("c1", h)) + h)
    return flow.math.reduce_mean(flow.nn.avg_pool2d(h, 2, 2, "VALID", "NCHW"), axis=[2, 3])


NETS = {"encoder": encoder, "block": block}


def job_of(net: str, half: str, device: str = "gpu", policy: str = "none") -> Any:
    config = flow.function_config()
    config.enable_auto_mixed_precision(bool(half))
    if half:
        config.mixed_precision_data_type(half)

    @flow.global_function("train", config)
    def job(x: tp.Numpy.Placeholder((BATCH, PLACES, WIDTH))) -> tp.Numpy:
        with flow.scope.placement(device, "0:0"):
            logits = dense("last", NETS[net](x), 4)
            labels = flow.constant(1, flow.int32, (logits.shape[0],))
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = flow.math.reduce_mean(loss)
            schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.05])
            scaled = POLICIES[policy]
            flow.optimizer.SGD(schedule, momentum=0.9, loss_scale_policy=scaled).minimize(loss)
        return loss

    return job


def compiled(net: str, half: str, policy: str = "none") -> Any:
    sessions._default[:] = [sessions.Session(simulated_registry())]
    return job_of(net, half, policy=policy).compile()


def half_values(graph: Graph, half: str) -> list[str]:
    return [n for n, types in graph.types.items() if any(t.dtype.name == half for t in types)]


@pytest.mark.representative(
    r"\[(encoder-float16-none|block-float16-static|block-bfloat16-dynamic)\]",
    "each network, type and loss scale at least once",
)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("net", NETS)
def test_every_op_runs_on_the_device(net: str, half: str, policy: str) -> None:
    plan = compiled(net, half, policy).plan
    kernels = {task.kernel for task in plan.tasks if task.device.type == "gpu"}
    assert {task.device.type for task in plan.tasks} == {"gpu"}
    assert all(kernel.startswith("cuda.") for kernel in kernels), kernels


PRODUCTS = ("cuda_matmul", "cuda_matmul_sum", "matmul", "batch_matmul")


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("net", NETS)
def test_products_norms_and_attention_use_the_half_type(net: str, half: str) -> None:
    graph = compiled(net, half).graph
    other = next(h for h in HALVES if h != half)
    assert not half_values(graph, other)
    found = {op.type: op for op in graph.ops.values() if op.type.startswith("cudnn")}
    wanted = {
        "encoder": {"cudnn_attention", "cudnn_attention_grad"},
        "block": {"cudnn_conv", "cudnn_conv_data_grad", "cudnn_conv_filter_grad", "cudnn_norm"},
    }[net]
    assert wanted <= set(found)
    for op in (*found.values(), *(p for t in PRODUCTS for p in graph.of_type(t))):
        assert graph.type_of(op.inputs[0]).dtype.name == half, op.name


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("net", NETS)
def test_no_cast_is_redundant(net: str, half: str) -> None:
    """Nothing is cast twice to one type or cast back."""
    graph = compiled(net, half).optimized_logical
    casts = list(graph.of_type("cast"))
    targets = [(op.inputs[0], op.attrs["dtype"]) for op in casts]
    assert len(set(targets)) == len(targets)
    assert not any(graph.ops[op.inputs[0].op].type == "cast" for op in casts)
    weights = [op for op in casts if graph.ops[op.inputs[0].op].type == "variable"]
    assert len({op.inputs[0] for op in weights}) == len(weights)
    readers = graph.consumers()
    for op in casts:
        assert readers[op.output()] or op.output() in graph.results


@pytest.mark.parametrize("half", HALVES)
def test_bias_gradients_are_summed_in_their_type(half: str) -> None:
    """Without a float32 copy, and with the products that read the same values."""
    found = compiled("encoder", half)
    graph, fused = found.optimized_logical, found.graph
    sums = [op for op in graph.of_type("reduce_sum") if len(graph.input_types(op)[0].shape) == 2]
    assert {graph.type_of(op.inputs[0]).dtype.name for op in sums} == {half, "float32"}
    (last,) = (op for op in sums if graph.type_of(op.inputs[0]).dtype.name == "float32")
    assert graph.type_of(last.inputs[0]).shape[-1] == 4, "of the logits"
    assert {graph.type_of(o.inputs[0]).dtype.name for o in fused.of_type("cuda_matmul_sum")} == {
        half
    }


@pytest.mark.slow
@pytest.mark.representative("encoder-dynamic", "it has a loss scale and attention")
@needs_compiler
@pytest.mark.parametrize(
    ("net", "policy"), [("encoder", "none"), ("encoder", "dynamic"), ("block", "static")]
)
def test_bfloat16_training_matches_the_cpu(net: str, policy: str) -> None:
    x = np.random.default_rng(0).normal(size=(BATCH, PLACES, WIDTH)).astype(np.float32)
    losses = []
    for device, registry in (("gpu", simulated_registry()), ("cpu", core_registry())):
        sessions._default[:] = [sessions.Session(registry)]
        job = job_of(net, "bfloat16", device, policy)
        losses.append([job(x).item() for _ in range(5)])
    assert losses[0][0] > 1.02 * losses[0][-1]
    np.testing.assert_allclose(*losses, rtol=2e-2)
