"""The op for a requested distribution, which returns the same tensor with the requested SBP."""

from __future__ import annotations

from typing import Any

import numpy as np

from flow_core.ops.build import GradContext, Sym
from flow_core.ops.rules import like_input, linear, with_nondecreasing
from flow_core.plugins.specs import OpSpec, Sample
from flow_core.sharding.sbp import parse_nd_sbp
from flow_core.sharding.topology import Placement


def _gradient(g: GradContext) -> tuple[Sym]:
    """Return the gradient unchanged, or cast to the SBP that was requested for it."""
    if g.attrs["gradient_sbp"] is None:
        return (g.dy,)
    devices = g.op.placement
    maker = g.maker
    (value,) = maker.emitter.emit(
        "parallel_cast",
        [g.dy.value],
        placement=Placement(devices.device_type, devices.devices, g.attrs["gradient_hierarchy"]),
        name=maker.emitter.builder.unique_name(f"{maker.prefix}/parallel_cast"),
        line=maker.line,
        sbp=(parse_nd_sbp(g.attrs["gradient_sbp"]),),
    )
    return (Sym(maker, value),)


def _samples(rng: np.random.Generator) -> Any:
    yield Sample((rng.uniform(-3, 3, (3, 4)),))
    yield Sample((rng.uniform(-3, 3, (3, 4)),), {"gradient_sbp": "B", "gradient_hierarchy": (1,)})


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        type="parallel_cast",
        inputs=("in",),
        infer=like_input,
        attrs={"gradient_sbp": None, "gradient_hierarchy": ()},
        sbp=with_nondecreasing(linear),
        gradient=_gradient,
        reference=lambda x, **_: x,
        samples=_samples,
        alias=0,
        doc="The same tensor in the requested SBP; ``gradient_sbp`` is that of the gradient.",
    ),
)
