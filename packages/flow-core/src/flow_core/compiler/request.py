"""What the plan of a job depends on, and what compilation returns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from flow_core.base.errors import SourceLine
from flow_core.compiler.distribute.physical_graph import Physical
from flow_core.compiler.lower.inputs import CompileOptions
from flow_core.compiler.reshard.planner import TensorLayout
from flow_core.compiler.searched import Searched
from flow_core.compiler.select import Selector
from flow_core.compiler.stage_cache import StageCache
from flow_core.ir.graph import Graph, Value
from flow_core.passes.base import Pass, PassTiming
from flow_core.passes.optimizer_placement import Owned
from flow_core.plan import Plan
from flow_core.plugins.registry import Registry
from flow_core.sharding.sbp import Region
from flow_core.sharding.topology import Device


@dataclass(frozen=True, slots=True)
class HostedOp:
    """An op that runs on the CPU for lack of a kernel.

    Attributes:
        device_type: the device type that has no kernel for the op.
        line: the source line of the op, if known.
    """

    type: str
    device_type: str
    line: SourceLine | None


Held = Mapping[str, Mapping[Device, Region | None]]
"""The parts of variables that devices hold; None for a part that another job may replace."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What jobs are checked against.

    A plan depends on it only by `ArenaPlan.faster`: a faster order of the ops may be refused.

    Attributes:
        machines: the number of machines of the program.
        memory: the number of bytes that a device has for the plan; None for no limit.
        held: the parts of variables that devices hold.
    """

    machines: int = 1
    memory: Callable[[Device], int | None] = lambda _: None
    held: Held = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """All that the plan of a job depends on.

    Attributes:
        graph: the logical graph, with backward pass, updates, results and effects.
        inputs: names of the ``input`` ops in the order in which arrays are fed to them.
        registry: the ops, kernels, devices, boxing methods and passes.
        requested: passes with the options that the job's settings request; each takes the place of
            the registry's pass of its name.
        settings: the values of the settings that options of passes name.
        limits: what the job is checked against.
        layouts: the layouts of variables that earlier jobs have chosen.
        shared: whether devices share one copy of a variable, as earlier jobs have chosen.
        share_replicas: whether devices with a common memory may share copies of variables.
        may_host: the device types whose ops may run on the CPU if they have no kernel for them.
        hosted: the ops that do, by name in the logical graph.
        selector: the selector of SBP signatures, or its name.
        selector_seconds: the time limit of the selector.
        memory_price: the factor on the price of memory in the cost model.
        micro_batches: the number of micro-batches of a step.
        devices: the devices that the plan has tasks for, in addition to the devices that stand for
            their classes; None for all devices.
        cache: the results of stages of other requests, on which the plan does not depend; None to
            keep none.
    """

    job: str
    graph: Graph
    inputs: tuple[str, ...]
    registry: Registry
    requested: tuple[Pass, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: CompileOptions = field(default_factory=CompileOptions)
    limits: Limits = field(default_factory=Limits)
    layouts: Mapping[str, TensorLayout] = field(default_factory=dict)
    shared: Mapping[str, bool] = field(default_factory=dict)
    share_replicas: bool = True
    may_host: frozenset[str] = frozenset()
    hosted: Mapping[str, HostedOp] = field(default_factory=dict)
    selector: str | Selector = "auto"
    selector_seconds: float = 10.0
    memory_price: float = 1.0
    micro_batches: int = 1
    devices: Collection[Device] | None = None
    cache: StageCache | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Stages:
    """The graphs between the stages of compilation, for reports.

    Attributes:
        optimized_logical: the logical graph after the passes on it.
        graph: the physical graph after the passes on it.
        timings: time taken by each pass and stage.
        physical: the physical graph before the passes on it, with layouts and ledger.
    """

    optimized_logical: Graph
    graph: Graph
    timings: tuple[PassTiming, ...]
    physical: Physical


@dataclass(frozen=True, slots=True)
class Compiled:
    """The plan of a job.

    Attributes:
        request: what was compiled.
        plan: the physical plan.
        inputs: names of the ``input`` ops in the order in which arrays are fed to them: all inputs
            of one micro-batch, then those of the next.
        variables: the layouts of the job's variables, which jobs that are compiled later must use.
        shared: for each variable of which several devices hold equal parts, whether they share one
            copy; jobs that are compiled later must do the same.
        owners: the owners of the variables that have gathered copies, which jobs that are compiled
            later must respect.
        stages: a function that returns the graphs between the stages; if the plan was kept on disk,
            the function compiles the job again when it is called first.
        searched: the search for this form of the job; None if the job fits as it is.
    """

    request: CompileRequest
    plan: Plan
    inputs: tuple[str, ...]
    variables: Mapping[str, TensorLayout]
    shared: Mapping[str, bool]
    owners: Mapping[str, Owned]
    stages: Callable[[], Stages] = field(repr=False, compare=False)
    searched: Searched | None = None

    @property
    def logical(self) -> Graph:
        """The graph as traced and differentiated."""
        return self.request.graph

    @property
    def optimized_logical(self) -> Graph:
        """The logical graph after the passes on it."""
        return self.stages().optimized_logical

    @property
    def graph(self) -> Graph:
        """The physical graph after the passes on it."""
        return self.stages().graph

    @property
    def timings(self) -> tuple[PassTiming, ...]:
        """The time taken by each pass and stage."""
        return self.stages().timings

    @property
    def physical(self) -> Physical:
        """The physical graph before the passes on it, with layouts and ledger."""
        return self.stages().physical

    @property
    def layouts(self) -> Mapping[Value, TensorLayout]:
        """Layouts of the logical values; empty for a single device."""
        return self.physical.layouts
