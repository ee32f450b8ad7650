"""The plugin of flow-onednn: kernels of the device type "cpu", and the passes that fit them.

Registering loads no library: kernels ask for it when the first op asks for them, and refuse
everything where there is none, so that numpy's run.
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
    "shares",
    "products",
    "conv",
    "pool",
    "softmax",
    "norm",
    "reorder",
    "elementwise",
    "loops",
    "tables",
    "residual",
    "accumulate",
    "summed",
    "packed",
    "joined",
)

WIDENED = ("pool", "softmax", "reorder")
"""Families that change no input: without instructions for bfloat16 they run on float32 twins."""


def flow_register_ops() -> tuple[OpSpec, ...]:
    """The ops that our passes make."""
    found: tuple[OpSpec, ...] = importlib.import_module("flow_onednn.ops").OPS
    return found


def flow_register_kernels() -> Iterator[KernelSpec]:
    """The kernels of all families."""
    twins = importlib.import_module("flow_onednn.kernels.upcast")
    for family in FAMILIES:
        kernels = importlib.import_module(f"flow_onednn.kernels.{family}").KERNELS
        yield from map(twins.on_twins, kernels) if family in WIDENED else kernels


def flow_register_passes(config: Settings) -> tuple[PassSpec, ...]:
    """NHWC activations, then fused ops, before what is left is gathered into groups."""
    devices = ("cpu", "gpu") if config.emulate_gpus else ("cpu",)
    return (
        _pass("onednn_layout", "flow_onednn.passes.layout:NhwcLayout", devices),
        _pass("onednn_fusions", "flow_onednn.passes.fuse:Fusions", devices, "onednn_layout"),
        _pass("onednn_pack", "flow_onednn.passes.pack:PackWeights", devices, "onednn_fusions"),
        _pass("onednn_join", "flow_onednn.passes.join:JoinUpdates", devices, "onednn_fusions"),
    )


def _pass(name: str, target: str, devices: tuple[str, ...], *after: str) -> PassSpec:
    """A pass that does nothing where there is no library."""

    def make() -> Any:
        kernels: dict[str, list[KernelSpec]] = {}
        for spec in flow_register_kernels() if available() else ():
            kernels.setdefault(spec.op, []).append(spec)
        return load(target)(kernels, devices) if kernels else Nothing(name)

    return PassSpec(name, "physical", make, before=("fuse_elementwise",), after=after)


@dataclass(frozen=True)
class Nothing:
    """A pass that leaves the graph as it is."""

    name: str

    def apply(self, graph: Graph, context: object) -> Graph:
        """The graph."""
        return graph


def flow_doctor() -> list[str]:
    """Which library is used and how, or what to install."""
    from flow_onednn.library import doctor
    from flow_onednn.native import compiler

    return [*doctor(), compiler.doctor()]
