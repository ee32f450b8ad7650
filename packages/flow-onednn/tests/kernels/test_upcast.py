"""bfloat16: conversions, products, native or in float32, and mixed precision in whole jobs."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.alignment import aligned
from flow_core.base.config import Settings
from flow_core.base.dtypes import as_dtype, bfloat16, float32
from flow_core.frontend.config import precision
from flow_core.frontend.config.precision import half_type
from flow_core.ir.graph import Attrs, tensor_type
from flow_core.plugins.host import default_registry, load_plugins
from flow_core.plugins.specs import KernelQuery
from flow_core.testing.checks import run_kernel
from flow_onednn import library, recipes
from flow_onednn.kernels import norm, upcast
from flow_onednn.kernels.convolution.conv import build_data_grad
from flow_onednn.native import compiler
from flow_onednn.native.calls import CONVERTED
from flow_onednn.recipes import Problem

pytestmark = [
    pytest.mark.usefixtures("onednn"),
    pytest.mark.skipif(not compiler.available(), reason=f"no C compiler: {compiler.state()}"),
]

STRANGE = [0.0, -0.0, np.inf, -np.inf, np.nan, 1 + 2**-8, 1 + 3 * 2**-8, 3e38, 1e-40, -1e-45]


def cast(x: Any, to: str) -> Any:
    """Cast with our kernel of the op."""
    types = (tensor_type(x.shape, as_dtype(x.dtype)),), (tensor_type(x.shape, as_dtype(to)),)
    query = KernelQuery("cast", Attrs({"dtype": to}), *types)
    kernel = default_registry().find_kernel(query, "cpu")
    assert kernel.name == "c.cast"
    (y,) = run_kernel(kernel, query, [x])
    return y


def test_rounding_matches_ml_dtypes() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([STRANGE, rng.normal(0, 1, 40_000)]).astype(np.float32)
    half = cast(x, "bfloat16")
    wanted = x.astype(bfloat16.numpy)
    np.testing.assert_array_equal(np.isnan(half), np.isnan(wanted))
    known = ~np.isnan(wanted)
    np.testing.assert_array_equal(half.view(np.uint16)[known], wanted.view(np.uint16)[known])
    np.testing.assert_array_equal(cast(half, "float32"), half.astype(np.float32))


@pytest.mark.parametrize("amx", [False, True])
@pytest.mark.parametrize("op", ["matmul", "conv2d", "conv_data_grad", "conv_filter_grad"])
def test_products_with_and_without_tiles(
    op: str, amx: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's bfloat16 products are correct on any processor that supports them."""
    if amx and not library.half_types():
        pytest.skip("no instructions for bfloat16")
    monkeypatch.setattr(recipes, "has_fast_half", lambda: amx)
    spec = default_registry().ops[op]
    assert spec.samples is not None
    tried = 0
    for sample in spec.samples(np.random.default_rng(1)):
        arrays = [np.asarray(x).astype(bfloat16.numpy) for x in sample.inputs]
        attrs = dict(spec.attrs) | dict(sample.attrs)
        wide = [a.astype(np.float64) for a in arrays]
        assert spec.reference is not None
        want = np.asarray(spec.reference(*wide, **attrs))
        types = tuple(tensor_type(a.shape, bfloat16) for a in arrays)
        query = KernelQuery(op, Attrs(attrs), types, (tensor_type(want.shape, bfloat16),))
        kernel = default_registry().find_kernel(query, "cpu")
        if not kernel.name.startswith("onednn."):
            continue
        tried += 1
        (have,) = run_kernel(kernel, query, arrays)
        np.testing.assert_allclose(have.astype(float), want, 2e-2, 2e-2)
    assert tried > 1


def test_strided_depthwise_gradient_in_bfloat16_runs_in_float32() -> None:
    """The library's bfloat16 primitive takes 40 times as long (findings)."""
    rng = np.random.default_rng(0)
    attrs = {
        "kernel_size": (3, 3), "strides": (2, 2), "dilation_rate": (1, 1), "padding_before": (1, 1),
        "groups": 16, "weights_last": False, "space": (8, 8), "math": "",
    }  # fmt: skip
    arrays = [rng.uniform(-1, 1, s).astype(bfloat16.numpy) for s in ((2, 4, 4, 16), (16, 1, 3, 3))]
    types = tuple(tensor_type(a.shape, bfloat16) for a in arrays)
    out = tensor_type((2, 8, 8, 16), bfloat16)
    items = tuple(sorted(attrs.items()))
    assert build_data_grad(Problem("onednn_conv_data_grad", types, (out,), items)) is None
    spec = default_registry().ops["onednn_conv_data_grad"]
    query = KernelQuery(spec.type, Attrs(attrs), types, (out,))
    (have,) = run_kernel(default_registry().find_kernel(query, "cpu"), query, arrays)
    assert spec.reference is not None
    want = spec.reference(*(a.astype(np.float64) for a in arrays), **attrs)
    np.testing.assert_allclose(have.astype(float), want, 1e-2, 1e-2)


