"""All kernels of flow-cuda that the ops' samples ask for, and the kit that runs them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from cuda_references import with_references
from cuda_simulator.hardware import Simulator
from cuda_simulator.host_compiler import HostFunction

from flow_core.base.config import Settings
from flow_core.base.dtypes import DType, as_dtype, float32
from flow_core.device import Driver
from flow_core.ir.graph import tensor_type
from flow_core.ir.update_rules import BY_TYPE
from flow_core.plugins.host import load_plugins
from flow_core.plugins.registry import Registry
from flow_core.plugins.specs import BindContext, KernelQuery
from flow_core.testing import Deviation
from flow_core.testing.checks import TOLERANCE, Tolerance
from flow_core.testing.kernels import AS_GIVEN, KernelKit
from flow_core.testing.rig import Rig
from flow_cuda.codegen.program import Kernel
from flow_cuda.device.batch import merge_launches
from flow_cuda.driver.cupy_hardware import CupyHardware
from flow_cuda.driver.gpu import GpuDriver
from flow_cuda.kernels import update

PLUGIN = "cuda_simulator.plugin"
OTHERS = ("flow-cuda", "flow-onednn", "flow-data")


def simulated_registry() -> Registry:
    """Core's ops, the kernels of flow-cuda, and devices that are simulated."""
    return load_plugins(replace(Settings.from_env(), disabled_plugins=OTHERS), extra=[PLUGIN])


def core_registry() -> Registry:
    """Core's ops and the CPU."""
    return load_plugins(replace(Settings.from_env(), disabled_plugins=OTHERS))


INFINITE = ("inf", "-inf", "mixed")
LABELS = ("integer_max", "integer_min", "mixed")
TERMS = "infinities cancel or meet a zero, depending on how terms are grouped"
WEIGHTS = "a weight that is not finite is multiplied by coefficients of 0, too"
SPREAD = "a sum over all taps also has products with zeros"
NO_ERRORS = "a kernel of a GPU raises no errors: losses of such labels are NaN"
DEVIATIONS = (
    Deviation("lamb_update", ("lost",), "by its norm, such a weight reaches all others",
              INFINITE, everywhere=False),
    *(Deviation(op, ("nan",), WEIGHTS, ("nan", "-nan", *INFINITE))
      for op in (
          "adagrad_update", "adam_update", "lamb_update", "lars_update", "lion_update",
          "momentum_update", "rmsprop_update", "sgd_update",
      )),
    *(Deviation(op, ("nan",), TERMS, INFINITE, everywhere=False)
      for op in (
          "indexed_slices_adam_update", "indexed_slices_momentum_update",
          "indexed_slices_sgd_update",
      )),
    Deviation("centered_rmsprop_update", ("finite", "infinity", "lost", "nan"),
              "a mean of squares less the square of a mean cancels", everywhere=False),
    Deviation("normalization_grad", ("nan",), TERMS, ("nan", "-nan", *INFINITE)),
    Deviation("cudnn_attention", ("nan",), TERMS, INFINITE, everywhere=False),
    Deviation("cudnn_conv_data_grad", ("nan",), SPREAD, ("nan", "-nan", *INFINITE)),
    Deviation("sparse_softmax_cross_entropy", ("refused",), NO_ERRORS, LABELS),
    Deviation("scalar_pow", ("nan", "zero_sign"), "numpy takes a square root for the power 0.5"),
    Deviation("dynamic_loss_scale_schedule", ("finite",), "a count of steps never overflows",
              LABELS),
)  # fmt: skip


PLANNED = (
    "cudnn_attention", "cudnn_attention_grad", "cudnn_conv_data_grad",
    "cudnn_conv_filter_grad", "cudnn_norm", "cudnn_norm_grad",
)  # fmt: skip


