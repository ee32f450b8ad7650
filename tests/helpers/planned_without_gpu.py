"""What cuDNN itself plans for an H200, on a machine without a GPU: choices as JSON.

Plans can be made for a device that is described to the library.  NVIDIA's driver library is
needed only to load it: where there is none, one stands for it that takes any code and has no
device.  So this is to be run in a process of its own.
"""

import ctypes
import json
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import processes
from cuda_references import REFERRED

from flow_core.base.disk_cache import DiskCache
from flow_core.base.dtypes import as_dtype
from flow_core.ir.graph import tensor_type
from flow_core.plugins.specs import InferContext, KernelQuery
from flow_cuda.cudnn.attention import Attention, AttentionGrad, rows
from flow_cuda.cudnn.norm import Norm, NormGrad
from flow_cuda.cudnn.plans import DnnPlans
from flow_cuda.cudnn.problems import Problem, Search, convolution, tensor_layout
from flow_cuda.kernels.dnn import conv_problem, norm_problem

H200 = {
    "deviceName": "NVIDIA H200", "deviceVer": 900, "driverVer": 12090, "cudaDeviceId": 0,
    "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64],
    "regsPerBlock": 65536, "multiProcessorCount": 132, "warpSize": 32,
    "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
    "reservedSharedMemoryPerBlock": 1024, "oversizedSharedMemoryPerBlock": 0,
    "maxRegistersPerSM": 65536, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0, "supportCoopLaunch": 1,
    "totalGlobalMem": 141000000000, "smClockRateKHz": 1980000, "memClockRateKHz": 3201000,
    "memoryBusWidth": 6144, "l2CacheSize": 62914560,
}  # fmt: skip
DRIVER = """
Ctx_GetCurrent Ctx_GetLimit Ctx_PopCurrent Ctx_PushCurrent Device_Get Device_GetCount
Driver_GetVersion Get_ErrorName Get_ErrorString Kernel_GetAttribute Kernel_GetFunction
Kernel_SetAttribute Launch_CooperativeKernel Launch_Kernel Launch_KernelEx Library_GetKernel
Library_LoadData Library_LoadFromFile Library_Unload Link_AddData Link_Complete Link_Create
Link_Destroy Module_GetFunction Module_LoadData Module_Unload Occupancy_MaxPotentialClusterSize
Stream_GetCtx TensorMap_EncodeIm2col TensorMap_EncodeTiled
"""


TAKES = {
    "Library_LoadData": "void **made", "Library_GetKernel": "void **made",
    "Kernel_GetFunction": "void **made", "Module_LoadData": "void **made",
    "Module_GetFunction": "void **made", "Kernel_GetAttribute": "int *made",
    "Occupancy_MaxPotentialClusterSize": "int *made",
    "Kernel_SetAttribute": "", "Library_Unload": "", "Module_Unload": "",
}  # fmt: skip
"""Functions that succeed, by what they return: handles, or the number 1."""


def written(name: str) -> str:
    """A function of the driver in C."""
    made = {"void **made": "*made = (void *)64; ", "int *made": "*made = 1; "}
    given, code = TAKES.get(name, ""), 0 if name in TAKES else 100
    head = f"int cu{name.replace('_', '')}({given or 'void'})"
    return f"{head} {{ {made.get(given, '')}return {code}; }}\n"


def load_a_driver() -> bool:
    """NVIDIA's driver library, or one that finds no device; whether it is the latter."""
    try:
        ctypes.CDLL("libcuda.so.1", ctypes.RTLD_GLOBAL)
    except OSError:
        text = "".join(map(written, DRIVER.split()))
        with tempfile.TemporaryDirectory() as folder:
            source, made = Path(folder, "driver.c"), Path(folder, "libcuda.so.1")
            source.write_text(text)
            command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"]
            processes.run([*command, str(made), str(source)], check=True)
            ctypes.CDLL(str(made), ctypes.RTLD_GLOBAL)
        return True
    return False


class Described:
    """cudnn-frontend, for a device that is described."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._device = library.create_device_properties(json.dumps(H200))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def create_handle(self) -> None:
        """There is no device to have one of."""

    def pygraph(self, *, handle: None, **settings: Any) -> Any:
        """A graph for the device."""
        return self._library.pygraph(device_property=self._device, sm_version=90, **settings)


def conv(kind: str, dtype: str, form: str, **more: Any) -> Problem:
    """A convolution of 3 x 3 with 64 channels, of ResNet-50."""
    shapes: list[tuple[int, ...]] = [(32, 64, 56, 56), (64, 64, 3, 3), (32, 64, 56, 56)]
    if form == "channels_last":
        shapes = [(n, *space, c) for n, c, *space in shapes]
    x, w, y = (tensor_type(shape, as_dtype(dtype)) for shape in shapes)
    attrs = {
        "data_format": form, "strides": (1, 1), "padding_before": (1, 1), "dilation_rate": (1, 1),
        "compute": "",
    }  # fmt: skip
    return convolution(kind, (x, w, y), attrs, **more)


def attention(dtype: str, places: int, mask: tuple[int, ...] | None) -> dict[str, Problem]:
    """Attention of BERT's heads, forward and backward."""
    q, k = (rows(tensor_type((8, 12, n, 64), as_dtype(dtype))) for n in (128, places))
    wide = None if mask is None else rows(tensor_type(mask, as_dtype(dtype)))
    return {
        "forward": Attention(q, k, k, q, 0.125, wide),
        "saves": Attention(q, k, k, q, 0.125, wide, True),
        "grad": AttentionGrad(q, k, k, q, 0.125, wide),
        "grad again": AttentionGrad(q, k, k, q, 0.125, wide, deterministic=True),
    }