@pytest.mark.parametrize("op", ["onednn_matmul", "onednn_conv_filter_grad"])
def test_float32_sums_of_bfloat16_products_are_not_rounded(op: str) -> None:
    spec = default_registry().ops[op]
    assert spec.samples is not None
    assert spec.reference is not None
    tried = 0
    for sample in spec.samples(np.random.default_rng(1)):
        attrs = dict(spec.attrs) | dict(sample.attrs) | {"wide": True, "activation": ""}
        arrays = [np.asarray(x).astype(bfloat16.numpy) for x in sample.inputs[:2]]
        if attrs.get("bias"):
            continue
        known = {k: v for k, v in attrs.items() if k in spec.attrs}
        want = np.asarray(spec.reference(*(a.astype(np.float64) for a in arrays), **known))
        types = tuple(tensor_type(a.shape, bfloat16) for a in arrays)
        query = KernelQuery(op, Attrs(known), types, (tensor_type(want.shape, float32),))
        (have,) = run_kernel(default_registry().find_kernel(query, "cpu"), query, arrays)
        np.testing.assert_allclose(have, want, 1e-5, 1e-5)
        tried += 1
    assert tried > 1


def test_updates_read_gradients_that_were_not_rounded() -> None:
    plan = train_job(mixed=True).plan()
    makers = {output: task.type for task in plan.tasks for output in task.outputs}
    updates = [task for task in plan.tasks if task.type in ("sgd_update", "onednn_sgd_updates")]
    read = [i for task in updates for i in task.inputs if len(plan.buffers[i].type.shape) > 1]
    assert {makers[i] for i in read if i in makers} == {"onednn_conv_filter_grad", "onednn_matmul"}


@pytest.mark.parametrize("op", ["softmax", "avg_pool_2d", "max_pool_2d", "transpose"])
def test_kernels_accept_bfloat16_without_native_instructions(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes, "half_types", lambda: ())
    spec = default_registry().ops[op]
    assert spec.samples is not None
    assert spec.reference is not None
    tried = 0
    for sample in spec.samples(np.random.default_rng(1)):
        arrays = [np.asarray(x).astype(bfloat16.numpy) for x in sample.inputs]
        attrs = dict(spec.attrs) | dict(sample.attrs)
        want = np.asarray(spec.reference(*(a.astype(np.float64) for a in arrays), **attrs))
        types = tuple(tensor_type(a.shape, bfloat16) for a in arrays)
        query = KernelQuery(op, Attrs(attrs), types, (tensor_type(want.shape, bfloat16),))
        kernel = default_registry().find_kernel(query, "cpu")
        if kernel.name.startswith("numpy."):
            continue
        tried += 1
        (have,) = run_kernel(kernel, query, arrays)
        np.testing.assert_allclose(have.astype(float), want, 2e-2, 2e-2)
    assert tried


ROW_LOOPS = {
    "softmax": ({"axis": -1}, "h", "h"),
    "softmax_grad": ({"axis": -1}, "hh", "h"),
    "layer_norm": (
        {"begin_norm_axis": 1, "begin_params_axis": 1, "epsilon": 1e-5, "center": True,
         "scale": True}, "hpp", "hff",
    ),
    "layer_norm_grad": ({"begin_norm_axis": 1, "epsilon": 1e-5}, "hhff", "h"),
}  # fmt: skip
"""Attributes of an op, and the kinds of its inputs and outputs: bfloat16 rows, a bfloat16
parameter per column, or a float32 number per row."""


@pytest.mark.parametrize("sizes", [(1, 48), (3, 47), (129, 5), (1000, 130), (64, 8192), (2, 9001)])
@pytest.mark.parametrize("op", ROW_LOOPS)
def test_loops_over_rows_convert_blocks_of_rows(op: str, sizes: tuple[int, int]) -> None:
    """The results are those of the float32 loop; rows beyond a block are converted as a whole."""
    attrs, *kinds = ROW_LOOPS[op]
    rows, columns = sizes
    shapes = {"h": sizes, "p": (columns,), "f": (rows,)}
    inputs, outputs = (
        tuple(tensor_type(shapes[k], as_dtype("float32" if k == "f" else "bfloat16")) for k in side)
        for side in kinds
    )
    rng = np.random.default_rng(3)
    arrays = [rng.normal(1, 1, t.shape).astype(t.dtype.numpy) for t in inputs]
    query = KernelQuery(op, Attrs(attrs), inputs, outputs)
    kernel = default_registry().find_kernel(query, "cpu")
    found = run_kernel(kernel, query, arrays)
    wide = upcast.upcast_query(query)
    floats = default_registry().find_kernel(wide, "cpu")
    wanted = run_kernel(floats, wide, [x.astype(np.float32) for x in arrays])
    for have, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(have, want.astype(have.dtype))
    in_blocks = columns * (kinds[0].count("h") + 1) <= CONVERTED
    copies = sum(aligned(4 * t.size) for t in (*inputs, *outputs) if upcast.is_half(t))
    assert kernel.workspace is not None
    assert (kernel.workspace(query) < copies) == in_blocks


