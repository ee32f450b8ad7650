"""Updates of variables against the CPU: the kit cannot compare them, as they have no outputs."""

from typing import Any

import numpy as np
import pytest
from cuda_cases import SAMPLES, STATES, CudaKit

from flow_core.authoring.update_rules import BY_TYPE
from flow_core.base.dtypes import as_dtype
from flow_core.plugins.specs import KernelQuery
from flow_core.sharding.topology import Device
from flow_core.testing.checks import cast_sample, query
from flow_core.testing.rig import Rig
from flow_cuda.codegen import host_compiler

pytestmark = pytest.mark.skipif(
    host_compiler.compiler() is None, reason="no C++ compiler to run the kernels with"
)


class Kit(CudaKit):
    ops = (*BY_TYPE, *STATES)
    dtypes = ("float32", "float16")


def changed(device: str, spec: Any, asked: KernelQuery, arrays: tuple[Any, ...]) -> list[Any]:
    """Return the mutated inputs after one launch."""
    registry = Kit.shared_registry()
    driver = Kit().driver() if device == "gpu" else registry.driver(Device("cpu", 0, 0))
    rig = Rig(driver, registry.find_kernel(asked, device), asked, mutates=spec.mutates)
    image = rig.run(arrays)
    return [rig._inputs[i].read(image) for i in spec.mutates]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("op", Kit.ops)
def test_updates_match_the_cpu(op: str, dtype: str) -> None:
    spec = Kit.shared_registry().ops[op]
    tolerance = {"float32": 3e-6, "float16": 2e-3}[dtype]
    for sample in SAMPLES[op](np.random.default_rng(3)):
        arrays = list(cast_sample(sample, as_dtype(dtype)))
        rate = 3 if op in STATES else 2
        arrays[rate] = arrays[rate].astype(np.float32)  # for any type of the variable
        asked = query(spec, arrays, sample.attrs)
        expected, found = (changed(d, spec, asked, tuple(arrays)) for d in ("cpu", "gpu"))
        for want, have in zip(expected, found, strict=True):
            np.testing.assert_allclose(
                have.astype(np.float64), want.astype(np.float64), tolerance, tolerance, err_msg=op
            )