def problems() -> dict[str, tuple[Problem, Search]]:
    """What is asked for, by name."""
    found: dict[str, tuple[Problem, Search]] = {}
    for dtype in ("float32", "float16", "bfloat16"):
        for form in ("channels_first", "channels_last"):
            name = f"{dtype} {form}"
            for kind in ("forward", "data_grad", "filter_grad"):
                found[f"{kind} {name}"] = conv(kind, dtype, form), Search()
            fused = conv("forward", dtype, form, bias=True, relu=True)
            found[f"fused {name}"] = fused, Search()
    plain = conv("filter_grad", "float32", "channels_first")
    found["deterministic"] = plain, Search(deterministic=True)
    found["small workspace"] = plain, Search(limit=0)
    found["tf32"] = conv("forward", "float32", "channels_last"), Search(tf32=True)
    return found


def compiled_at_once() -> dict[str, Problem]:
    """What has plans that are built with a driver alone: attention, batch normalization."""
    norms: dict[str, Problem] = {}
    for dtype in ("float32", "float16", "bfloat16"):
        for form in ("channels_first", "channels_last"):
            x = tensor_layout(tensor_type((32, 64, 64, 64), as_dtype(dtype)), form)
            for adds, relu in ((False, False), (False, True), (True, True)):
                norms[f"norm {dtype} {form} {adds} {relu}"] = Norm(x, 1e-5, 0.9, adds, relu)
            norms[f"norm grad {dtype} {form}"] = NormGrad(x)
        behind = {"bias": True, "relu": True, "adds": True}
        norms[f"conv add {dtype}"] = conv("forward", dtype, "channels_last", **behind)
    return norms | {
        f"{kind} {dtype} {mask}": problem
        for dtype in ("float16", "bfloat16")
        for mask in (None, (8, 1, 1, 128))
        for kind, problem in attention(dtype, 128, mask).items()
    }


def sampled() -> dict[str, Problem]:
    """What the kit of kernels asks for on a device."""
    asked = dict.fromkeys(("cudnn_norm", "cudnn_norm_grad"), norm_problem)
    found: dict[str, Problem] = {}
    for spec in (s for s in REFERRED if s.type.startswith(("cudnn_conv", "cudnn_norm"))):
        halves = () if spec.type.startswith("cudnn_norm") else ("float16",)
        for dtype in ("float32", *halves):
            samples: Any = spec.samples
            for i, sample in enumerate(samples(np.random.default_rng(0))):
                attrs = {**spec.attrs, **sample.attrs}
                types = tuple(tensor_type(x.shape, as_dtype(dtype)) for x in sample.inputs)
                made = spec.infer(InferContext("op", spec.type, types, attrs))
                query = KernelQuery(spec.type, attrs, types, made)
                problem: Any = asked.get(spec.type, conv_problem)
                found[f"{spec.type} {dtype} {i}"] = problem(query)
    return found


KEPT = ("norm bfloat16 channels_last True True", "saves bfloat16 (8, 1, 1, 128)")


def kept(library: Any) -> dict[str, Any]:
    """Seconds of the processor and bytes on disk, for plans that the library compiles.

    A second start asks for them, too.  Only a device can load them: without one the library must
    refuse, and the plans be made again.
    """
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        cache = DiskCache(Path(folder, "cudnn"), ".plan")
        for name in KEPT:
            problem, seconds = compiled_at_once()[name], []
            for _ in range(2):
                plans = DnnPlans(library, "sm_90", None, compiled=cache)  # type: ignore[arg-type]
                with warnings.catch_warnings(record=True) as warned:
                    warnings.simplefilter("always")
                    started = time.process_time()
                    choice = plans.choose(problem, Search())
                    assert choice is not None
                    seconds.append(time.process_time() - started)
                    plans._load_plan(problem, choice.plan)
            file = cache.place((repr(problem), choice.plan, *plans._origin))
            words = [str(w.message) for w in warned]
            found[name] = {"seconds": seconds, "bytes": file.stat().st_size, "words": words}
    return found


def main() -> None:
    """Prints the choices."""
    stands_in = load_a_driver()
    import cudnn

    plans = DnnPlans(Described(cudnn), "sm_90", None)  # type: ignore[arg-type]  # nothing is measured
    rows = {}
    for name, (problem, search) in problems().items():
        choice = plans.choose(problem, search)
        rows[name] = None if choice is None else [choice.plan, choice.workspace]
    answer: dict[str, Any] = {"version": cudnn.backend_version(), "plans": rows}
    for kind, asked in (
        ("counts", compiled_at_once()), ("samples", sampled())
    ):  # fmt: skip
        graphs = {name: plans._graph(problem) for name, problem in asked.items()}
        answer[kind] = {n: g and g.get_execution_plan_count() for n, g in graphs.items()}
    answer["kept"] = kept(Described(cudnn)) if stands_in else {}
    print(json.dumps(answer))


if __name__ == "__main__":
    sys.exit(main())
