"""Whole programs on a simulated GPU match the CPU."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_cases import Collector, core_registry, simulated_registry
from cuda_simulator import host_compiler, plugin

import oneflow as flow
import oneflow.typing as tp
from flow_core.api.serving import inference_session
from flow_core.base.errors import HostFallbackWarning, KernelNotFoundError
from flow_core.frontend.session import session as sessions
from flow_core.observe.text import plan_report
from flow_core.ops.system.python_kernel import PythonOp, known
from flow_core.plan import Plan
from flow_core.sharding.topology import Device
from flow_cuda.driver.gpu import GpuDriver

pytestmark = pytest.mark.skipif(
    host_compiler.compiler() is None, reason="no C++ compiler to run the kernels with"
)
REGISTRIES = {"gpu": simulated_registry(), "cpu": core_registry()}
RNG = np.random.default_rng(1)
BATCH = 8
IMAGES = RNG.uniform(0, 1, (BATCH, 1, 12, 12)).astype(np.float32)
ROWS = RNG.normal(0, 1, (BATCH, 10)).astype(np.float32)
LABELS = RNG.integers(0, 5, BATCH).astype(np.int32)


@pytest.fixture(autouse=True)
def own_sessions() -> Iterator[None]:
    before = list(sessions._default)
    yield
    sessions._default[:] = before


def minimize(loss: Any, kind: str) -> None:
    schedule = flow.optimizer.CosineScheduler(0.05, 20)
    if kind == "adam":
        flow.optimizer.Adam(schedule, do_bias_correction=True).minimize(loss)
    else:
        flow.optimizer.SGD(schedule, momentum=0.9).minimize(loss)


def mlp(device: str) -> Callable[..., Any]:
    @flow.global_function("train")
    def job(
        x: tp.Numpy.Placeholder((BATCH, 10)), y: tp.Numpy.Placeholder((BATCH,), flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement(device, "0:0"):
            draw = flow.random_normal_initializer(stddev=0.3)
            x = flow.layers.dense(x, 16, flow.math.gelu, kernel_initializer=draw, name="first")
            x = flow.layers.layer_norm(x, name="norm")
            x = flow.nn.dropout(x, rate=0.3, name="drop")
            logits = flow.layers.dense(x, 5, name="last")
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = flow.math.reduce_mean(loss)
            minimize(loss, "adam")
        return loss

    return lambda: job(ROWS, LABELS)


def lenet(device: str) -> Callable[..., Any]:
    @flow.global_function("train")
    def job(
        x: tp.Numpy.Placeholder((BATCH, 1, 12, 12)), y: tp.Numpy.Placeholder((BATCH,), flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement(device, "0:0"):
            x = flow.layers.conv2d(x, 4, 3, padding="SAME", activation=flow.nn.relu, name="c1")
            x = flow.nn.max_pool2d(x, 2, 2, "VALID", "NCHW")
            x = flow.layers.conv2d(x, 6, 3, padding="VALID", name="c2")
            x = flow.layers.batch_normalization(x, axis=1, name="bn")
            x = flow.nn.avg_pool2d(flow.nn.relu(x), 2, 2, "VALID", "NCHW")
            logits = flow.layers.dense(flow.reshape(x, (BATCH, -1)), 5, name="last")
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = flow.math.reduce_mean(loss)
            minimize(loss, "momentum")
        return loss

    return lambda: job(IMAGES, LABELS)


def table(device: str) -> Callable[..., Any]:
    @flow.global_function("train")
    def job(y: tp.Numpy.Placeholder((BATCH,), flow.int32)) -> tp.Numpy:
        with flow.scope.placement(device, "0:0"):
            rows = flow.get_variable("table", (9, 4), initializer=flow.random_uniform_initializer())
            found = flow.gather(rows, y)
            loss = flow.math.reduce_mean(flow.math.square(found - 1))
            minimize(loss, "momentum")
        return loss

    return lambda: job(LABELS)


def run(make: Callable[[str], Callable[..., Any]], device: str, steps: int = 4) -> list[float]:
    sessions._default[:] = [sessions.Session(REGISTRIES[device])]
    step = make(device)
    return [step().item() for _ in range(steps)]


@pytest.mark.representative(
    r"\[(mlp|table)\]",
    "products, and a lookup of rows; cudnn/test_convolutions.py trains convolutions",
)
@pytest.mark.parametrize("make", [mlp, lenet, table], ids=["mlp", "lenet", "table"])
def test_training_matches_the_cpu(
    make: Callable[[str], Callable[..., Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All kernels of a program are compiled at once, after a run that only collects them."""
    collected = Collector()
    with monkeypatch.context() as patch:
        patch.setattr(plugin, "compiler", lambda: collected)
        run(make, "gpu", steps=1)
    plugin.compiler().preload(collected.found.values())
    expected, found = run(make, "cpu"), run(make, "gpu")
    assert expected[0] != expected[-1]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def scanned(x: Any, units: int, name: str) -> Any:
    """Return a loop over axis 1 that contains a branch, for which GPUs have no kernels."""

    def body(state: Any, element: Any) -> Any:
        new = flow.layers.dense(flow.concat([state, element], 1), units, name=name)
        state = flow.cond(flow.math.reduce_sum(new) > 0, lambda: flow.math.tanh(new), lambda: -new)
        return state, state

    _, states = flow.scan(body, flow.zeros((x.shape[0], units)), flow.transpose(x, (1, 0, 2)))
    return (states,)


