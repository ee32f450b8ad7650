"""Tiled matrix products against numpy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.dtypes import float32
from flow_core.base.errors import ConfigError
from flow_core.ir.graph import Attrs, tensor_type
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import KernelQuery
from flow_core.testing.checks import run_kernel
from flow_onednn.kernels.matmul import DEEP, PANEL, TALL, build
from flow_onednn.recipes import RecipeSequence, problem

pytestmark = pytest.mark.usefixtures("onednn")

CUT = {
    "sums": ((33, 2 * DEEP + 7, PANEL // DEEP // 4 + 5), False),
    "columns": ((45, 300, 2513), False),
    "rows": ((TALL + 9, 23, 41), True),
}


@pytest.mark.parametrize(("activation", "alpha"), [("", 0.5), ("relu", 1.0), ("gelu", 1.0)])
@pytest.mark.parametrize("kind", CUT)
def test_tiles_compose_the_product(kind: str, activation: str, alpha: float) -> None:
    (m, k, n), transposed = CUT[kind]
    rng = np.random.default_rng(m)
    a, b, bias = (
        rng.normal(0, 1, shape).astype(np.float32)
        for shape in ((k, m) if transposed else (m, k), (k, n), (n,))
    )
    arrays = [a, b] if alpha != 1.0 else [a, b, bias]
    attrs: dict[str, Any] = {
        "transpose_a": transposed, "transpose_b": False, "alpha": alpha, "activation": activation,
    }  # fmt: skip
    types = tuple(tensor_type(x.shape, float32) for x in arrays)
    query = KernelQuery("onednn_matmul", Attrs(attrs), types, (tensor_type((m, n), float32),))
    assert isinstance(build(problem(query)), RecipeSequence) or (kind, alpha) == ("sums", 0.5)
    kernel = default_registry().find_kernel(query, "cpu")
    (have,) = run_kernel(kernel, query, arrays)
    reference = default_registry().ops["onednn_matmul"].reference
    assert reference is not None
    want = reference(*(x.astype(float) for x in arrays), **attrs)
    np.testing.assert_allclose(have, want, 1e-4, 1e-3)


def test_scaled_product_with_bias_is_not_fused() -> None:
    """The library would also scale the bias."""
    attrs = {"transpose_a": False, "transpose_b": False, "alpha": 2.0, "activation": ""}
    types = tuple(tensor_type(shape, float32) for shape in ((3, 4), (4, 5), (5,)))
    query = KernelQuery("onednn_matmul", Attrs(attrs), types, (tensor_type((3, 5), float32),))
    assert build(problem(query)) is None


def trained(mode: str | None) -> tuple[list[float], set[Any]]:
    """Return the losses of a small network and the product modes recorded in its plan."""
    flow.clear_default_session()
    config = flow.FunctionConfig()
    if mode is not None:
        config.math_mode(mode)

    @flow.global_function(type="train", function_config=config)
    def job(
        x: tp.Numpy.Placeholder((8, 3, 16, 16)),  # type: ignore[valid-type]
        y: tp.Numpy.Placeholder((8,), dtype=flow.int32),  # type: ignore[valid-type]
    ) -> tp.Numpy:
        draw = flow.random_normal_initializer(stddev=0.1)
        h = flow.layers.conv2d(x, 16, 3, padding="SAME", kernel_initializer=draw, name="a")
        h = flow.layers.conv2d(h, 32, 3, padding="SAME", kernel_initializer=draw, name="b")
        h = flow.layers.dense(flow.reshape(h, (8, -1)), 64, kernel_initializer=draw, name="c")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, h)
        rate = flow.optimizer.PiecewiseConstantScheduler([], [0.001])
        flow.optimizer.SGD(rate, momentum=0).minimize(loss)
        return loss

    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, (8, 3, 16, 16)).astype(np.float32)
    y = rng.integers(0, 64, 8).astype(np.int32)
    losses = [float(job(x, y).mean()) for _ in range(3)]
    products = [t for t in job.plan().tasks if "conv" in t.type or "matmul" in t.type]
    assert products
    return losses, {t.attrs.get("math", "") for t in products}


def test_products_may_be_rounded_if_the_job_allows_it() -> None:
    exact, said = trained(None)
    assert said == {""}
    assert trained("float32")[0] == exact
    rounded, said = trained("bfloat16")
    assert said == {"bfloat16"}
    np.testing.assert_allclose(rounded, exact, 0.02)


def test_unknown_rounding_mode_is_rejected() -> None:
    with pytest.raises(ConfigError, match="'float32' or 'bfloat16'"):
        flow.FunctionConfig().math_mode("float8")


UPDATED = {
    "first operand transposed": ((784, 100, 512), (True, False)),
    "both": ((65, 33, 40), (True, True)),
    "rows": ((TALL + 9, 30, 12), (True, False)),
    "sums": ((40, 2 * DEEP + 7, PANEL // DEEP // 4 + 5), (False, False)),
}


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("kind", UPDATED)
def test_product_added_to_a_variable_is_the_update(kind: str, scaled: bool) -> None:
    (m, k, n), (ta, tb) = UPDATED[kind]
    rng = np.random.default_rng(k)
    model, a, b = (
        rng.normal(0, 1, shape).astype(np.float32)
        for shape in ((m, n), (k, m) if ta else (m, k), (n, k) if tb else (k, n))
    )
    numbers = [np.array(x, np.float32) for x in ((0.1, 0.5) if scaled else (0.1,))]
    product = (a.T if ta else a).astype(float) @ (b.T if tb else b)
    wanted = model - 0.1 * 0.25 * (0.5 if scaled else 1.0) * product
    arrays = [model, a, b, *numbers]
    attrs = Attrs({"transpose_a": ta, "transpose_b": tb, "scale": 0.25})
    query = KernelQuery(
        "onednn_matmul_sgd", attrs, tuple(tensor_type(x.shape, float32) for x in arrays), ()
    )
    run_kernel(default_registry().find_kernel(query, "cpu"), query, arrays)
    np.testing.assert_allclose(model, wanted, 1e-5, 2e-5)


def test_gradients_read_by_sgd_only_are_never_stored() -> None:
    """Gradients that are fetched, clipped or read by other optimizers are stored."""

    def types(momentum: float, clip: float | None = None) -> list[str]:
        flow.clear_default_session()

        @flow.global_function(type="train")
        def job(x: tp.Numpy.Placeholder((8, 30))) -> tp.Numpy:  # type: ignore[valid-type]
            draw = flow.random_normal_initializer()
            h = flow.layers.dense(x, 20, flow.nn.relu, kernel_initializer=draw, name="a")
            loss = flow.math.reduce_mean(
                flow.layers.dense(h, 10, kernel_initializer=draw, name="b")
            )
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.001])
            limit = clip and flow.optimizer.grad_clipping.by_global_norm(clip)
            flow.optimizer.SGD(rate, momentum=momentum, grad_clipping=limit).minimize(loss)
            return loss

        return [task.type for task in job.plan().tasks]

    assert types(0).count("onednn_matmul_sgd") == 2
    assert types(0).count("onednn_sgd_updates") == 1, "the biases'"
    assert "onednn_matmul_sgd" not in types(0.9)
    assert "onednn_matmul_sgd" not in types(0, clip=1.0)
