"""The interface of a session for tracing and compiling a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from flow_core.base.arrays import Array, DeviceArray
from flow_core.base.config import Settings
from flow_core.base.errors import FlowWarning, SourceLine
from flow_core.base.shapes import Shape
from flow_core.base.thread_budget import Budget
from flow_core.compiler.request import Held
from flow_core.compiler.reshard.planner import TensorLayout
from flow_core.costs.model import CostModel
from flow_core.device import Driver
from flow_core.frontend.config.function_config import FunctionConfig
from flow_core.frontend.trace.variable_info import VariableInfo
from flow_core.passes.optimizer_placement import Owned
from flow_core.plugins.registry import Registry
from flow_core.runtime.variable_writes import VariableWrites
from flow_core.sharding.sbp import Region
from flow_core.sharding.topology import Device

Found = TypeVar("Found")


class Resources(Protocol):
    """The settings of ``flow.config``."""

    machine_num: int
    others: dict[str, Any]  # the other settings by name; each has a type of its own


class SessionJob(Protocol):
    """A job of a session, as other jobs see it."""

    @property
    def name(self) -> str:
        """The job's name."""

    @property
    def kind(self) -> str:
        """The value "train" or "predict"."""

    @property
    def config(self) -> FunctionConfig:
        """The job's settings."""

    @property
    def owners(self) -> Mapping[str, Owned]:
        """The owners of the variables with gathered copies; empty before compilation."""

    def compile(self) -> object:
        """Trace and compile the job, unless that has been done."""


class JobSession(Protocol):
    """The session of a job; `flow_core.frontend.session.session.Session` implements it."""

    registry: Registry
    settings: Settings
    budget: Budget
    costs: CostModel
    writes: VariableWrites
    declared: dict[str, VariableInfo]  # by name
    layouts: dict[str, TensorLayout]  # chosen by the first compiled job that uses the variable
    sharing: dict[str, bool]  # whether devices share one copy in memory, likewise
    staged: dict[str, Owned]  # devices of stages, where other jobs read variables

    @property
    def resources(self) -> Resources:
        """Settings of ``flow.config``."""

    def declare_variable(self, info: VariableInfo) -> None:
        """Record a request for a variable; see `Session.declare_variable`."""

    def variable(
        self, name: str, device: Device, region: Region | None = None, shape: Shape | None = None
    ) -> DeviceArray | None:
        """Return the array in which a device holds a variable, or its part of the variable."""

    def value(self, name: str) -> Array:
        """Return a copy of the value of a variable that a job uses."""

    def held(self) -> Held:
        """Return the parts of variables that devices hold."""

    def driver(self, device: Device) -> Driver:
        """Return the driver of a device."""

    def free_memory(self, device: Device) -> int | None:
        """Return how many bytes of a device a plan may take, None if no limit is known."""

    def warn(self, text: str, category: type[FlowWarning], at: SourceLine | None) -> None:
        """Issue a warning, on rank 0 only."""

    def each(self, phase: Callable[[SessionJob], Found]) -> Iterator[Found]:
        """Yield a function's results for all jobs, except jobs for which the function fails."""