LAYERS = {"lstm": flow.layers.lstm, "gru": flow.layers.gru, "scan": scanned}


@pytest.mark.parametrize("kind", LAYERS)
def test_a_model_saved_on_a_cpu_is_served_by_a_gpu(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = RNG.normal(size=(2, 3, 4)).astype(np.float32)
    sessions._default[:] = [sessions.Session(REGISTRIES["cpu"])]

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(x.shape)) -> tp.Numpy:
        return LAYERS[kind](x, 5, name="layer")[0]

    expected = job(x)
    builder = flow.saved_model.ModelBuilder(str(tmp_path)).ModelName("m").Version(1)
    builder.AddFunction(job)
    builder.Save()
    monkeypatch.setattr(inference_session, "Session", lambda: sessions.Session(REGISTRIES["gpu"]))
    with flow.serving.InferenceSession() as session:
        session.load_saved_model(str(tmp_path))
        session.launch()
        (found,) = session.run("job", x=x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_dropout_drops_the_same_elements() -> None:
    def masks(device: str) -> list[Any]:
        sessions._default[:] = [sessions.Session(REGISTRIES[device])]

        @flow.global_function("train")
        def job(x: tp.Numpy.Placeholder((40, 30))) -> tp.Numpy:
            with flow.scope.placement(device, "0:0"):
                scale = flow.get_variable("w", (1,), initializer=flow.ones_initializer())
                dropped = flow.nn.dropout(x, rate=0.4, name="drop")
                minimize(flow.math.reduce_mean(dropped * scale), "momentum")
            return dropped

        return [job(np.ones((40, 30), np.float32)) for _ in range(4)]

    cpu, gpu = masks("cpu"), masks("gpu")
    assert not np.array_equal(cpu[0], cpu[1])
    np.testing.assert_array_equal(gpu, cpu)


def test_literals_reach_the_device() -> None:
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)

    def result(device: str) -> Any:
        sessions._default[:] = [sessions.Session(REGISTRIES[device])]

        @flow.global_function()
        def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
            with flow.scope.placement(device, "0:0"):
                rows = flow.range(3, dtype=flow.float)
                return x * flow.transpose(flow.broadcast_like(rows, x) * 2 + 1, perm=(0, 1))

        return [job(numbers) for _ in range(3)]

    np.testing.assert_array_equal(result("gpu"), result("cpu"))


def only_host(device: str) -> Callable[..., Any]:
    """Build a user-defined function, and ops without a kernel for GPUs."""

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((BATCH, 10))) -> tuple[tp.Numpy, tp.Numpy]:
        with flow.scope.placement(device, "0:0"):
            op = flow.user_op_builder("doubled").Op("doubled").Input("a", [flow.math.relu(x)])
            y = op.Output("y").Build().InferAndTryRun().SoleOutputBlob()
            found = flow.argwhere(y)
            places = flow.cast(flow.cast_to_static_shape(found), flow.float)
            return flow.math.sigmoid(y), places

    return lambda: job(ROWS)


