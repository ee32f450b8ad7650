"""Products with epilogues: our calls of cuBLASLt against a numpy simulation."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from cuda_cases import core_registry, simulated_registry
from cuda_references import REFERRED
from cuda_simulator import host_compiler
from cuda_simulator.cublaslt import RefusedError, SimulatedLt
from cuda_simulator.hardware import Simulator

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.dtypes import as_dtype
from flow_core.frontend.session import session as sessions
from flow_core.ir.graph import Graph, TensorType, tensor_type, verify
from flow_core.passes.base import PassContext
from flow_core.plugins.specs import BindContext, InferContext, KernelQuery
from flow_cuda.device.hardware import EPILOGUES, Operands, Product
from flow_cuda.device.launch import ProductLaunch
from flow_cuda.driver.cublaslt import (
    ALIGNMENTS,
    BATCH_STEP,
    BIAS,
    CODES,
    MAX_WORKSPACE,
    TYPES,
    LtProducts,
)
from flow_cuda.driver.cublaslt_library import CublasLt, CublasLtError
from flow_cuda.driver.cupy_hardware import load_cublaslt
from flow_cuda.driver.gpu import GpuDriver
from flow_cuda.kernels import matmul
from flow_cuda.passes.products import FuseProducts

needs_compiler = pytest.mark.skipif(
    host_compiler.compiler() is None, reason="no C++ compiler to run the kernels with"
)
SPECS = {spec.type: spec for spec in REFERRED if spec.type.startswith("cuda_matmul")}
BATCH = 8


# --- the library


def test_every_epilogue_has_a_code() -> None:
    assert set(CODES) == set(EPILOGUES)


def test_plans_depend_on_product_workspace_and_alignment() -> None:
    products = Simulator().products
    product = Product(4, 6, 5, False, False, "float32")
    operands = Operands(256, 512, 768)
    first = products.plan(product, operands)
    assert products.plan(replace(product), Operands(1024, 512, 768)) is first
    assert products.plan(product, replace(operands, workspace_bytes=64)) is not first
    assert products.plan(product, replace(operands, b=512 + 16)) is not first


def test_heuristic_requires_the_addresses_of_an_epilogue() -> None:
    """It reads their alignment."""
    library = SimulatedLt()
    product = Product(4, 136, 5, False, False, "float32", epilogue="relu_bias")
    with pytest.raises(RefusedError, match="no address"):
        LtProducts(library).plan(product, Operands(256, 256, 256))
    assert LtProducts(library).plan(product, Operands(256, 256, 256, 256))


@pytest.mark.parametrize("moved", ["a", "b", "c", "bias", "workspace"])
def test_operands_of_any_alignment_are_announced(moved: str) -> None:
    """The library rejects operands and workspaces that are less aligned than it was told."""
    hardware = Simulator()
    memory = hardware.allocate(1 << 16)
    places = {k: memory.address + i * 8192 for i, k in enumerate(("a", "b", "c", "bias"))}
    whole = Operands(**places, workspace=memory.address + 40960, workspace_bytes=256)
    operands = replace(whole, **{moved: getattr(whole, moved) + 16})
    product = Product(4, 6, 5, False, False, "float32", epilogue="bias")
    products = hardware.products
    plan = products.plan(product, whole)
    if moved == "workspace":
        with pytest.raises(RefusedError, match="a workspace"):
            products.queue(product, operands, 0)
        return
    products.queue(product, operands, 0)
    found = products.plan(product, operands)
    assert found is not plan
    with pytest.raises(RefusedError, match="not aligned to 256"):
        LtProductsOf(products, plan).queue(product, operands, 0)


def test_empty_workspaces_may_have_any_address() -> None:
    driver = GpuDriver(Simulator())
    product = Product(4, 6, 5, False, False, "float32")
    a, b, c = (on_device(driver, np.ones(shape, np.float32)) for shape in ((4, 5), (5, 6), (4, 6)))
    empty = driver.allocate(256).view(64, (0,), np.uint8)
    ProductLaunch(driver.hardware, product, a, b, c, workspace=empty)()
    assert (driver.copy_out(c) == 5).all()


class LtProductsOf(LtProducts):
    """Products that use one plan, whatever the operands."""

    def __init__(self, products: LtProducts, plan: Any) -> None:
        self._library, self._handle = products._library, products._handle
        self._plan = plan

    def plan(self, product: Product, operands: Operands) -> Any:
        return self._plan


@pytest.mark.parametrize("major", [12, 13])
def test_cublaslt_takes_our_descriptors(major: int) -> None:
    """Descriptors need no device; a library handle does."""
    try:
        library = CublasLt(major)
    except OSError as error:
        pytest.skip(str(error))
    desc = library.matmul_desc_create(68, TYPES["float32"])
    layout = library.matrix_layout_create(TYPES["float32"], 3, 4, 3)
    preference = library.matmul_preference_create()
    number = np.array([2], np.int64)
    address = number.ctypes.data
    library.matrix_layout_set_attribute(layout, BATCH_STEP, address, 8)
    library.matmul_desc_set_attribute(desc, BIAS, address, 8)
    for attr in ALIGNMENTS:
        library.matmul_preference_set_attribute(preference, attr, address, 4)
    with pytest.raises(CublasLtError, match="INVALID_VALUE"):
        library.matmul_preference_set_attribute(preference, MAX_WORKSPACE, address, 3)


def test_missing_cublaslt_is_a_warning() -> None:
    with pytest.warns(RuntimeWarning, match="cuBLASLt failed to initialize.*libcublasLt.so.99"):
        assert load_cublaslt(99) is None


def test_product_rejected_by_the_library_has_no_plan() -> None:
    hardware = Simulator(library=SimulatedLt(refuses=["sum_a"]))
    product = Product(4, 6, 5, False, False, "float32", epilogue="sum_a")
    operands = Operands(256, 256, 256, 256)
    assert not hardware.supports(product, operands)
    assert hardware.supports(replace(product, epilogue="sum_b"), operands)
    assert not hardware.supports(replace(product, epilogue="sum_b", dtype="float64"), operands)


def test_invalid_leading_dimension_is_rejected() -> None:
    hardware = Simulator()
    product = Product(4, 6, 5, False, False, "float32", leads=(0, 4, 0))
    with pytest.raises(RefusedError, match="leading dimension"):
        hardware.supports(product, Operands(256, 256, 256))


# --- kernels with and without the library


def bound(op: str, sample: Any, dtype: str, library: SimulatedLt) -> tuple[list[str], list[Any]]:
    """Return the names of the launches queued for a sample and its outputs."""
    spec, kind = SPECS[op], as_dtype(dtype)
    hardware = Simulator(library=library)
    driver = GpuDriver(hardware)
    arrays = [x.astype(kind.numpy) for x in sample.inputs]
    types = tuple(tensor_type(x.shape, as_dtype(x.dtype)) for x in arrays)
    attrs = {**spec.attrs, **sample.attrs}
    outputs = infer(spec, types, attrs)
    given = [on_device(driver, x) for x in arrays]
    made = [on_device(driver, np.zeros(t.shape, t.dtype.numpy)) for t in outputs]
    query = KernelQuery(op, attrs, types, outputs)
    bind = next(k for k in matmul.KERNELS if k.op == op)
    launches: Any = bind.load(BindContext(query, tuple(given), tuple(made)))  # type: ignore[operator]
    hardware.log.clear()
    for launch in launches:
        launch()
    names = [line.partition(": ")[2] for line in hardware.log]
    return names, [driver.copy_out(y) for y in made]


def infer(spec: Any, types: tuple[TensorType, ...], attrs: Any) -> tuple[TensorType, ...]:
    return tuple(spec.infer(InferContext(spec.type, spec.type, types, attrs)))


def on_device(driver: GpuDriver, values: Any) -> Any:
    made = driver.allocate(max(values.nbytes, 1)).view(0, values.shape, values.dtype)
    driver.copy_in(made, values)
    return made


@pytest.mark.representative(
    r"\[cuda_matmul-kernels-float32\]",
    "the op that has the most epilogues, by kernels of our own",
)
@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("fused", [True, False], ids=["epilogue", "kernels"])
@pytest.mark.parametrize("op", SPECS)
def test_both_implementations_match_the_reference(op: str, fused: bool, dtype: str) -> None:
    refused = () if fused else [name for name in EPILOGUES if name]
    tolerance = 1e-5 if dtype == "float32" else 3e-2
    for sample in SPECS[op].samples(np.random.default_rng(0)):  # type: ignore[misc]
        names, found = bound(op, sample, dtype, SimulatedLt(refused))
        assert (len(names) == 1) is fused
        attrs = {**SPECS[op].attrs, **sample.attrs}
        expected = SPECS[op].reference(*sample.inputs, **attrs)  # type: ignore[misc]
        expected = expected if isinstance(expected, tuple) else (expected,)
        for have, want in zip(found, expected, strict=True):
            np.testing.assert_allclose(have.astype(float), want, tolerance, tolerance)


@needs_compiler
def test_rows_may_be_slices_of_wider_rows() -> None:
    hardware = Simulator()
    driver, rng = GpuDriver(hardware), np.random.default_rng(0)
    a, b, c = (rng.normal(size=s).astype(np.float32) for s in ((4, 7), (5, 9), (4, 8)))
    product = Product(4, 6, 5, False, False, "float32", leads=(7, 9, 8))
    arrays = [on_device(driver, x) for x in (a, b, c)]
    ProductLaunch(hardware, product, *arrays)()
    found = driver.copy_out(arrays[2])
    np.testing.assert_allclose(found[:, :6], a[:, :5] @ b[:, :6], 1e-5)
    np.testing.assert_array_equal(found[:, 6:], c[:, 6:])


@needs_compiler
def test_wide_products_are_not_rounded_to_16_bits() -> None:
    hardware = Simulator()
    driver, rng = GpuDriver(hardware), np.random.default_rng(0)
    a, b = (rng.normal(size=shape).astype(np.float16) for shape in ((4, 7), (7, 5)))
    product = Product(4, 5, 7, False, False, "float16", wide=True)
    c = on_device(driver, np.zeros((4, 5), np.float32))
    ProductLaunch(hardware, product, on_device(driver, a), on_device(driver, b), c)()
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(driver.copy_out(c), wanted, 1e-5, 1e-6)


# --- the pass


def job_of(form: str, amp: bool = False, device: str = "gpu") -> Any:
    config = flow.function_config()
    if amp:
        config.enable_auto_mixed_precision(True)

    @flow.global_function("train", config)
    def job(
        x: tp.Numpy.Placeholder((BATCH, 2, 10)), y: tp.Numpy.Placeholder((2 * BATCH,), flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement(device, "0:0"):
            start = flow.random_uniform_initializer(-0.5, 0.5)
            dense = partial(flow.layers.dense, kernel_initializer=start)
            h = dense(x, 16, FORMS[form], name="first")
            h = dense(h, 12, FORMS[form], name="second")
            logits = flow.reshape(dense(h, 5, name="last"), (-1, 5))
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = flow.math.reduce_mean(loss)
            schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(schedule, momentum=0.9).minimize(loss)
        return loss

    return job


FORMS: dict[str, Callable[..., Any] | None] = {
    "relu": lambda x, name: flow.nn.relu(x),
    "gelu": lambda x, name: flow.math.gelu(x),
    "dropout": lambda x, name: flow.nn.dropout(flow.nn.relu(x), rate=0.2),
    "linear": None,
    "read twice": lambda x, name: flow.nn.relu(x) + x,
}


@pytest.fixture(autouse=True)
def own_sessions() -> Iterator[None]:
    before = list(sessions._default)
    yield
    sessions._default[:] = before


def counts(graph: Graph) -> dict[str, int]:
    found: dict[str, int] = {}
    for op in graph.ops.values():
        if op.type in ("matmul", "bias_add", "relu", "relu_grad", "gelu", "gelu_grad"):
            found[op.type] = found.get(op.type, 0) + 1
        if op.type.startswith("cuda"):
            found[op.type] = found.get(op.type, 0) + 1
    return found


BOTH = {"cuda_matmul": 3, "matmul": 2, "cuda_matmul_sum": 3}
EXPECTED = {
    "relu": {**BOTH, "relu_grad": 2},
    "gelu": {**BOTH, "gelu": 2, "gelu_grad": 2},
    "dropout": {**BOTH, "relu_grad": 2},
    "linear": BOTH,
    "read twice": {**BOTH, "relu": 2, "relu_grad": 2},
}


@pytest.mark.parametrize("amp", [False, True], ids=["float32", "mixed"])
@pytest.mark.parametrize("form", FORMS)
def test_products_and_epilogues_are_joined(form: str, amp: bool) -> None:
    registry = simulated_registry()
    sessions._default[:] = [sessions.Session(registry)]
    compiled = job_of(form, amp).compile()
    joined = FuseProducts(("relu", "gelu")).apply(compiled.logical, PassContext(registry.ops))
    verify(joined)
    assert counts(joined) == EXPECTED[form]


def test_gelu_is_joined_where_no_gradient_reads_its_input() -> None:
    registry = simulated_registry()
    sessions._default[:] = [sessions.Session(registry)]

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 6))) -> tp.Numpy:
        with flow.scope.placement("gpu", "0:0"):
            return flow.layers.dense(x, 5, flow.math.gelu, name="only")

    compiled = job.compile()
    joined = FuseProducts(("relu", "gelu")).apply(compiled.logical, PassContext(registry.ops))
    assert counts(joined) == {"cuda_matmul": 1}
    assert {op.attrs["activation"] for op in joined.of_type("cuda_matmul")} == {"gelu"}


def test_result_with_other_readers_is_kept() -> None:
    registry = simulated_registry()
    sessions._default[:] = [sessions.Session(registry)]

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 6))) -> tuple[tp.Numpy, tp.Numpy]:
        with flow.scope.placement("gpu", "0:0"):
            w = flow.get_variable("w", (6, 5), initializer=flow.ones_initializer())
            b = flow.get_variable("b", (5,), initializer=flow.ones_initializer())
            product = flow.matmul(x, w)
            return product, flow.nn.relu(flow.nn.bias_add(product, b))

    compiled = job.compile()
    joined = FuseProducts().apply(compiled.logical, PassContext(registry.ops))
    assert counts(joined) == {"matmul": 1, "bias_add": 1, "relu": 1}


@pytest.mark.representative(r"\[relu-False\]", "an epilogue with an activation")
@needs_compiler
@pytest.mark.parametrize(("form", "amp"), [("relu", False), ("dropout", False), ("relu", True)])
def test_training_matches_training_without_the_pass(form: str, amp: bool) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(BATCH, 2, 10)).astype(np.float32)
    y = rng.integers(0, 5, 2 * BATCH).astype(np.int32)
    losses = []
    for device, registry in (("gpu", simulated_registry()), ("cpu", core_registry())):
        sessions._default[:] = [sessions.Session(registry)]
        job = job_of(form, amp, device)
        losses.append([job(x, y).item() for _ in range(4)])
    assert losses[0][0] != losses[0][-1]
    np.testing.assert_allclose(*losses, rtol=5e-3 if amp else 1e-5)
