"""The numpy kernels match the references of all ops and satisfy the kernel contract."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest

from flow_core.ops.array import select
from flow_core.ops.system import summary
from flow_core.ops.training import indexed_updates, optim
from flow_core.ops.training import summed_updates as summed
from flow_core.plugins.specs import OpSpec, Sample
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


def updates(row: optim.Update, rng: Any) -> Iterator[Sample]:
    """Yield inputs of an optimizer's update; test_optim.py checks the values."""
    for shape in ((7,), (3, 5), ()):
        arrays = [rng.uniform(0.5, 2, shape) for _ in ("model", "model_diff")]
        arrays += [np.array(0.1)] + [np.array(3)] * row.step
        arrays += [rng.uniform(0.5, 2, shape) for _ in row.states]
        arrays += [np.array(0.5) for _ in row.numbers]
        yield Sample(tuple(arrays), {"l1": 0.1, "l2": 0.2, "weight_decay": 0.01})
        yield Sample((*arrays, np.array(0.5), np.array(0)))
        yield Sample((*arrays, np.array(1)), note="skipped")


def summed_updates(row: optim.Update, rng: Any) -> Iterator[Sample]:
    """Yield inputs of a fused gradient update; test_summed_updates.py checks the bits."""
    for rows, deep, columns, parts in ((5, 3, 4, 2), (40, 2, 3, 3)):
        arrays = [rng.uniform(0.5, 2, (rows, columns)), np.array(0.1)]
        arrays += [rng.uniform(0.5, 2, (rows, columns)) for _ in row.states]
        for _ in range(parts):
            arrays += [rng.uniform(0.5, 2, (deep, n)) for n in (rows, columns)]
        yield Sample(tuple(arrays), {"transpose_a": True, "parts": parts, "l2": 0.2})


def row_updates(spec: OpSpec, rng: Any) -> Iterator[Sample]:
    """Yield inputs of a sparse row update."""
    for shape, lookups in (((7,), (3,)), ((3, 5), (2, 4)), ((4, 2, 3), (1,))):
        model, *states = (rng.uniform(0.5, 2, shape) for _ in spec.mutates)
        index = rng.integers(-1, shape[0] + 1, lookups).astype(np.int32)
        values = rng.uniform(0.5, 2, (*lookups, *shape[1:]))
        yield Sample((model, index, values, np.array(0.1), *states), {"weight_decay": 0.01})


SAMPLES: dict[str, Any] = {
    "assign": lambda rng: [
        Sample((rng.uniform(-1, 1, shape), rng.uniform(-1, 1, shape)))
        for shape in ((3, 5), (), (0, 2))
    ],
    "advance_step": lambda _: [Sample((np.array(41),))],
    "dynamic_loss_scale_schedule": lambda _: [
        Sample((np.array(bad), np.array(8.0), np.array(steps)), {"increment_period": 4})
        for bad in (0, 3)
        for steps in (0, 3)
    ],
    "literal": lambda _: [
        Sample((), {"shape": (2, 3), "dtype": "float16", "data": (1.5, 2, 3, 4, 5, 6)}),
        Sample((), {"shape": (0,), "dtype": "bool", "data": ()}),
    ],
    "logical_slice_assign": next(s for s in select.OPS if s.type == "slice_update").samples,
    **{row.type: lambda rng, row=row: updates(row, rng) for row in optim.TABLE},
    **{name: lambda rng, row=row: summed_updates(row, rng) for name, row in summed.ROWS.items()},
    **{spec.type: lambda rng, spec=spec: row_updates(spec, rng) for spec in indexed_updates.OPS},
}
"""Samples of ops whose specs have none, since they have no reference."""

SUMMARIES = tuple(spec.type for spec in summary.OPS)
TEMPORARIES = "numpy makes temporary arrays"


def temporaries(op: str, *dtypes: str) -> Gap:
    return Gap(op, "notyet", TEMPORARIES, ("allocates_nothing",), dtypes)


INFINITE = ("inf", "-inf", "mixed")
LABELS = ("integer_max", "integer_min", "mixed")
ZEROS = "computed without branches: a sum, or the larger one, of zeros of both signs"
SPREAD = "products of all weights are added where windows overlap, also those with zeros"
TERMS = "infinities cancel or meet a zero, depending on how terms are grouped"
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
          "normalization", "normalization_grad", "softmax_cross_entropy",
          "sparse_softmax_cross_entropy_grad",
      )),
    *(Deviation(op, ("nan",), TERMS, INFINITE, everywhere=False)
      for op in (
          "matmul_onto", "reduce_prod_grad", "summed_adam_update",
          "summed_centered_rmsprop_update", "summed_momentum_update", "summed_rmsprop_update",
          "summed_sgd_update",
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
    Deviation(
        "summed_centered_rmsprop_update", ("finite",),
        "a mean of squares less a square cancels; test_summed_updates.py has the bits",
        everywhere=False,
    ),
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
        Gap("fused", "notyet", "a group has no reference and no samples of its own"),
        *(Gap(op, "never", "writes a file, which test_summary.py reads") for op in SUMMARIES),
        Gap("python_kernel", "never", "is a function of a program: test_custom_op.py"),
        temporaries("arg_sort", "float64", "int64", "as_given"),
        temporaries("batch_gather"),
        temporaries("dim_gather"),
        temporaries("dim_scatter_add_like"),
        temporaries("gather", "as_given"),
        temporaries("in_top_k"),
        temporaries("top_k", "float64", "int64"),
        temporaries("unique_with_counts"),
        temporaries("unsorted_batch_segment_sum"),
        temporaries("unsorted_segment_sum", *KernelKit.dtypes),
        temporaries("unsorted_segment_sum_like"),
    )

    def samples(self, spec: OpSpec, rng: Any) -> Iterable[Sample]:
        return SAMPLES[spec.type](rng) if spec.type in SAMPLES else super().samples(spec, rng)

    def steady_context(self) -> AbstractContextManager[None]:
        return small_buffers()


@pytest.mark.slow
@pytest.mark.exhaustive
class TestSpecialValuesOfAllTypes(TestNumpyKernels):
    special_dtypes = None
    special_cases = 4

    def parameters(self, check: str) -> Iterator[Any]:
        return super().parameters(check) if check == "special_values" else iter(())
