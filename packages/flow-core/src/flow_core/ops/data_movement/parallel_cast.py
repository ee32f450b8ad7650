"""The op for a requested distribution, which returns the same tensor with the requested SBP."""

from __future__ import annotations

from flow_core.ops.build import GradContext, Sym
from flow_core.ops.declare import Gradients, OpDef, Rng, Samples, specs
from flow_core.ops.rules import like_input, linear, with_nondecreasing
from flow_core.plugins.specs import Sample
from flow_core.sharding.sbp import parse_nd_sbp
from flow_core.sharding.topology import Placement


class ParallelCast(OpDef):
    """The same tensor in the requested SBP; ``gradient_sbp`` is that of the gradient."""

    schema = "parallel_cast(in) -> out"
    attrs = {"gradient_sbp": None, "gradient_hierarchy": ()}
    alias = 0
    infer = staticmethod(like_input)
    sbp = staticmethod(with_nondecreasing(linear))
    reference = staticmethod(lambda x, **_: x)

    def gradient(self, g: GradContext) -> Gradients:
        """Return the gradient unchanged, or cast to the SBP that was requested for it."""
        if g.attrs["gradient_sbp"] is None:
            return (g.dy,)
        devices, hierarchy, maker = g.op.placement, g.attrs["gradient_hierarchy"], g.maker
        (value,) = maker.emitter.emit(
            "parallel_cast",
            [g.dy.value],
            placement=Placement(devices.device_type, devices.devices, hierarchy),
            name=maker.emitter.builder.unique_name(f"{maker.prefix}/parallel_cast"),
            line=maker.line,
            sbp=(parse_nd_sbp(g.attrs["gradient_sbp"]),),
        )
        return (Sym(maker, value),)

    def samples(self, rng: Rng) -> Samples:
        for attrs in ({}, {"gradient_sbp": "B", "gradient_hierarchy": (1,)}):
            yield Sample((rng.uniform(-3, 3, (3, 4)),), attrs)


OPS = specs(ParallelCast)
