"""Runs of ops on instrumented devices."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from cuda_cases import CudaKit

from flow_core.device import Driver
from flow_core.plugins.specs import KernelQuery
from flow_core.testing.kernel_cases import Case
from flow_cuda.driver.gpu import GpuDriver

from .device import Program, SanitizedDevice


class Kit(CudaKit):
    """The kernel kit on an instrumented device."""

    preloaded = False

    def __init__(self) -> None:
        self.device = SanitizedDevice()

    def driver(self) -> Driver:
        return GpuDriver(self.device)


def case_of(op: str, arrays: Sequence[Any], attrs: Mapping[str, Any]) -> Case:
    """Return a case of an op with given inputs."""
    registry = CudaKit.shared_registry()
    spec, kernels = registry.ops[op], CudaKit().kernels(op)
    find = partial(registry.find_kernel, device_type="gpu")
    query = KernelQuery(op, {**spec.attrs, **attrs}, (), (), find)
    case = Case(spec, kernels[0], query, tuple(arrays)).of(arrays)
    assert case is not None, f"no kernel of {op} accepts these arrays"
    return case


def samples(op: str, dtype: str) -> Iterator[Case]:
    """Yield the cases of an op, enlarged so that several blocks have work."""
    for case in CudaKit().cases(op, dtype):
        yield max((case, case.grown(3)), key=lambda one: sum(x.size for x in one.arrays))


def errors(
    cases: Sequence[Case], tool: str, change: Callable[[str], str] = str
) -> Iterator[tuple[str, str]]:
    """Run cases under a tool; yield op and report of each one with an error."""
    kit = Kit()
    rigs = [kit.rig(case) for case in cases]
    kernels = list(kit.device.collector.found.values())
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        kit.device.program = Program(kernels, tool, Path(folder), change)
        for case, rig in zip(cases, rigs, strict=True):
            try:
                rig.run(case.arrays)
            except Exception as error:
                yield case.spec.type, f"{type(error).__name__}: {error}"
