"""The kernels, run as host C++ with barriers and streams, against the ops' references."""

import pytest
from cuda_cases import CudaKit
from cuda_simulator import host_compiler

from flow_core.testing import Gap

pytestmark = [
    pytest.mark.arithmetic,
    pytest.mark.representative(
        r"test_(agrees|every_kernel_is_compared|deviations_are_needed)\[",
        "the other checks compile the same kernels again",
    ),
    pytest.mark.skipif(
        host_compiler.compiler() is None, reason="no C++ compiler to run the kernels with"
    ),
]


class TestKernels(CudaKit):
    dtypes = ("float32",)
    gaps = tuple(
        Gap(op, "never", "of 16-bit types: TestHalvesAndIntegers", ("every_kernel_is_compared",))
        for op in ("cudnn_attention", "cudnn_attention_grad")
    )


@pytest.mark.representative(
    r"test_(special_values|in_place|agrees_at_large_sizes)\[",
    "what 16-bit types may do otherwise; nox -s exhaustive has all ops, also in integers",
)
class TestHalves(CudaKit):
    """Kernels of each family in 16-bit types."""

    dtypes = ("float16", "bfloat16")
    ops = (
        "adam_update", "argmax", "avg_pool_2d", "batch_matmul", "bias_add", "broadcast_add", "cast",
        "concat", "conv_filter_grad", "cuda_reorder", "deconv2d", "dropout", "gather", "gelu_grad",
        "layer_norm", "max_pool_2d_grad", "normalization", "reduce_max", "reduce_sum", "relu",
        "softmax_grad", "sparse_softmax_cross_entropy", "unsorted_segment_sum",
    )  # fmt: skip
    test_every_kernel_is_compared = None  # TestKernels checks it
    test_deviations_are_needed = None


@pytest.mark.exhaustive
class TestHalvesAndIntegers(CudaKit):
    dtypes = ("float16", "int32")
    test_every_kernel_is_compared = None  # TestKernels checks it
    test_deviations_are_needed = None  # mixed updates need fewer: TestKernels checks the rows


@pytest.mark.exhaustive
class TestOtherTypes(CudaKit):
    dtypes = ("float64", "bfloat16", "int8", "int64", "uint8")
    gaps = (
        Gap("lion_update", "never", "bfloat16 rounds some averages across zero, where signs differ",
            ("agrees_at_large_sizes",), ("bfloat16",)),
    )  # fmt: skip
    test_every_kernel_is_compared = None  # TestKernels checks it
    test_deviations_are_needed = None  # mixed updates need fewer: TestKernels checks the rows