@pytest.mark.parametrize("half", ["x", "moving_mean"])
def test_bfloat16_statistics_are_not_updated_on_copies(
    half: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Updates of copies would be lost: only the activations of normalization may be half."""
    monkeypatch.setattr(norm, "half_types", lambda: ())
    image, vector = tensor_type((4, 3), bfloat16), tensor_type((3,), as_dtype("float32"))
    moving = tensor_type((3,), bfloat16) if half == "moving_mean" else vector
    attrs = Attrs({"axis": 1, "epsilon": 1e-5, "momentum": 0.9, "training": True})
    inputs = (image, moving, vector, vector, vector)
    query = KernelQuery("normalization", attrs, inputs, (image, vector, vector))
    name = default_registry().find_kernel(query, "cpu").name
    assert name == ("onednn.normalization" if half == "x" else "numpy.normalization")


def train_job(mixed: bool) -> Any:
    """Build a training step of a convolutional network with all ops that mixed precision casts."""
    flow.clear_default_session()
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(mixed)

    @flow.global_function(type="train", function_config=config)
    def job(
        x: tp.Numpy.Placeholder((8, 3, 16, 16)),  # type: ignore[valid-type]
        y: tp.Numpy.Placeholder((8,), dtype=flow.int32),  # type: ignore[valid-type]
    ) -> tp.Numpy:
        draw = flow.random_normal_initializer(stddev=0.1)
        h = flow.layers.conv2d(x, 16, 3, padding="SAME", kernel_initializer=draw, name="a")
        h = flow.nn.relu(flow.layers.batch_normalization(h, axis=1, name="norm"))
        h = flow.layers.conv2d(
            flow.nn.max_pool2d(h, 2, 2, "VALID"), 8, 3, padding="SAME", activation=flow.nn.relu,
            kernel_initializer=draw, name="b",
        )  # fmt: skip
        h = flow.layers.dense(flow.reshape(h, (8, -1)), 64, kernel_initializer=draw, name="c")
        h = flow.layers.layer_norm(flow.math.gelu(h), name="rows")
        h = flow.layers.dense(flow.nn.dropout(h, 0.1), 10, kernel_initializer=draw, name="d")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, h)
        rate = flow.optimizer.PiecewiseConstantScheduler([], [0.01])
        flow.optimizer.SGD(rate, momentum=0).minimize(loss)
        return loss

    return job


@pytest.mark.slow
def test_mixed_precision_trains_on_our_kernels(caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, (8, 3, 16, 16)).astype(np.float32)
    y = rng.integers(0, 10, 8).astype(np.int32)
    exact = [float(job(x, y).mean()) for job in [train_job(False)] for _ in range(6)]
    upcast._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING, "flow_onednn"):
        job = train_job(True)
        mixed = [float(job(x, y).mean()) for _ in range(6)]
    np.testing.assert_allclose(mixed, exact, 0.03)
    assert exact[-1] < exact[0]
    assert mixed != exact
    plan = job.plan()
    half = {
        t.kernel for t in plan.tasks for b in (*t.inputs, *t.outputs)
        if plan.buffers[b].type.dtype is bfloat16
    }  # fmt: skip
    assert {"onednn.onednn_conv", "onednn.onednn_matmul", "c.layer_norm"} <= half
    assert not any(kernel.startswith("numpy.") for kernel in half), half
    told = [r.getMessage() for r in caplog.records if "saves memory here" in r.getMessage()]
    assert len(told) == (0 if library.has_fast_half() else 1)


def test_device_without_half_products_uses_float16_and_reports_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Like OneFlow."""
    ops = list(train_job(False).compile().logical.ops.values())
    bare = load_plugins(replace(Settings.from_env(), disabled_plugins=("flow-onednn",)))
    precision._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING, "flow_core"):
        assert half_type(bare, ops) == half_type(bare, ops) == "float16"
    (told,) = [r.getMessage() for r in caplog.records]
    assert "no kernel of device type 'cpu' multiplies half types natively" in told
    assert half_type(default_registry(), ops) == "bfloat16"
    assert half_type(bare, []) == "float16"
