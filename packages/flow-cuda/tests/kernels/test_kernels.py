"""The kernels, run as host C++ with barriers and streams, against the ops' references."""

import pytest
from cuda_cases import CudaKit

from flow_core.testing import Gap
from flow_cuda.codegen import host_compiler

pytestmark = [
    pytest.mark.arithmetic,
    pytest.mark.sampled(0.25),
    pytest.mark.skipif(
        host_compiler.compiler() is None, reason="no C++ compiler to run the kernels with"
    ),
]


class TestKernels(CudaKit):
    dtypes = ("float32",)
    gaps = (
        Gap(
            "cudnn_attention_grad", "never", "accepts 16-bit types: TestHalvesAndIntegers",
            ("every_kernel_is_compared",),
        ),
    )  # fmt: skip


@pytest.mark.slow
class TestHalvesAndIntegers(CudaKit):
    dtypes = ("float16", "int32")
    test_every_kernel_is_compared = None  # TestKernels checks it
    test_deviations_are_needed = None  # mixed updates need fewer: TestKernels checks the rows


@pytest.mark.slow
@pytest.mark.exhaustive
class TestOtherTypes(CudaKit):
    dtypes = ("float64", "bfloat16", "int8", "int64", "uint8")
    test_every_kernel_is_compared = None  # TestKernels checks it
    test_deviations_are_needed = None  # mixed updates need fewer: TestKernels checks the rows