@pytest.fixture
def doubled() -> Iterator[None]:
    known["doubled"] = PythonOp("doubled", ("a",), ("y",), lambda arrays: arrays[0] * 2)
    yield
    known.clear()


@pytest.mark.usefixtures("doubled")
def test_one_error_lists_all_missing_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOW_HOST_FALLBACK", "off")
    sessions._default[:] = [sessions.Session(REGISTRIES["gpu"])]
    with pytest.raises(KernelNotFoundError) as caught:
        only_host("gpu")()
    assert [m.op for m in caught.value.missing] == [
        "python_kernel",
        "argwhere",
        "sync_dynamic_resize",
    ]
    assert str(caught.value).count("test_programs.py:") == 4


@pytest.mark.usefixtures("doubled")
def test_ops_fall_back_to_the_host_if_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    results = {}
    monkeypatch.setenv("FLOW_HOST_FALLBACK", "silent")
    for device, registry in REGISTRIES.items():
        session = sessions.Session(registry)
        sessions._default[:] = [session]
        step = only_host(device)
        results[device] = [step() for _ in range(3)]
        gpus = [d for d in session._drivers.values() if isinstance(d, GpuDriver)]
        assert len(gpus) == (device == "gpu")
        for driver in gpus:
            captured = [x for x in driver.hardware.log if x.startswith("replay")]
            assert captured, "the other ops are still captured"
    for gpu, cpu in zip(results["gpu"], results["cpu"], strict=True):
        for have, want in zip(gpu, cpu, strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-6)


def rare(device: str, ids: str = "0:0") -> Any:
    """Build a job that trains through ops without a kernel, and sorts the results."""

    @flow.global_function("train")
    def job(
        x: tp.Numpy.Placeholder((BATCH, 10)), y: tp.Numpy.Placeholder((BATCH,), flow.int32)
    ) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        with flow.scope.placement(device, ids):
            draw = flow.random_normal_initializer(stddev=0.3)
            h = flow.layers.dense(x, 12, flow.nn.relu, kernel_initializer=draw, name="first")
            h = flow.math.l2_normalize(flow.cumsum(h, axis=1), axis=1, epsilon=1e-6)
            rows = flow.expand_dims(flow.range(BATCH, dtype=flow.int32), 1)
            h = flow.gather_nd(h, rows)
            logits = flow.layers.dense(h, 5, kernel_initializer=draw, name="last")
            chances = flow.nn.softmax(logits)
            loss = flow.nn.sparse_cross_entropy(y, chances)
            minimize(flow.math.reduce_mean(loss), "momentum")
            order = flow.argsort(logits, axis=-1, direction="DESCENDING")
            return loss, order, flow.math.top_k(chances, k=2)

    return job


@pytest.mark.parametrize("ids", ["0:0", "0:0-1"])
def test_rare_ops_run_on_the_host(ids: str) -> None:
    """With their gradients; the rest of the step is captured."""
    results = {}
    for device, registry in REGISTRIES.items():
        session = sessions.Session(registry)
        sessions._default[:] = [session]
        if device == "gpu":
            flow.config.gpu_device_num(2)
        job = rare(device, ids if device == "gpu" else "0:0")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results[device] = [job(ROWS, LABELS) for _ in range(4)]
        told = [str(w.message) for w in caught if w.category is HostFallbackWarning]
        assert len(told) == (device == "gpu")
        assert all("arg_sort" in text and "test_programs.py:" in text for text in told)
        if device == "gpu":
            plan = job.plan()
            hosted = {t.type for t in plan.tasks if t.device.type == "cpu"}
            assert {"arg_sort", "l2_normalize_grad", "gather_nd", "sparse_cross_entropy"} <= hosted
            used = {t.device.type for t in plan.tasks if "momentum" in t.type or "matmul" in t.type}
            assert used == {"gpu"}
            log = session.driver(Device("gpu", 0, 0)).hardware.log
            assert any(line.startswith("replay") for line in log)
    assert abs(results["cpu"][0][0].mean() - results["cpu"][-1][0].mean()) > 1e-3
    for gpu, cpu in zip(results["gpu"], results["cpu"], strict=True):
        np.testing.assert_allclose(gpu[0], cpu[0], rtol=1e-4, atol=1e-5)
        for have, want in zip(gpu[1:], cpu[1:], strict=True):
            np.testing.assert_array_equal(have, want)


