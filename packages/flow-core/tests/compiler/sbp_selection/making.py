"""Builder of small graphs on several devices."""

from __future__ import annotations

from typing import Any

from flow_core.base.errors import SourceLine
from flow_core.compiler.reshard.planner import TensorLayout
from flow_core.compiler.select import Problem
from flow_core.ir.graph import GraphBuilder, Value
from flow_core.ops.build import Emitter
from flow_core.plugins.host import default_registry
from flow_core.sharding.sbp import NdSbp
from flow_core.sharding.topology import Placement

GPUS = Placement.parse("gpu", "0:0-3")
SPECS = default_registry().ops


class Making:
    """A graph under construction; ops are attributed to lines 1, 2, ... of model.py."""

    def __init__(self, placement: Placement = GPUS) -> None:
        self.placement = placement
        self.builder = GraphBuilder()
        self.emitter = Emitter(self.builder, SPECS)

    def op(
        self,
        type_: str,
        *inputs: Value,
        name: str | None = None,
        sbp: NdSbp | None = None,
        placement: Placement | None = None,
        **attrs: Any,
    ) -> Any:
        """Add an op; return its output, or a tuple of zero or several outputs."""
        out = self.emitter.emit(
            type_,
            inputs,
            attrs,
            placement=placement or self.placement,
            name=name,
            line=SourceLine("model.py", len(self.builder.ops) + 1),
            sbp=() if sbp is None else (sbp,),
        )
        return out[0] if len(out) == 1 else out

    def fed(self, *shape: int, name: str = "x", batch_axis: int | None = 0) -> Value:
        """Add a fed array."""
        attrs = {"shape": shape, "dtype": "float32", "batch_axis": batch_axis}
        value: Value = self.op("input", name=name, **attrs)
        return value

    def variable(self, name: str, *shape: int, sbp: NdSbp | None = None, **more: Any) -> Value:
        """Add a variable of zeros."""
        attrs = {"shape": shape, "initializer": ("constant", 0.0), **more}
        value: Value = self.op("variable", name=name, sbp=sbp, **attrs)
        return value

    def problem(self, *results: Value, fixed: dict[str, TensorLayout] | None = None) -> Problem:
        """Return the selection problem of the graph with the given fetched values."""
        self.builder.results = results
        return Problem(self.builder.build(), SPECS, fixed=fixed or {})


def perceptron(batch: int, width: int, sbp: NdSbp | None = None) -> Problem:
    """Build two matrix products, the first one's weights laid out as requested."""
    make = Making()
    x = make.fed(batch, width)
    w = make.variable("w", width, 4 * width, sbp=sbp)
    v = make.variable("v", 4 * width, width)
    hidden = make.op("relu", make.op("matmul", x, w, name="up"), name="act")
    return make.problem(make.op("matmul", hidden, v, name="down"))
