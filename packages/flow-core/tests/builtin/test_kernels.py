"""The numpy kernels match the references of all ops and satisfy the kernel contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest
from kernel_mutation.deviations import DEVIATIONS, SUMMARIES

from flow_core.testing import Gap, KernelKit

pytestmark = [
    pytest.mark.arithmetic,
    pytest.mark.representative(
        r"test_(?!agrees_when|allocates|takes_a).*-(float32|as_given)\]|test_every_kernel_is_compared"
        r"|test_agrees\[(broadcast_add|cast|concat|gather|matmul|reduce_sum|relu|softmax|transpose)-"
        r"|test_special_values\[(reduce_|cast)|test_agrees_at_large_sizes\[sort-",
        "every op, and ops of each kind in all element types; nox -s exhaustive has the others",
    ),
]


@contextmanager
def small_buffers() -> Iterator[None]:
    """Shrink numpy's broadcasting buffers, which do not count as temporary arrays."""
    size = np.setbufsize(64)
    try:
        yield
    finally:
        np.setbufsize(size)


TEMPORARIES = "numpy makes temporary arrays"


def temporaries(op: str, *dtypes: str) -> Gap:
    return Gap(op, "notyet", TEMPORARIES, ("allocates_nothing",), dtypes)


class TestNumpyKernels(KernelKit):
    plugin = "core.numpy"
    deviations = DEVIATIONS
    special_dtypes = ("float32", "bfloat16", "int8")
    gaps = (
        *(Gap(op, "never", "writes a file, which test_summary.py reads") for op in SUMMARIES),
        Gap(
            "lion_update",
            "never",
            "bfloat16 rounds some averages across zero, where signs differ",
            ("agrees_at_large_sizes",),
            ("bfloat16",),
        ),
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

    def _special_dtypes_of(self, op: str) -> list[str]:
        """Return all types for reductions, whose sums are in a wider type."""
        return self.dtypes_of(op) if op.startswith("reduce_") else super()._special_dtypes_of(op)

    def steady_context(self) -> AbstractContextManager[None]:
        return small_buffers()


@pytest.mark.slow
@pytest.mark.exhaustive
class TestSpecialValuesOfAllTypes(TestNumpyKernels):
    special_dtypes = None
    special_cases = 4

    def parameters(self, check: str) -> Iterator[Any]:
        return super().parameters(check) if check == "special_values" else iter(())
