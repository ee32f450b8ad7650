"""List the plans of cuDNN on a GPU, with their workspace and time.

    python benchmarks/cuda_dnn.py [--simulate]

Each problem is planned twice: with the library's heuristic, and by measuring all plans.  For
convolutions, the time with fused bias and relu is printed next to the time without them.
``--simulate`` runs on the host, as a test of the script.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "helpers")]

Line = tuple[str, str, str]
"""The name, result and note of a table row."""


def cudnn_plans(hardware: Any, small: bool = False) -> Iterator[Line]:
    """Yield one row per problem: times of the heuristic's plan and of the fastest measured plan.

    Args:
        hardware: a `flow_cuda.device.hardware.Hardware`.
        small: whether to use sizes that suit a simulator.
    """
    from flow_cuda.cudnn.problems import Search

    plans = hardware.dnn
    if plans is None:
        yield "cuDNN", "missing", "uv pip install './packages/flow-cuda[cu12]' (or [cu13])"
        return
    yield "cuDNN", str(plans.library.backend_version()), ""
    for name, problem in problems(small).items():
        found = {}
        for kind in (False, True):
            choice = plans.choose(problem, Search(measured=kind))
            found[kind] = (
                None if choice is None else (choice, microseconds(hardware, problem, choice))
            )
        if found[False] is None:
            yield f"cuDNN {name}", "no plan", ""
            continue
        (guess, took), (best, least) = found[False], found[True] or found[False]
        note = f"{guess.plan}, {guess.workspace} bytes; measured: {least:.1f} us, {best.plan}"
        yield f"cuDNN {name}", f"{took:.1f} us", note


def problems(small: bool) -> dict[str, Any]:
    """Return the convolutions and normalizations of ResNet-50, and the attention of BERT."""
    from flow_core.base.dtypes import as_dtype
    from flow_core.ir.graph import tensor_type
    from flow_cuda.cudnn.attention import Attention, AttentionGrad, rows
    from flow_cuda.cudnn.norm import Norm, NormGrad
    from flow_cuda.cudnn.problems import convolution, tensor_layout

    batch, channels, side = (2, 8, 6) if small else (256, 64, 56)
    found: dict[str, Any] = {}
    for dtype in ("float32", "float16", "bfloat16"):
        for form in ("channels_first", "channels_last"):
            image, window = (batch, channels, side, side), (channels, channels, 3, 3)
            if form == "channels_last":
                image, window = ((s[0], *s[2:], s[1]) for s in (image, window))
            x, w = (tensor_type(s, as_dtype(dtype)) for s in (image, window))
            attrs = {
                "data_format": form, "strides": (1, 1), "padding_before": (1, 1),
                "dilation_rate": (1, 1), "compute": "",
            }  # fmt: skip
            name = f"{dtype} {form.removeprefix('channels_')}"
            for kind in ("forward", "data_grad", "filter_grad"):
                found[f"conv {kind} {name}"] = convolution(kind, (x, w, x), attrs)
            fused = convolution("forward", (x, w, x), attrs, bias=True, relu=True)
            found[f"conv bias relu {name}"] = fused
            found[f"norm add relu {name}"] = Norm(tensor_layout(x, form), 1e-5, 0.9, True, True)
            found[f"norm grad {name}"] = NormGrad(tensor_layout(x, form))
    sizes = (2, 2, 8, 8) if small else (64, 12, 128, 64)
    for dtype in ("float16", "bfloat16"):
        q = rows(tensor_type(sizes, as_dtype(dtype)))
        mask = rows(tensor_type((sizes[0], 1, 1, sizes[2]), as_dtype(dtype)))
        found[f"attention {dtype}"] = Attention(q, q, q, q, 0.125, mask, True)
        found[f"attention grad {dtype}"] = AttentionGrad(q, q, q, q, 0.125, mask)
    return found


def microseconds(hardware: Any, problem: Any, choice: Any, times: int = 20) -> float:
    """Return the minimum over runs of the mean time of several executions."""
    from flow_cuda.device.hardware import Access, DnnCall

    tensors = (*problem.reads.values(), *problem.writes.values())
    kept = [hardware.allocate(n) for n in (*(t.nbytes for t in tensors), choice.workspace)]
    *places, workspace = (memory.address for memory in kept)
    call = DnnCall(problem, choice.plan, tuple(places), workspace)
    stream = hardware.compute
    for memory in kept:
        hardware.zero(stream, memory.address, memory.nbytes)

    def run() -> None:
        hardware.dnn_call(stream, call, Access())

    def finish() -> None:
        hardware.synchronize(hardware.record(stream))

    return least(run, finish, times) * 1e6


def least(run: Callable[[], None], finish: Callable[[], None], times: int) -> float:
    """Return the seconds per run: the minimum over rounds of ``times`` runs."""
    run()
    finish()
    found = []
    for _ in range(3):
        started = time.perf_counter()
        for _ in range(times):
            run()
        finish()
        found.append((time.perf_counter() - started) / times)
    return min(found)


def main() -> int:
    """Print the table; return status 1 without a device."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulate", action="store_true")
    given = parser.parse_args()
    if given.simulate:
        from cuda_simulator.hardware import Simulator

        hardware: Any = Simulator()
    else:
        from flow_core.plugins.specs import Unavailable
        from flow_cuda.plugin import facts, judge

        found = judge(facts())
        if isinstance(found, Unavailable):
            print(f"no device: {found.reason}; {found.hint}")
            return 1
        from flow_cuda.driver.cupy_hardware import CupyHardware

        hardware = CupyHardware(0)
    for line in cudnn_plans(hardware, given.simulate):
        print("  ".join(line).rstrip(), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
