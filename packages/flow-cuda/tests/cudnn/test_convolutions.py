"""Convolutions by cuDNN: the pass, the selection of plans, and our calls on a simulation."""

import re
import sys
import types
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from cuda_cases import CudaKit, core_registry, simulated_registry
from cuda_simulator import host_compiler
from cuda_simulator.cudnn import (
    SimulatedBench,
    SimulatedCudnn,
)
from cuda_simulator.cudnn_engines import ENGINES
from cuda_simulator.hardware import OrderError, Simulator, simulated_plans

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.disk_cache import DiskCache
from flow_core.base.dtypes import float16, float32
from flow_core.frontend.session import session as sessions
from flow_core.ir.graph import Graph, tensor_type, verify
from flow_core.passes.base import PassContext
from flow_core.plugins.specs import BindContext, KernelQuery
from flow_cuda.cudnn.plans import DnnError, DnnPlans
from flow_cuda.cudnn.problems import ALGORITHMS, FAMILIES, Choice, Convolution, Search, convolution
from flow_cuda.driver import cupy_hardware
from flow_cuda.driver.gpu import GpuDriver
from flow_cuda.kernels import dnn as kernels
from flow_cuda.ops import OPS
from flow_cuda.passes.convolutions import Convolutions

needs_compiler = pytest.mark.skipif(
    host_compiler.compiler() is None, reason="no C++ compiler to run the kernels with"
)
BATCH = 4
FIRST = {
    "data_format": "channels_first", "strides": (1, 1), "padding_before": (1, 1),
    "dilation_rate": (1, 1), "compute": "float32",
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_sessions() -> Iterator[None]:
    before = list(sessions._default)
    yield
    sessions._default[:] = before


def problem(kind: str = "forward", dtype: Any = float32, **changes: Any) -> Convolution:
    """Return a 3 x 3 convolution on 8 x 8 images with a padding of 1."""
    shapes = (2, 4, 8, 8), (6, 4, 3, 3), (2, 6, 8, 8)
    x, w, y = (tensor_type(shape, dtype) for shape in shapes)
    return convolution(kind, (x, w, y), FIRST | changes)


class TestKernels(CudaKit):
    """Nothing is compiled, so all types are tested."""

    ops = tuple(spec.type for spec in OPS if spec.type.startswith("cudnn_conv"))
    dtypes = ("float32", "float64", "float16", "bfloat16")
    preloaded = False


# --- plan selection


@pytest.mark.parametrize(
    ("kind", "search", "plan"),
    [
        ("forward", Search(), "eng0"),
        ("forward", Search(tf32=True), "eng1_k2=5"),
        ("forward", Search(measured=True), "eng6"),
        ("forward", Search(measured=True, limit=100), "eng0"),
        ("forward", Search(family="fft"), "eng4_k1=2"),
        ("forward", Search(family="winograd", deterministic=True), "eng6"),
        ("forward", Search(family="gemm", tf32=True), "eng1_k2=5"),
        ("data_grad", Search(), "eng7_k3=1"),
        ("data_grad", Search(deterministic=True), "eng0"),
        ("data_grad", Search(family="deterministic gemm"), "eng0"),
        ("filter_grad", Search(measured=True, deterministic=True), "eng6"),
    ],
)
def test_settings_select_plans(kind: str, search: Search, plan: str) -> None:
    choice = simulated_plans(SimulatedCudnn()).choose(problem(kind), search)
    assert choice is not None
    assert choice.plan == plan
    assert choice.workspace <= search.limit


@pytest.mark.parametrize(
    ("search", "limit"), [(Search(family="fft", limit=64), 64), (Search(family="winograd"), 0)]
)
def test_no_plan_may_remain(search: Search, limit: int) -> None:
    wide = problem(strides=(2, 2)) if not limit else problem()
    assert simulated_plans(SimulatedCudnn()).choose(wide, search) is None


def test_half_types_may_use_tensor_cores_and_are_summed_in_float32() -> None:
    class Tells(SimulatedCudnn):
        computed: Any = None

        def pygraph(self, **settings: Any) -> Any:
            self.computed = settings["compute_data_type"].name
            return super().pygraph(**settings)

    library = Tells()
    plans = simulated_plans(library)
    for compute, its in (("float32", "FLOAT"), ("float16", "HALF")):
        choice = plans.choose(problem(dtype=float16, compute=compute), Search())
        assert choice == Choice("eng1_k2=5", 4096)
        assert library.computed == its


def test_plan_choice_is_cached_on_disk(tmp_path: Path) -> None:
    def plans(*names: str) -> tuple[DnnPlans, SimulatedCudnn]:
        library = SimulatedCudnn(engines=[e for e in ENGINES if e.name in names])
        bench = SimulatedBench(library)
        return DnnPlans(library, "sm_90", bench, DiskCache(tmp_path / "cudnn", ".json")), library

    search = Search(measured=True)
    first, library = plans("eng1_k2=5", "eng0", "eng6")
    assert first.choose(problem(), search) == Choice("eng6", 2 * 4 * (512 + 216 + 768))
    assert library.calls == 2, "each allowed plan is measured once"
    again, library = plans("eng1_k2=5", "eng0", "eng6")
    assert again.choose(problem(), search) == first.choose(problem(), search)
    assert not library.calls, "nothing is measured again"
    less, library = plans("eng1_k2=5", "eng0")
    assert less.choose(problem(), search) == Choice("eng0", 0), "an unavailable plan is dropped"
    (kept,) = (tmp_path / "cudnn").glob("*.json")
    assert b"eng0" in kept.read_bytes()


def test_rejection_is_cached_on_disk(tmp_path: Path) -> None:
    library = SimulatedCudnn(refuses=["conv_fprop"])
    for _ in range(2):
        cache = DiskCache(tmp_path / "c", ".json")
        plans = DnnPlans(library, "sm_90", SimulatedBench(library), cache)
        assert plans.choose(problem(), Search()) is None


def test_plans_are_created_on_their_device() -> None:
    """The library loads compiled code on the current device of the calling thread."""
    inside: list[bool] = []

    class CheckedCudnn(SimulatedCudnn):
        def pygraph(self, **settings: Any) -> Any:
            assert inside == [True]
            return super().pygraph(**settings)

    def within(call: Any) -> Any:
        inside.append(True)
        try:
            return call()
        finally:
            inside.clear()

    library = CheckedCudnn()
    plans = DnnPlans(library, "sm_90", SimulatedBench(library), within=within)
    assert plans.choose(problem(), Search()) == Choice("eng0", 0)
    assert plans.planned(problem("data_grad"), "eng0").workspace == 256


class FakeDevice:
    """The part of CuPy's device needed to start a library."""

    compute_capability = "90"
    attributes: ClassVar = {"MultiProcessorCount": 132}

    def __init__(self, index: int) -> None:
        self.index = index

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, *_: object) -> None:
        """Do nothing."""


