"""The kernels against the ops' references, with the kernel kit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flow_core.base.config import Settings
from flow_core.plugins.host import load_plugins
from flow_core.plugins.registry import Registry
from flow_core.testing import Deviation, KernelKit
from flow_core.testing.kit import Gap
from flow_onednn.library import Missing, library, state
from flow_onednn.native.expressions import TABLE
from flow_onednn.plugin import flow_register_kernels
from flow_onednn.update_references import JOINED

_STATE = state()
pytestmark = [
    pytest.mark.arithmetic,
    pytest.mark.representative(
        r"test_(agrees|special_values|tiles|batchable|in_place)\[.*-(float32|as_given)\]"
        r"|test_every_kernel_is_compared",
        "every op in the usual type; enlarged inputs, bfloat16 and threads take ten times as long",
    ),
    pytest.mark.skipif(
        isinstance(_STATE, Missing), reason=f"no oneDNN: {getattr(_STATE, 'reason', '')}"
    ),
]


OPAQUE = (
    "onednn_pack",
    "onednn_packed_matmul",
    "onednn_pack_conv",
    "onednn_packed_conv",
    "onednn_conv_chain",
    "onednn_pack_int8",
    "onednn_int8_conv",
    "onednn_int8_pool",
    "onednn_quantize",
    "onednn_max_pool",
    "onednn_max_pool_grad",
    "onednn_norm_relu",
    "onednn_norm_relu_grad",
)
"""Ops with an output in the library's own layout, and ops on levels: see test_norm_pool.py,
test_packed.py, test_chain.py, passes/test_pack_convs.py and passes/test_int8.py."""


SAMPLED = (
    "relu",
    "relu_grad",
    "gelu_grad",
    "add_n",
    "broadcast_add",
    "dropout",
    "bias_add",
    "cast",
)
"""Elementwise ops tested here; they share a generator, and test_loops.py tests all formulas."""

INFINITE = ("inf", "-inf", "mixed")
LABELS = ("integer_max", "integer_min", "mixed")
TERMS = "infinities cancel or meet a zero, depending on how terms are grouped"
WEIGHTS = "a weight that is not finite is multiplied by coefficients of 0, too"
CANCELS = "penalties cancel a gradient, or a square of a mean a mean of squares"
PADDING = "padding is left out, not multiplied by weights"
DEVIATIONS = (
    *(Deviation(op, ("nan",), TERMS, INFINITE)
      for op in (
          "layer_norm_grad", "normalization_grad", "sparse_softmax_cross_entropy_grad",
      )),
    *(Deviation(op, ("nan",), TERMS, INFINITE, everywhere=False)
      for op in (
          "batch_matmul", "conv_data_grad", "conv_filter_grad", "onednn_conv_data_grad",
          "onednn_norm_add_relu",
      )),
    *(Deviation(op, ("nan", "lost"), PADDING, ("nan", "-nan", *INFINITE), everywhere=False)
      for op in ("conv2d", "onednn_conv")),
    *(Deviation(op, ("nan",), WEIGHTS, ("-nan", "nan", *INFINITE))
      for op in ("adagrad_update", "adam_update", "lars_update", "lion_update", "momentum_update",
                 "rmsprop_update", "sgd_update")),
    *(Deviation(op, ("finite", "infinity", "lost", "nan"), CANCELS, everywhere=False)
      for op in ("centered_rmsprop_update", "onednn_centered_rmsprop_updates",
                 "onednn_rmsprop_updates")),
    *(Deviation(op, ("nan",), WEIGHTS, ("-nan", "nan", *INFINITE), everywhere=False)
      for op in (*(row.type for row in JOINED), "onednn_matmul_sgd", "onednn_sparse_adam",
                 "onednn_sparse_sgd", "summed_sgd_update")),
    Deviation("onednn_sparse_adam", ("lost",), "rows without a gradient and moments are left out",
              ("mixed",), everywhere=False),
    *(Deviation(op, ("nan",), TERMS, INFINITE, everywhere=False)
      for op in ("indexed_slices_adam_update", "indexed_slices_momentum_update",
                 "indexed_slices_sgd_update")),
    *(Deviation(op, ("finite", "lost"), "the squares of a norm underflow or overflow",
                everywhere=False)
      for op in ("lamb_update", "onednn_lamb_updates", "onednn_lars_updates")),
    Deviation("onednn_matmul", ("nan",), "the library's gelu of inf is NaN", INFINITE,
              everywhere=False),
    Deviation("dropout", ("finite",), "a mask has 0 and 1 only; others count as 1", LABELS),
    *(Deviation(op, ("zero_sign",), "max(0, -0) may be either", everywhere=False)
      for op in ("dropout", "relu")),
    Deviation("sparse_softmax_cross_entropy_grad", ("refused",),
              "labels outside of the classes are an error; the reference takes them", LABELS),
    *(Deviation(op, ("subnormal",), "the library flushes subnormal bfloat16",
                dtypes=("bfloat16",), everywhere=False)
      for op in (
          "avg_pool_2d", "avg_pool_2d_grad", "batch_matmul", "conv2d", "conv_data_grad",
          "conv_filter_grad", "matmul", "onednn_conv", "onednn_conv_data_grad",
          "onednn_conv_filter_grad", "onednn_matmul", "transpose",
      )),
    Deviation("normalization_grad", ("subnormal",), "the library flushes subnormal variances",
              ("subnormal", "-subnormal"), everywhere=False),
)  # fmt: skip


class TestKernels(KernelKit):
    deviations = DEVIATIONS
    plugin = "flow-onednn"
    dtypes = ("float32", "bfloat16")
    thread_counts = (1, 2, 3)
    # dozens of slices are subtracted from a row one by one, whose rounding depends on the processor
    tolerances = {("onednn_sparse_sgd", "float32"): (1e-4, 1e-4)}  # noqa: RUF012 - never changed
    gaps = (
        Gap(
            "normalization",
            "notyet",
            "oneDNN divides the statistics of a batch by its threads",
            checks=("same_bits_on_any_threads",),
            dtypes=("float32",),
        ),
    )
    ops = tuple(
        sorted({k.op for k in flow_register_kernels()} - set(OPAQUE) - (set(TABLE) - set(SAMPLED)))
    )

    def registry(self) -> Registry:
        return load_plugins(replace(Settings.from_env(), disabled_plugins=()))

    def absent(self, name: str) -> str:
        isa = library().isa
        if isa.startswith("AVX512"):
            return ""
        if name == "summed_sgd_update":
            return f"a product that accumulates has other bits than separate products on {isa}"
        return ""
