"""Attention by cuDNN: the pattern, its gradients, and our calls on a host simulation."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cuda_cases import CudaKit, core_registry, simulated_registry
from cuda_references import REFERRED
from cuda_references.attention import operands
from cuda_simulator import host_compiler
from cuda_simulator.hardware import Simulator

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.dtypes import as_dtype
from flow_core.frontend.session import session as sessions
from flow_core.ir.graph import tensor_type
from flow_core.plugins.specs import BindContext, KernelQuery
from flow_cuda.driver.gpu import GpuDriver
from flow_cuda.kernels.dnn import KERNELS

needs_compiler = pytest.mark.skipif(
    host_compiler.compiler() is None, reason="no C++ compiler to run the kernels with"
)
SPECS = {s.type: s for s in REFERRED if s.type.startswith("cudnn_attention")}
BATCH, PLACES, HEADS, SIZE = 2, 6, 2, 8


@pytest.fixture(autouse=True)
def own_sessions() -> Iterator[None]:
    before = list(sessions._default)
    yield
    sessions._default[:] = before


class TestKernels(CudaKit):
    ops = ("cudnn_attention",)
    dtypes = ("float16", "bfloat16")
    preloaded = False


def reference(op: str, arrays: Any, **attrs: Any) -> Any:
    made = SPECS[op].reference(*arrays, **attrs)  # type: ignore[misc]
    return made if isinstance(made, tuple) else (made,)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("case", range(4))
def test_gradients_match_the_reference(case: int, deterministic: bool) -> None:
    """The reference itself is compared with finite differences."""
    rng = np.random.default_rng(case)
    q, k, v, *mask = list(operands(rng))[case]
    forward = {"scale": 0.3, "saves": True}
    out, stats = reference("cudnn_attention", (q, k, v, *mask), **forward)
    do = rng.normal(0, 1, out.shape)
    given = (q, k, v, out, do, stats, *mask)
    attrs = {"scale": 0.3, "deterministic": deterministic, "plan": "", "workspace": 4096}
    expected = reference("cudnn_attention_grad", given, **attrs)
    for i, grad in enumerate(expected):
        moved = [q, k, v]
        step = rng.normal(0, 1, grad.shape)
        ends = []
        for h in (1e-5, -1e-5):
            moved[i] = (q, k, v)[i] + h * step
            ends.append((reference("cudnn_attention", (*moved, *mask), **forward)[0] * do).sum())
        np.testing.assert_allclose((ends[0] - ends[1]) / 2e-5, (grad * step).sum(), 1e-5)
    found = launched("cudnn_attention_grad", given, attrs)
    for have, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(have.astype(float), want, 3e-2, 3e-2)


def launched(op: str, arrays: Any, attrs: Any) -> list[Any]:
    """Return the outputs of a kernel, in float16 except for the sums of exponentials."""
    hardware = Simulator()
    driver = GpuDriver(hardware)
    kinds = [np.float32 if i == 5 else np.float16 for i in range(len(arrays))]
    host = [x.astype(kind) for x, kind in zip(arrays, kinds, strict=True)]
    types = tuple(tensor_type(x.shape, as_dtype(x.dtype)) for x in host)
    bind: Any = next(kernel.load for kernel in KERNELS if kernel.op == op)
    inputs = tuple(on_device(driver, x) for x in host)
    outputs = tuple(on_device(driver, np.zeros_like(x)) for x in host[:3])
    workspace = driver.allocate(attrs["workspace"]).view(0, (attrs["workspace"],), np.uint8)
    query = KernelQuery(op, attrs, types, types[:3])
    bind(BindContext(query, inputs, outputs, workspace=workspace))()
    return [driver.copy_out(y) for y in outputs]


def on_device(driver: GpuDriver, values: Any) -> Any:
    made = driver.allocate(values.nbytes).view(0, values.shape, values.dtype)
    driver.copy_in(made, values)
    return made


# --- the pass


def attention(q: Any, k: Any, v: Any, mask: Any, form: str) -> Any:
    if form in ("function", "causal function"):
        return flow.nn.attention(q, k, v, mask, causal=form != "function")
    scores = flow.matmul(q, k, transpose_b=True)
    if form != "plain":
        scores = scores * SIZE**-0.5
    if form in ("mask", "learned mask"):
        scores = scores + mask
    probabilities = flow.nn.softmax(scores)
    if form == "dropout":
        probabilities = flow.nn.dropout(probabilities, rate=0.2)
    out = flow.matmul(probabilities, v)
    return out + flow.math.reduce_mean(probabilities) if form == "read elsewhere" else out


def job_of(form: str, device: str = "gpu", amp: bool = True, kind: str = "train", **wishes: Any):  # type: ignore[no-untyped-def]
    """Build a job with two attention layers, for training or prediction."""
    config = flow.function_config()
    config.enable_auto_mixed_precision(amp)
    for name, value in wishes.items():
        getattr(config, name)(value)
    width = HEADS * SIZE
    rows = tp.Numpy.Placeholder((BATCH, PLACES, width))

    @flow.global_function(kind, config)
    def job(x: rows, m: tp.Numpy.Placeholder((BATCH, PLACES))) -> tp.Numpy:
        with flow.scope.placement(device, "0:0"):
            start = flow.random_uniform_initializer(-0.5, 0.5)

            def dense(name: str, t: Any) -> Any:
                return flow.layers.dense(t, width, kernel_initializer=start, name=name)

            def heads(t: Any) -> Any:
                wide = flow.reshape(t, (BATCH, PLACES, HEADS, SIZE))
                return flow.transpose(wide, perm=[0, 2, 1, 3])

            mask = flow.reshape((1.0 - m) * -1e4, (BATCH, 1, 1, PLACES))
            if form == "learned mask":
                mask = flow.get_variable("b", (1, HEADS, PLACES, PLACES), initializer=start)
            for layer in "ab":
                q, k, v = (heads(dense(layer + n, x)) for n in "qkv")
                out = flow.transpose(attention(q, k, v, mask, form), perm=[0, 2, 1, 3])
                x = x + dense(layer + "o", flow.reshape(out, (BATCH, PLACES, width)))
            if kind == "predict":
                return x
            loss = flow.math.reduce_mean(flow.math.square(x))
            schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.005])
            flow.optimizer.SGD(schedule, momentum=0.9).minimize(loss)
        return loss

    return job


def counts(job: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for op in job.compile().graph.ops.values():
        if op.type.startswith("cudnn") or op.type in ("softmax", "softmax_grad", "batch_matmul"):
            found[op.type] = found.get(op.type, 0) + 1
    return found


ALL = {"cudnn_attention": 2, "cudnn_attention_grad": 2}
NONE = {"softmax": 2, "batch_matmul": 12, "softmax_grad": 2}
EXPECTED = {
    "plain": ALL, "scaled": ALL, "mask": ALL, "function": ALL, "causal function": ALL,
    "learned mask": NONE, "dropout": NONE, "read elsewhere": NONE,
}  # fmt: skip


@pytest.mark.parametrize("form", EXPECTED)
def test_patterns_are_joined(form: str) -> None:
    sessions._default[:] = [sessions.Session(simulated_registry())]
    assert counts(job_of(form)) == EXPECTED[form]


def test_float32_is_not_joined() -> None:
    sessions._default[:] = [sessions.Session(simulated_registry())]
    assert counts(job_of("mask", amp=False)) == NONE


def test_prediction_saves_no_intermediates() -> None:
    sessions._default[:] = [sessions.Session(simulated_registry())]
    job = job_of("mask", kind="predict")
    assert counts(job) == {"cudnn_attention": 2}
    graph = job.compile().graph
    assert {len(graph.types[op.name]) for op in graph.of_type("cudnn_attention")} == {1}


def test_settings_reach_the_plan() -> None:
    for repeats, plan in ((False, "eng8"), (True, "eng9")):
        sessions._default[:] = [sessions.Session(simulated_registry())]
        job = job_of("scaled", cudnn_conv_use_deterministic_algo_only=repeats)
        found = {op.attrs["plan"] for op in job.compile().graph.of_type("cudnn_attention_grad")}
        assert found == {plan}


@pytest.mark.slow
@pytest.mark.representative("mask", "the mask is an addition to the other case")
@needs_compiler
@pytest.mark.parametrize("form", ["scaled", "mask"])
def test_training_matches_the_cpu(form: str) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(BATCH, PLACES, HEADS * SIZE)).astype(np.float32)
    m = np.ones((BATCH, PLACES), np.float32)
    m[0, 4:] = 0
    losses = []
    for device, registry in (("gpu", simulated_registry()), ("cpu", core_registry())):
        sessions._default[:] = [sessions.Session(registry)]
        job = job_of(form, device)
        losses.append([job(x, m).item() for _ in range(4)])
    assert losses[0][0] > 1.01 * losses[0][-1]
    np.testing.assert_allclose(*losses, rtol=5e-3)