class FakeStream:
    ptr = 7

    def __init__(self, non_blocking: bool) -> None:
        assert non_blocking


def fake_libraries(patch: pytest.MonkeyPatch, cudnn: Any) -> None:
    cuda = types.SimpleNamespace(Device=FakeDevice, Stream=FakeStream)
    patch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=cuda))
    patch.setitem(sys.modules, "cudnn", cudnn)
    cupy_hardware.dnn_plans.cache_clear()


def test_library_start_failure_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(SimulatedCudnn):
        def create_handle(self) -> int:
            raise RuntimeError("CUDNN_STATUS_NOT_INITIALIZED")

    fake_libraries(monkeypatch, Broken())
    with pytest.warns(RuntimeWarning, match="cuDNN failed to initialize.*NOT_INITIALIZED"):
        assert cupy_hardware.dnn_plans(0) is None
    fake_libraries(monkeypatch, None)  # such a module is not found
    assert cupy_hardware.dnn_plans(0) is None
    cupy_hardware.dnn_plans.cache_clear()


def test_library_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fake_libraries(monkeypatch, SimulatedCudnn())
    plans = cupy_hardware.dnn_plans(1)
    assert plans is not None
    assert cupy_hardware.dnn_plans(1) is plans
    assert plans.choose(problem(), Search()) == Choice("eng0", 0)
    assert len(list((tmp_path / "flow-cuda" / "cudnn").glob("*.json"))) == 1
    cupy_hardware.dnn_plans.cache_clear()


def test_families_of_algorithms() -> None:
    assert {kind: set(row) for kind, row in ALGORITHMS.items()} == {
        "forward": {0, 1, 2, 4, 5, 6, 7},
        "data_grad": {0, 1, 2, 3, 4, 5},
        "filter_grad": {0, 1, 2, 3, 5, 6},
    }
    assert {name for row in ALGORITHMS.values() for name in row.values()} <= set(FAMILIES)