ULP = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The largest distance of adjacent numbers of 16-bit types, relative to the numbers."""
ROUNDED_TWICE = {
    "lamb_update": "the second phase reads the averages that the first one stored",
}
"""Ops whose results are not within one rounding of float32 results, with reasons."""


class CudaKit(KernelKit):
    """The kernel kit on a simulated device; all kernels are compiled at once.

    Kernels compute with 16-bit types in float32, and round each result once.
    """

    plugin = PLUGIN
    deviations = DEVIATIONS
    device_type = "gpu"
    tiles = False
    stretches = False
    steady_bytes = None
    fixed_sizes = dict.fromkeys(PLANNED, "a pass chooses sizes, masks and plans together")
    large_elements = 20_000  # in simulated blocks of 16 threads
    draws = 1
    preloaded: ClassVar[bool] = True

    def tolerance(self, op: str, dtype: DType) -> Tolerance:
        ulp = ULP.get(dtype.name)
        if ulp is None or op in ROUNDED_TWICE:
            return super().tolerance(op, dtype)
        alone = self.shared_registry().ops[op].elementwise
        return 1.01 * ulp, 2e-7 if alone else TOLERANCE[float32][1]

    def registry(self) -> Registry:
        return simulated_registry()

    def driver(self) -> Driver:
        driver = super().driver()
        if self.preloaded and isinstance(driver, GpuDriver):
            self.once("preloaded", lambda: driver.hardware.compiler.preload(self.all_kernels()))
        return driver

    def hardware(self, compiler: Collector) -> Simulator:
        """A device that binds kernels as the kit's does."""
        return Simulator(compiler=compiler)

    def all_kernels(self, copies: Sequence[int] = (1, 2, 5)) -> list[Kernel]:
        """What binding all cases asks a compiler for, also of enlarged ones."""
        collected = Collector()
        driver = GpuDriver(self.hardware(collected), chunk=64)
        for op in self.covered_ops():
            for dtype in self.dtypes_of(op):
                for case in self.cases(op, dtype):
                    for each in (case.grown(n) if n > 1 else case for n in copies):
                        Rig(driver, each.kernel, each.asked, mutates=each.mutates)
        for op in BY_TYPE if 2 in copies else ():
            for dtype in self.dtypes:
                if as_dtype(dtype).is_floating:
                    merge_launches(update_launches(driver, op, ((7,), (5,)), dtype)[0])
        return list(collected.found.values())


def update_launches(
    driver: GpuDriver, op: str, shapes: Iterable[tuple[int, ...]], dtype: str = "float32"
) -> tuple[list[Any], list[list[Any]]]:
    """Launches that update variables of some shapes, and the arrays of each; one rate for all."""
    spec, row = CudaKit.shared_registry().ops[op], BY_TYPE[op]
    kernel = next(k for k in update.KERNELS if k.op == op)
    rng, kind = np.random.default_rng(0), as_dtype(dtype).numpy
    rate = on_device(driver, np.array(0.1, np.float32))
    launches, kept = [], []
    for shape in shapes:
        host = [
            np.asarray(rng.uniform(0.5, 2, shape)).astype(kind) for _ in range(2 + len(row.states))
        ]
        model, diff, *states = (on_device(driver, x) for x in host)
        step = [on_device(driver, np.array(3))] if op == "lars_update" else []
        powers = [np.array(x, kind) for x in ((0.81, 0.98) if op == "lamb_update" else ())]
        states += [on_device(driver, x) for x in powers]
        inputs = (model, diff, rate, *step, *states)
        types = tuple(tensor_type(x.shape, as_dtype(x.dtype)) for x in inputs)
        asked = KernelQuery(op, {**spec.attrs, "weight_decay": 0.01}, types, ())
        made: Any = kernel.load(BindContext(asked, inputs, ()))  # type: ignore[operator]
        launches += made if isinstance(made, tuple) else [made]
        kept.append([model, *states])
    return launches, kept


def on_device(driver: GpuDriver, values: Any) -> Any:
    """An array of the device."""
    made = driver.allocate(max(values.nbytes, 1)).view(0, values.shape, values.dtype)
    driver.copy_in(made, values)
    return made


class Collector:
    """A compiler that only remembers what it is asked for."""

    def __init__(self) -> None:
        self.found: dict[str, Kernel] = {}

    def function(self, kernel: Kernel) -> HostFunction:
        """A function that does nothing."""
        self.found[kernel.name] = kernel
        return HostFunction(kernel, lambda *_: 0)


class DeviceKernels(CudaKit):
    """The kit on a real device.  Two launches of sums over repeated indices may differ."""

    plugin = "flow-cuda"
    preloaded = False
    repeatable = False

    def hardware(self, compiler: Collector) -> Simulator:
        """A device that specializes kernels, and has the blocks of a GPU."""
        simulator = super().hardware(compiler)
        for name in ("threads", "max_blocks", "specializes"):
            setattr(simulator, name, getattr(CupyHardware, name))
        return simulator

    def registry(self) -> Registry:
        return with_references(load_plugins())


__all__ = ["AS_GIVEN", "CudaKit", "DeviceKernels", "core_registry", "simulated_registry"]
