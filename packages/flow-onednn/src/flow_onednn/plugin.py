"""Plugin entry point: kernels of the device type "cpu", and the graph passes that use them.

Registration loads no library. The first kernel query loads oneDNN. If oneDNN is unavailable, all
its kernels reject all queries, and the numpy kernels run.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flow_core.authoring.specs import Graph, KernelSpec, OpSpec, PassSpec, load
from flow_core.base.config import Settings
from flow_onednn.library import available

FLOW_PLUGIN_API = "1.0"

FAMILIES = (
    "matmul",
    "partitioned_matmul",
    "matmul_sgd",
    "convolution.conv",
    "convolution.packed",
    "convolution.chain",
    "convolution.int8",
    "pool",
    "softmax",
    "norm",
    "reorder",
    "elementwise",
    "loops",
    "tables",
    "recurrent",
    "residual",
    "accumulate",
    "summed_sgd",
    "packed",
    "few_rows",
    "joined",
)

UPCAST = ("pool", "reorder")
"""Families that mutate no input; without bfloat16 instructions, they run on float32 copies."""


def flow_register_ops() -> tuple[OpSpec, ...]:
    """Return the ops that the passes of this package create."""
    found: tuple[OpSpec, ...] = importlib.import_module("flow_onednn.ops").OPS
    return found


def flow_register_kernels() -> Iterator[KernelSpec]:
    """Yield the kernels of all families."""
    upcast = importlib.import_module("flow_onednn.kernels.upcast")
    for family in FAMILIES:
        kernels = importlib.import_module(f"flow_onednn.kernels.{family}").KERNELS
        yield from map(upcast.upcast_kernel, kernels) if family in UPCAST else kernels


def flow_register_passes(config: Settings) -> tuple[PassSpec, ...]:
    """Return the passes; NHWC layout, then fusion, run before the fusion of elementwise ops."""
    devices = ("cpu", "gpu") if config.emulate_gpus else ("cpu",)
    return (
        _pass("onednn_layout", "flow_onednn.passes.layout:NhwcLayout", devices, "fold_norms"),
        _pass("onednn_fusions", "flow_onednn.passes.fuse:Fusions", devices, "onednn_layout"),
        _pass("onednn_int8", "flow_onednn.passes.int8:Int8", devices, "onednn_fusions"),
        _pass("onednn_panels", "flow_onednn.passes.panels:Panels", devices, "onednn_int8"),
        _pass("onednn_pack", "flow_onednn.passes.pack:PackWeights", devices, "onednn_panels"),
        _pass(
            "onednn_pack_convs", "flow_onednn.passes.pack_convs:PackConvs", devices, "onednn_panels"
        ),
        _pass(
            "onednn_chain_convs",
            "flow_onednn.passes.chain_convs:ChainConvs",
            devices,
            "onednn_pack_convs",
        ),
        _pass("onednn_join", "flow_onednn.passes.join:JoinUpdates", devices, "onednn_fusions"),
    )


def _pass(name: str, target: str, devices: tuple[str, ...], *after: str) -> PassSpec:
    """Return the spec of a pass; without the library, the pass leaves graphs unchanged."""

    def make() -> Any:
        kernels: dict[str, list[KernelSpec]] = {}
        for spec in flow_register_kernels() if available() else ():
            kernels.setdefault(spec.op, []).append(spec)
        return load(target)(kernels, devices) if kernels else NoOpPass(name)

    return PassSpec(name, "physical", make, before=("fuse_elementwise",), after=after)


@dataclass(frozen=True)
class NoOpPass:
    """A pass that returns its graph unchanged."""

    name: str

    def apply(self, graph: Graph, context: object) -> Graph:
        """Return the graph unchanged."""
        return graph


def flow_describe_machine() -> dict[str, str]:
    """Describe oneDNN with its instruction set, and the C compiler."""
    from flow_onednn.library import describe, has_fast_half
    from flow_onednn.native import compiler

    fast = {"fast products on cpu": "bfloat16"} if has_fast_half() else {}
    return {"oneDNN": describe(), "C loops": compiler.describe(), **fast}


def flow_doctor() -> list[str]:
    """Return the lines for ``flow doctor``, which name the loaded library or what to install."""
    from flow_onednn.library import doctor
    from flow_onednn.native import compiler

    return [*doctor(), compiler.doctor()]