def bound(hardware: Simulator, plan: str, nbytes: int) -> Any:
    """Bind a convolution to a plan with a workspace of ``nbytes``."""
    driver = GpuDriver(hardware)
    asked = problem()
    tensors = (*asked.reads.values(), *asked.writes.values())
    arrays = [driver.allocate(t.nbytes).view(0, t.sizes, np.float32) for t in tensors]
    types = tuple(tensor_type(t.sizes, float32) for t in tensors)
    window = {k: v for k, v in FIRST.items() if k != "compute"} | {
        "kernel_size": (3, 3), "groups": 1, "padding_after": (1, 1), "activation": "",
    }  # fmt: skip
    attrs = {**window, "plan": plan, "workspace": nbytes, "compute": "float32"}
    query = KernelQuery("cudnn_conv", attrs, types[:2], types[2:])
    workspace = driver.allocate(nbytes).view(0, (nbytes,), np.uint8) if nbytes else None
    bind: Any = kernels.KERNELS[0].load
    return bind(BindContext(query, tuple(arrays[:2]), tuple(arrays[2:]), workspace=workspace))


def test_plan_of_another_library_is_an_error() -> None:
    with pytest.raises(DnnError, match="no plan 'eng99' on this device"):
        bound(Simulator(), "eng99", 0)
    with pytest.raises(DnnError, match="4096 bytes of workspace on this device, 512 in the plan"):
        bound(Simulator(), "eng1_k2=5", 512)

    class Without(Simulator):
        dnn: Any = None

        def __setattr__(self, name: str, value: Any) -> None:
            if name != "dnn":
                super().__setattr__(name, value)

    with pytest.raises(DnnError, match="cuDNN is not available"):
        bound(Without(), "eng0", 0)


def test_memory_accesses_of_a_graph_are_ordered() -> None:
    """Another stream must not write the workspace concurrently."""
    hardware = Simulator()
    launch = bound(hardware, "eng1_k2=5", 4096)
    launch()
    other = hardware.stream("other")
    with pytest.raises(OrderError):
        hardware.zero(other, launch.workspace.address, 16)
    hardware.synchronize(hardware.record(hardware.compute))
    assert hardware.dnn.library.streams == {1: hardware.handle(hardware.compute)}


# --- the pass


