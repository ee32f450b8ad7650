"""Matrix products that are cut into pieces, against numpy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.dtypes import float32
from flow_core.errors import ConfigError
from flow_core.ir import Attrs, tensor_type
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import KernelQuery
from flow_core.testing.checks import run_kernel
from flow_onednn.kernels.matmul import DEEP, PANEL, TALL, cook
from flow_onednn.recipes import Pieces, problem

pytestmark = pytest.mark.usefixtures("onednn")

CUT = {
    "sums": ((33, 2 * DEEP + 7, PANEL // DEEP // 4 + 5), False),
    "columns": ((45, 300, 2513), False),
    "rows": ((TALL + 9, 23, 41), True),
}


@pytest.mark.parametrize(("activation", "alpha"), [("", 0.5), ("relu", 1.0), ("gelu", 1.0)])
@pytest.mark.parametrize("kind", CUT)
def test_pieces_make_the_product(kind: str, activation: str, alpha: float) -> None:
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
    assert isinstance(cook(problem(query)), Pieces) or (kind, alpha) == ("sums", 0.5)
    kernel = default_registry().find_kernel(query, "cpu")
    (have,) = run_kernel(kernel, query, arrays)
    reference = default_registry().ops["onednn_matmul"].reference
    assert reference is not None
    want = reference(*(x.astype(float) for x in arrays), **attrs)
    np.testing.assert_allclose(have, want, 1e-4, 1e-3)


def test_a_scaled_product_with_bias_is_left_alone() -> None:
    """The library would scale the bias, too."""
    attrs = {"transpose_a": False, "transpose_b": False, "alpha": 2.0, "activation": ""}
    types = tuple(tensor_type(shape, float32) for shape in ((3, 4), (4, 5), (5,)))
    query = KernelQuery("onednn_matmul", Attrs(attrs), types, (tensor_type((3, 5), float32),))
    assert cook(problem(query)) is None


def trained(mode: str | None) -> tuple[list[float], set[Any]]:
    """Losses of a small network, and what its plan says of how products are computed."""
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
        rate = flow.optimizer.PiecewiseConstantScheduler([], [0.01])
        flow.optimizer.SGD(rate, momentum=0).minimize(loss)
        return loss

    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, (8, 3, 16, 16)).astype(np.float32)
    y = rng.integers(0, 64, 8).astype(np.int32)
    losses = [float(job(x, y).mean()) for _ in range(3)]
    products = [t for t in job.plan().tasks if "conv" in t.type or "matmul" in t.type]
    assert products
    return losses, {t.attrs.get("math", "") for t in products}


def test_products_may_be_rounded_where_a_job_allows_it() -> None:
    exact, said = trained(None)
    assert said == {""}
    assert trained("float32")[0] == exact
    rounded, said = trained("bfloat16")
    assert said == {"bfloat16"}
    np.testing.assert_allclose(rounded, exact, 0.02)


def test_another_way_to_round_is_refused() -> None:
    with pytest.raises(ConfigError, match="'float32' or 'bfloat16'"):
        flow.FunctionConfig().math_mode("float8")
