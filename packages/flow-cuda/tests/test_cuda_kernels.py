"""The kernels, run as C++ of the host with barriers and streams, against the ops' references."""

import pytest
from cuda_cases import CudaKit

from flow_cuda import host_compiler

pytestmark = pytest.mark.skipif(
    host_compiler.compiler() is None, reason="no C++ compiler to run the kernels with"
)
DRAWN = ("fused",)


class Kit(CudaKit):
    """All ops but groups, which have tests of their own."""

    def covered_ops(self) -> tuple[str, ...]:
        return tuple(op for op in super().covered_ops() if op not in DRAWN)


class TestKernels(Kit):
    dtypes = ("float32",)


@pytest.mark.slow
class TestOtherTypes(Kit):
    dtypes = ("float64", "float16", "bfloat16", "int8", "int32", "int64", "uint8")