def net(device: str = "gpu", amp: bool = False, form: str = "NCHW", **wishes: Any) -> Any:
    """Build a job that trains three convolutions and a transposed one."""
    config = flow.function_config()
    config.enable_auto_mixed_precision(amp)
    for name, value in wishes.items():
        getattr(config, name)(value)
    shape = (BATCH, 3, 9, 9) if form == "NCHW" else (BATCH, 9, 9, 3)

    @flow.global_function("train", config)
    def job(
        x: tp.Numpy.Placeholder(shape), y: tp.Numpy.Placeholder((BATCH,), flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement(device, "0:0"):
            start = flow.random_uniform_initializer(-0.3, 0.3)
            conv = partial(flow.layers.conv2d, data_format=form, kernel_initializer=start)
            h = conv(x, 8, 3, padding="SAME", activation=flow.nn.relu, name="first")
            h = conv(h, 4, 3, 2, padding="VALID", name="second")
            h = conv(flow.math.sigmoid(h), 6, 2, groups=2, use_bias=False, name="third")
            w_shape = (6, 3, 2, 2) if form == "NCHW" else (6, 2, 2, 3)
            w = flow.get_variable("w", w_shape, initializer=start)
            wide = (BATCH, 3, 7, 7) if form == "NCHW" else (BATCH, 7, 7, 3)
            h = flow.nn.conv2d_transpose(h, w, wide, strides=2, data_format=form)
            logits = flow.layers.dense(flow.reshape(h, (BATCH, -1)), 5, name="last")
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = flow.math.reduce_mean(loss)
            schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(schedule, momentum=0.9).minimize(loss)
        return loss

    return job


def joined(job: Any, library: SimulatedCudnn | None = None, **options: Any) -> Graph:
    """Return the physical graph of a job after this pass alone."""
    registry = simulated_registry()
    compiled = job.compile()
    plans = simulated_plans(library or SimulatedCudnn())
    made = Convolutions(lambda: plans, **options).apply(compiled.logical, PassContext(registry.ops))
    verify(made)
    return made


def counts(graph: Graph) -> dict[str, int]:
    found: dict[str, int] = {}
    for op in graph.ops.values():
        if op.type.startswith(("conv", "deconv", "cudnn")):
            name = f"{op.type} {op.attrs.get('activation', '')}".strip()
            found[name] = found.get(name, 0) + 1
    return found


ALL_OF_IT = {
    "cudnn_conv relu": 1, "cudnn_conv": 2, "cudnn_conv_data_grad": 3, "cudnn_conv_filter_grad": 4,
}  # fmt: skip


def fresh() -> None:
    sessions._default[:] = [sessions.Session(simulated_registry())]


@pytest.mark.parametrize("amp", [False, True], ids=["float32", "mixed"])
def test_convolutions_are_joined(amp: bool) -> None:
    """The gradient of a transposed convolution is a convolution; x has no gradient."""
    fresh()
    made = net(amp=amp).compile().graph
    assert counts(made) == ALL_OF_IT | {"cudnn_conv": 3}
    types = {str(t.dtype) for op in made.of_type("cudnn_conv") for t in made.types[op.name]}
    assert types == {"float16" if amp else "float32"}


def test_ops_rejected_by_the_library_are_kept() -> None:
    fresh()
    refuses = ["conv_fprop bias relu", "conv_wgrad"]
    found = counts(joined(net(), SimulatedCudnn(refuses)))
    assert found == {"cudnn_conv": 4, "cudnn_conv_data_grad": 3, "conv_filter_grad": 4}


def test_library_can_be_disabled() -> None:
    fresh()
    found = counts(joined(net(), enabled=False))
    assert not any(name.startswith("cudnn") for name in found)
    fresh()
    assert not any(
        "cudnn" in op.type for op in net(enable_cudnn=False).compile().graph.ops.values()
    )


@pytest.mark.parametrize(
    ("wishes", "forward", "gradient"),
    [
        ({}, "eng0", "eng7_k3=1"),
        ({"cudnn_conv_use_deterministic_algo_only": True}, "eng0", "eng0"),
        ({"cudnn_conv_heuristic_search_algo": False}, "eng6", "eng7_k3=1"),
        ({"cudnn_conv_force_fwd_algo": 1, "cudnn_conv_force_bwd_data_algo": 1}, "eng0", "eng0"),
    ],
)
def test_settings_reach_the_plan(wishes: dict[str, Any], forward: str, gradient: str) -> None:
    fresh()
    flow.config.enable_tensor_float_32_compute(False)
    ops = net(**wishes).compile().graph.ops.values()
    found = {op.type: str(op.attrs["plan"]) for op in ops if op.attrs.get("activation") == "relu"}
    assert found == {"cudnn_conv": forward}
    plans = {str(op.attrs["plan"]) for op in ops if op.type == "cudnn_conv_data_grad"}
    assert plans == {gradient}


def test_tensor_cores_may_round_float32_unless_the_program_disables_it() -> None:
    fresh()
    ops = net().compile().graph.of_type("cudnn_conv")
    assert {str(op.attrs["plan"]) for op in ops if op.attrs["activation"] == "relu"} == {
        "eng1_k2=5"
    }


def test_unavailable_forced_algorithm_is_reported_at_the_line() -> None:
    fresh()
    with pytest.raises(DnnError) as caught:
        net(cudnn_conv_force_fwd_algo=6).compile()
    assert re.search("force_fwd_algo=6, which asks for 'winograd'", str(caught.value))
    assert caught.value.at is not None
    assert caught.value.at.file == __file__


@pytest.mark.parametrize(("pseudo", "compute"), [(True, "float32"), (False, "float16")])
def test_float16_may_accumulate_in_float16(pseudo: bool, compute: str) -> None:
    fresh()
    made = net(amp=True, cudnn_conv_enable_pseudo_half=pseudo).compile().graph
    found = {op.attrs["compute"] for op in made.ops.values() if "compute" in op.attrs}
    assert found == {compute}


@pytest.mark.slow
@pytest.mark.representative("NHWC", "the others differ in the layout")
@needs_compiler
@pytest.mark.parametrize(
    ("form", "amp", "measured"),
    [("NCHW", False, False), ("NHWC", False, True), ("NCHW", True, False)],
)
def test_training_matches_the_cpu(form: str, amp: bool, measured: bool) -> None:
    rng = np.random.default_rng(1)
    shape = (BATCH, 3, 9, 9) if form == "NCHW" else (BATCH, 9, 9, 3)
    x = rng.normal(size=shape).astype(np.float32)
    y = rng.integers(0, 5, BATCH).astype(np.int32)
    losses = []
    for device, registry in (("gpu", simulated_registry()), ("cpu", core_registry())):
        sessions._default[:] = [sessions.Session(registry)]
        job = net(device, amp, form, cudnn_conv_heuristic_search_algo=not measured)
        losses.append([job(x, y).item() for _ in range(4)])
        if device == "gpu":
            (driver,) = sessions._default[0]._drivers.values()
            queued = [line for line in driver.hardware.log if ": cudnn conv" in line]
            assert len(queued) == 11 * 4, "plans are replayed in the step's graph"
    assert losses[0][0] != losses[0][-1]
    np.testing.assert_allclose(*losses, rtol=5e-3 if amp else 1e-5)