def on_both(device: str) -> Any:
    """Build a user-defined function on a device, followed by an op on the CPU."""

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((BATCH, 10))) -> tp.Numpy:
        with flow.scope.placement(device, "0:0"):
            y = flow.math.relu(x)
            op = flow.user_op_builder("doubled").Op("doubled").Input("a", [y])
            y = op.Output("y").Build().InferAndTryRun().SoleOutputBlob()
        with flow.scope.placement("cpu", "0:0"):
            return flow.math.sigmoid(y + 1.0)

    return job


@pytest.mark.usefixtures("doubled")
def test_plan_reports_interruptions_of_a_captured_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fallback ops and CPU ops are reported; nothing is reported if no device captures."""
    monkeypatch.setenv("FLOW_HOST_FALLBACK", "silent")
    reasons = {}
    for device, registry in REGISTRIES.items():
        sessions._default[:] = [sessions.Session(registry)]
        job = on_both(device)
        plan = job.plan()
        reasons[device] = {task.type: task.unrecordable for task in plan.tasks if task.unrecordable}
        assert Plan.from_json(plan.to_json()).tasks == plan.tasks
        assert ("launches outside of the recorded step" in plan_report(job)) is (device == "gpu")
    assert not reasons["cpu"]
    assert reasons["gpu"]["python_kernel"] == "runs on cpu:0:0"
    assert set(reasons["gpu"].values()) == {"runs on cpu:0:0"}


KERNEL = """an op has no kernel: for an elementwise op, add a row to TABLE in
packages/flow-cuda/src/flow_cuda/codegen/expressions.py, such as
    "square": _expression("({0} * {0})"),
for another one, add a `kernel` to KERNELS of a module in packages/flow-cuda/src/flow_cuda/kernels,
or the op to the list of this test"""


RARE = (
    "CategoricalOrdinalEncode", "arg_sort", "argwhere", "bernoulli", "cast_from_mirrored",
    "cast_to_mirrored", "cumsum", "dequantize_linear", "dim_gather", "dim_scatter_add_like",
    "distributed_partial_fc_sample", "distributed_partial_fc_sample_grad", "fake_quantization",
    "fused_scale_tril", "gather_nd", "generate_random_batch_permutation_indices", "in_top_k",
    "indexed_slices_reduce_sum", "l2_normalize", "l2_normalize_grad", "min_max_observer",
    "moving_average_min_max_observer", "quantize_linear", "random_values", "reduce_prod_grad",
    "reflection_pad2d", "reflection_pad2d_grad", "scatter_nd", "scatter_nd_like", "sort",
    "sparse_cross_entropy", "sparse_cross_entropy_grad", "ssp_variable_proxy",
    "sync_dynamic_resize", "tensor_scatter_nd_add", "tensor_scatter_nd_update", "top_k", "tril",
    "unique_with_counts", "upsample", "upsample_grad",
)  # fmt: skip
"""Ops that no network of the examples, the benchmarks and the zoo has; they run on the host."""


def test_ops_without_a_kernel() -> None:
    """Every registered op but these runs on the device, or on the host by declaration."""
    registry = REGISTRIES["gpu"]
    leaves = ("input", "variable", "boxing")
    shared = ("matmul_onto",)  # for devices that share a memory, which GPUs do not
    missing = [
        op
        for op, spec in registry.ops.items()
        if not spec.host
        and op not in (*leaves, *shared)
        and not op.startswith("summed_")
        and not any(k.op == op for k in registry.kernels(op, "gpu"))
    ]
    unrolled = ["gru", "gru_grad", "lstm", "lstm_grad"]  # layers use these ops on CPUs alone
    unrolled += ["cond", "random_cond", "random_scan", "scan"]
    known = ["ctc_loss", "ctc_loss_grad", *unrolled, "python_kernel", *RARE]
    assert sorted(missing) == sorted(known), KERNEL
