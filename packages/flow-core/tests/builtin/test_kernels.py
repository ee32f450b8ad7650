"""The numpy kernels match the references of all ops and satisfy the kernel contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest

from flow_core.ops.system import summary
from flow_core.testing import Deviation, Gap, KernelKit

pytestmark = [pytest.mark.arithmetic, pytest.mark.sampled(0.34)]


@contextmanager
def small_buffers() -> Iterator[None]:
    """Shrink numpy's broadcasting buffers, which do not count as temporary arrays."""
    size = np.setbufsize(64)
    try:
        yield
    finally:
        np.setbufsize(size)


SUMMARIES = tuple(spec.type for spec in summary.OPS)
TEMPORARIES = "numpy makes temporary arrays"


def temporaries(op: str, *dtypes: str) -> Gap:
    return Gap(op, "notyet", TEMPORARIES, ("allocates_nothing",), dtypes)


INFINITE = ("inf", "-inf", "mixed")
LABELS = ("integer_max", "integer_min", "mixed")
ZEROS = "computed without branches: a sum, or the larger one, of zeros of both signs"
SPREAD = "products of all weights are added where windows overlap, also those with zeros"
TERMS = "infinities cancel or meet a zero, depending on how terms are grouped"
CANCELS = "a mean of squares less the square of a mean cancels"
REFUSED = "labels and indices outside of the classes are an error; the reference takes them"
OWN_NAN = "max(x, 0) + slope min(x, 0): a slope that is not finite meets a zero"
DEVIATIONS = (
    *(Deviation(op, ("nan",), SPREAD, INFINITE)
      for op in ("conv_data_grad", "deconv1d", "deconv2d", "deconv3d")),
    *(Deviation(op, ("zero_sign",), ZEROS)
      for op in ("elu", "hardtanh", "leaky_relu", "prelu")),
    *(Deviation(op, ("zero_sign",), ZEROS, everywhere=False)
      for op in (
          "broadcast_maximum", "broadcast_minimum", "l1_l2_regularize_gradient", "relu", "sign",
      )),
    *(Deviation(op, ("nan",), TERMS, INFINITE)
      for op in (
          "adam_update", "lamb_update", "lars_update", "momentum_update", "normalization",
          "normalization_grad", "rmsprop_update", "sgd_update", "softmax_cross_entropy",
          "sparse_softmax_cross_entropy_grad",
      )),
    *(Deviation(op, ("nan",), TERMS, INFINITE, everywhere=False)
      for op in (
          "matmul_onto", "reduce_prod_grad", "summed_adam_update", "summed_momentum_update",
          "summed_rmsprop_update", "summed_sgd_update",
      )),
    Deviation("normalization_grad", ("lost",), TERMS, ("largest", "lowest"), ("float64",), False),
    *(Deviation(op, ("refused",), REFUSED, LABELS)
      for op in ("one_hot", "sparse_cross_entropy_grad", "sparse_softmax_cross_entropy_grad")),
    Deviation("prelu", ("nan",), OWN_NAN, ("nan", "-nan", *INFINITE)),
    Deviation("digamma", ("infinity", "nan"), "the sign at a pole", ("-zero", "lowest", "mixed")),
    Deviation("lgamma", ("nan",), "the reflection of -inf has no angle", ("-inf", "mixed")),
    Deviation(
        "softmax_cross_entropy", ("lost",),
        "logarithms are bounded by the largest numbers: a probability of 0 times -inf is 0",
        ("-inf", "mixed"),
    ),
    *(Deviation(op, ("finite", "infinity", "lost", "nan"), CANCELS)
      for op in ("centered_rmsprop_update", "summed_centered_rmsprop_update")),
    Deviation("lamb_update", ("finite", "lost"), "the squares of a norm underflow or overflow",
              ("subnormal", "-subnormal", "mixed", "largest", "lowest"), everywhere=False),
    Deviation("CategoricalOrdinalEncode", ("finite",),
              "a table has only what the op has put there", ("mixed",)),
    Deviation(
        "upsample", ("lost", "nan"), "pixels of weight 0 are left out", ("nan", "-nan", *INFINITE)
    ),
    *(Deviation(op, ("finite",), "integers wrap around, the reference has wider ones",
                ("integer_max", "integer_min", "mixed"), everywhere=False)
      for op in ("reduce_prod_grad", "tril")),
)  # fmt: skip


class TestNumpyKernels(KernelKit):
    plugin = "core.numpy"
    deviations = DEVIATIONS
    special_dtypes = ("float32", "bfloat16", "int8")
    gaps = (
        *(Gap(op, "never", "writes a file, which test_summary.py reads") for op in SUMMARIES),
        Gap("python_kernel", "never", "is a function of a program: test_custom_op.py"),
        temporaries("arg_sort", "float64", "int64", "as_given"),
        temporaries("batch_gather"),
        temporaries("dim_gather"),
        temporaries("dim_scatter_add_like"),
        temporaries("gather", "as_given"),
        temporaries("in_top_k"),
        temporaries("indexed_slices_adam_update"),
        temporaries("indexed_slices_momentum_update"),
        temporaries("indexed_slices_sgd_update"),
        temporaries("top_k", "float64", "int64"),
        temporaries("unique_with_counts"),
        temporaries("unsorted_batch_segment_sum"),
        temporaries("unsorted_segment_sum", *KernelKit.dtypes),
        temporaries("unsorted_segment_sum_like"),
    )

    def steady_context(self) -> AbstractContextManager[None]:
        return small_buffers()


@pytest.mark.slow
@pytest.mark.exhaustive
class TestSpecialValuesOfAllTypes(TestNumpyKernels):
    special_dtypes = None
    special_cases = 4

    def parameters(self, check: str) -> Iterator[Any]:
        return super().parameters(check) if check == "special_values" else iter(())
