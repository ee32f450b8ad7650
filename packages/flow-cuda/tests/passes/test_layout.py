"""NHWC on GPUs: which ops use it, unchanged results, and its cost in the plan."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cuda_cases import CudaKit, core_registry, simulated_registry
from cuda_simulator import host_compiler

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import ConfigError
from flow_core.frontend.session import session as sessions
from flow_core.ir.graph import Graph, tensor_type, verify
from flow_core.observe.text import plan_report
from flow_cuda.device.config import settings
from flow_cuda.kernels.move import matrix_transposition
from flow_cuda.passes.layout import wants_last

needs_compiler = pytest.mark.skipif(
    host_compiler.compiler() is None, reason="no C++ compiler to run the kernels with"
)
BATCH, SIDE = 2, 8


@pytest.fixture(autouse=True)
def own_sessions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("FLOW_CUDA_LAYOUT", raising=False)
    before = list(sessions._default)
    yield
    sessions._default[:] = before


class TestKernels(CudaKit):
    """Some of the samples are transposed tile by tile."""

    ops = ("cuda_reorder", "transpose")
    dtypes = ("float32", "bfloat16")
    preloaded = False


@pytest.mark.parametrize("seed", range(30))
def test_tiled_transposition_matches_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 4, rng.integers(1, 6)).tolist())
    perm = tuple(rng.permutation(len(shape)).tolist())
    found = matrix_transposition(shape, perm)
    if found is not None:
        x = np.arange(np.prod(shape)).reshape(shape)
        matrices = x.reshape(found).swapaxes(1, 2)
        np.testing.assert_array_equal(matrices.reshape(-1), x.transpose(perm).reshape(-1))


def residual(x: Any, conv: Any, norm: Any) -> Any:
    """Build a stem, a block with a sum and a spatial mean, as in ResNets."""
    h = flow.nn.max_pool2d(flow.nn.relu(norm("n0", conv(x, 64, 3, "c0"))), 2, 2, "SAME")
    side = norm("n1", conv(h, 64, 1, "c1"))
    h = flow.nn.relu(norm("n2", conv(h, 64, 3, "c2")))
    h = flow.nn.relu(norm("n3", conv(h, 64, 3, "c3")) + side)
    return flow.math.reduce_mean(h, axis=[2, 3])


def dense_block(x: Any, conv: Any, norm: Any) -> Any:
    """Build parallel layers, as in DenseNets and Inception, and an upsampling path."""
    h = conv(x, 8, 3, "c0")
    h = flow.concat([h, conv(h, 4, 3, "c1"), flow.nn.avg_pool2d(h, 3, 1, "SAME")], axis=1)
    start = flow.random_uniform_initializer(-0.3, 0.3)
    w = flow.get_variable("up", (20, 4, 2, 2), initializer=start)
    h = flow.nn.conv2d_transpose(h, w, (BATCH, 4, 2 * SIDE, 2 * SIDE), strides=2)
    return flow.reshape(flow.math.sigmoid(h), (BATCH, -1))


def job_of(
    body: Any,
    device: str = "gpu",
    half: str = "bfloat16",
    kind: str = "train",
    places: str = "0:0",
    **wishes: Any,
) -> Any:
    """Build a job that trains a small network in a half type, or in float32 if it is empty."""
    config = flow.function_config()
    config.enable_auto_mixed_precision(bool(half))
    if half:
        config.mixed_precision_data_type(half)
    for name, value in wishes.items():
        getattr(config, name)(value)
    start = flow.random_uniform_initializer(-0.1, 0.1)

    def conv(x: Any, filters: int, size: int, name: str) -> Any:
        return flow.layers.conv2d(
            x, filters, size, padding="SAME", kernel_initializer=start, use_bias=False, name=name
        )

    def norm(name: str, x: Any) -> Any:
        return flow.layers.batch_normalization(x, axis=1, momentum=0.7, name=name)

    @flow.global_function(kind, config)
    def job(x: tp.Numpy.Placeholder((BATCH, 3, SIDE, SIDE))) -> tp.Numpy:
        with flow.scope.placement(device, places):
            rows = body(x, conv, norm)
            if kind == "predict":
                return rows
            logits = flow.layers.dense(rows, 4, kernel_initializer=start, name="last")
            loss = flow.math.reduce_mean(flow.math.square(logits - 0.5))
            schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.005])
            flow.optimizer.SGD(schedule, momentum=0.9).minimize(loss)
        return loss

    return job


def graph_of(*args: Any, **wishes: Any) -> Graph:
    sessions._default[:] = [sessions.Session(simulated_registry())]
    graph = job_of(*args, **wishes).compile().graph
    verify(graph)
    return graph  # type: ignore[no-any-return]


def formats(graph: Graph) -> Counter[str]:
    """Count the data formats of convolution and pooling ops."""
    return Counter(
        str(op.attrs["data_format"]) for op in graph.ops.values() if "data_format" in op.attrs
    )


def reasons(graph: Graph) -> list[str]:
    return sorted(str(op.attrs["reason"]) for op in graph.of_type("cuda_reorder"))


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_residual_network_is_transposed_at_its_borders_only(half: str) -> None:
    graph = graph_of(residual, half=half)
    assert set(formats(graph)) == {"channels_last"}
    norms = [op.attrs["axis"] for op in graph.ops.values() if op.type.startswith("cudnn_norm")]
    assert norms == [3] * 8
    activations = [r for r in reasons(graph) if "takes" in r]
    assert len(activations) == 1 + 3, "the images, and the weights of windows larger than 1 x 1"
    assert len(reasons(graph)) - len(activations) == 3, "gradients of these"


def test_parallel_branches_follow() -> None:
    graph = graph_of(dense_block)
    assert set(formats(graph)) == {"channels_last"}
    assert {op.attrs["axis"] for t in ("concat", "split") for op in graph.of_type(t)} == {3}
    into = [r for r in reasons(graph) if r.endswith("takes NCHW")]
    assert len(into) == 1, "the flattening"


def test_float32_uses_nhwc_if_rounding_is_allowed_and_channels_suffice() -> None:
    graph = graph_of(residual, half="")
    assert formats(graph)["channels_first"] > 0, "the first convolution has three channels"
    last = [op for op in graph.of_type("cudnn_conv") if op.attrs["data_format"] == "channels_last"]
    assert len(last) == 3
    assert set(formats(graph_of(dense_block, half=""))) == {"channels_first"}
    sessions._default[:] = [sessions.Session(simulated_registry())]
    flow.config.enable_tensor_float_32_compute(False)
    exact = job_of(residual, half="").compile().graph
    assert set(formats(exact)) == {"channels_first"}
    assert not reasons(exact)


@pytest.mark.parametrize(
    ("dtype", "filters", "channels", "tf32", "wanted"),
    [
        ("float16", 3, 1, False, True), ("bfloat16", 64, 64, False, True),
        ("float32", 64, 64, True, True), ("float32", 64, 64, False, False),
        ("float32", 32, 32, True, True), ("float32", 64, 24, True, False),
        ("float32", 24, 64, True, False), ("float64", 64, 64, True, False),
    ],
)  # fmt: skip
def test_conditions_for_nhwc(
    dtype: str, filters: int, channels: int, tf32: bool, wanted: bool
) -> None:
    weights = tensor_type((filters, channels, 3, 3), as_dtype(dtype))
    assert wants_last(weights, tf32) is wanted
    assert wants_last(weights, tf32, always=True)


def test_setting_applies_to_all_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOW_CUDA_LAYOUT", "nchw")
    assert set(formats(graph_of(residual))) == {"channels_first"}
    monkeypatch.setenv("FLOW_CUDA_LAYOUT", "nhwc")
    assert set(formats(graph_of(dense_block, half=""))) == {"channels_last"}
    monkeypatch.setenv("FLOW_CUDA_LAYOUT", "NHWC ")
    with pytest.raises(ConfigError, match="auto or nhwc or nchw") as caught:
        settings()
    assert "FLOW_CUDA_LAYOUT" in str(caught.value)


def test_nhwc_is_not_used_without_cudnn() -> None:
    assert set(formats(graph_of(residual, enable_cudnn=False))) == {"channels_first"}


def test_plan_lists_transpositions() -> None:
    sessions._default[:] = [sessions.Session(simulated_registry())]
    text = plan_report(job_of(residual))
    changes = text.split("changes of layout")[1].split("\n\n")[0]
    assert "takes NHWC" in changes
    assert f"{2 * BATCH * 3 * SIDE * SIDE:,}" in changes, "bytes of the images"


@pytest.mark.slow
@pytest.mark.representative(
    "residual", "sums of feature maps, as in ResNet; the other network concatenates them"
)
@needs_compiler
@pytest.mark.parametrize("body", [residual, dense_block])
def test_training_matches_nchw_and_the_cpu(body: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(1).normal(size=(BATCH, 3, SIDE, SIDE)).astype(np.float32)
    losses = []
    for device, registry, layout in (
        ("gpu", simulated_registry(), "auto"),
        ("gpu", simulated_registry(), "nchw"),
        ("cpu", core_registry(), "auto"),
    ):
        monkeypatch.setenv("FLOW_CUDA_LAYOUT", layout)
        sessions._default[:] = [sessions.Session(registry)]
        job = job_of(body, device)
        losses.append([job(x).item() for _ in range(4)])
    assert losses[0][0] > 1.05 * losses[0][-1]
    np.testing.assert_allclose(losses[0], losses[1], rtol=2e-2)
    np.testing.assert_allclose(losses[0], losses[2], rtol=2e-2)


@pytest.mark.slow
@needs_compiler
def test_devices_transpose_their_own_parts() -> None:
    """Each transposes its own images and weights; gradients are reduced in the program's layout."""
    x = np.random.default_rng(1).normal(size=(BATCH, 3, SIDE, SIDE)).astype(np.float32)
    losses = []
    for count in (1, 2):
        sessions._default[:] = [sessions.Session(simulated_registry())]
        flow.config.gpu_device_num(count)
        job = job_of(dense_block, places=f"0:0-{count - 1}")
        losses.append([job(x).item() for _ in range(3)])
        graph = job.compile().graph
        verify(graph)
        assert set(formats(graph)) == {"channels_last"}
        reordered = list(graph.of_type("cuda_reorder"))
        assert {op.placement.size for op in reordered} == {1}
        assert len({op.placement for op in reordered}) == count
    np.testing.assert_allclose(*losses, rtol=1e-2)


@needs_compiler
def test_float32_computes_the_same_values_in_both_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are returned in the layout of the program."""
    x = np.random.default_rng(1).normal(size=(BATCH, 3, SIDE, SIDE)).astype(np.float32)

    def images(given: Any, conv: Any, norm: Any) -> Any:
        return flow.nn.relu(conv(conv(given, 6, 3, "a"), 5, 3, "b"))

    found = []
    for layout in ("nchw", "nhwc"):
        monkeypatch.setenv("FLOW_CUDA_LAYOUT", layout)
        sessions._default[:] = [sessions.Session(simulated_registry())]
        flow.config.enable_tensor_float_32_compute(False)
        found.append(job_of(images, half="", kind="predict")(x))
    assert found[0].shape == (BATCH, 5, SIDE, SIDE)
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)
