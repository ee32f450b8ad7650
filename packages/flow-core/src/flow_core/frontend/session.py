"""The session: registry, variables and jobs of a program."""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flow_core.config import Settings
from flow_core.device import Driver
from flow_core.errors import UnsupportedError, VariableError
from flow_core.frontend.variables import VariableInfo
from flow_core.initializers import generate
from flow_core.ir import TensorType
from flow_core.philox import op_seed
from flow_core.plugins.host import default_registry
from flow_core.plugins.registry import Registry
from flow_core.plugins.specs import Available
from flow_core.runtime.pipeline import Pipeline
from flow_core.topology import Placement


@dataclass(slots=True)
class StoredVariable:
    """A variable's memory.

    Attributes:
        info: what the jobs agreed on.
        device: text form of the device that owns the memory.
        memory: kind of memory: the device type whose kernels can read it.
        array: device array of the logical shape.
        driver: driver of the device.
    """

    info: VariableInfo
    device: str
    memory: str
    array: Any
    driver: Driver

    def numpy(self) -> Any:
        """A copy of the value."""
        return self.driver.copy_out(self.array)

    def assign(self, value: Any) -> None:
        """Overwrites the value with a host array of the same shape and type."""
        self.driver.copy_in(self.array, value)


@dataclass(slots=True)
class ResourceConfig:
    """What ``flow.config`` sets for the whole session."""

    gpu_device_num: int | None = None
    cpu_device_num: int | None = None
    machine_num: int = 1
    others: dict[str, Any] = field(default_factory=dict)


class Session:
    """State shared by the jobs of a program.

    Args:
        registry: the plugins; the process's default when None.
        settings: settings of the environment.
    """

    def __init__(self, registry: Registry | None = None, settings: Settings | None = None) -> None:
        self.registry = registry or default_registry()
        self.settings = settings or Settings.from_env()
        self.resources = ResourceConfig()
        self.jobs: list[Any] = []
        self.declared: dict[str, VariableInfo] = {}
        self._stored: dict[str, StoredVariable] = {}
        self._drivers: dict[str, Driver] = {}
        self._pipeline: Pipeline | None = None

    # ------------------------------------------------------------------ devices

    @property
    def default_placement(self) -> Placement:
        """Where ops outside any scope run: the first gpu if there is one, else the CPU."""
        kind = "gpu" if isinstance(self.registry.probe("gpu"), Available) else "cpu"
        return Placement.parse(kind, "0:0")

    def driver(self, device: str) -> Driver:
        """The driver of a device, by its text form."""
        driver = self._drivers.get(device)
        if driver is None:
            kind, _, index = device.split(":")
            driver = self._drivers[device] = self.registry.driver(kind, int(index))
        return driver

    def memory(self, device: str) -> str:
        """Kind of memory of a device: the device type whose kernels can read it."""
        kind = device.split(":")[0]
        return self.registry.devices[kind].kernels or kind

    @property
    def pipeline(self) -> Pipeline:
        """The actors that run steps."""
        if self._pipeline is None:
            self._pipeline = Pipeline()
        return self._pipeline

    # ---------------------------------------------------------------- variables

    def declare_variable(self, info: VariableInfo) -> None:
        """Takes note of a request for a variable; conflicting requests are errors."""
        known = self.declared.setdefault(info.name, info)
        known.check_same(info)

    def variable(self, name: str, device: str) -> Any:
        """The device array of a variable, initialised at its first use."""
        stored = self._stored.get(name) or self._allocate(name, device)
        if stored.memory != self.memory(device):
            raise UnsupportedError(
                f"variable {name!r}",
                at=stored.info.line,
                found=f"jobs on {stored.device} and on {device}, which share no memory",
                allowed="jobs of one session that share variables run on one kind of device",
            )
        return stored.array

    def _allocate(self, name: str, device: str) -> StoredVariable:
        info = self.declared[name]
        driver = self.driver(device)
        array = driver.allocate(info.type.nbytes).view(0, info.type.shape, info.type.dtype.numpy)
        stored = StoredVariable(info, device, self.memory(device), array, driver)
        stored.assign(initial_value(info))
        self._stored[name] = stored
        return stored

    def stored(self) -> Mapping[str, StoredVariable]:
        """All variables of all jobs, allocated; traces jobs that have not been traced."""
        for job in list(self.jobs):
            job.prepare()
        for name in self.declared:
            if name not in self._stored:
                self._allocate(name, self._device_of(name))
        return {name: self._stored[name] for name in sorted(self._stored)}

    def _device_of(self, name: str) -> str:
        for job in self.jobs:
            device = job.device_of(name)
            if device is not None:
                return str(device)
        return str(self.default_placement.device(0))

    def types(self) -> dict[str, TensorType]:
        """Types of all variables by name."""
        for job in list(self.jobs):
            job.prepare()
        return {name: info.type for name, info in sorted(self.declared.items())}

    def assign(self, values: Mapping[str, Any]) -> None:
        """Overwrites variables; all names must be known and all shapes right."""
        self.sync()
        stored = self.stored()
        for name, value in values.items():
            if name not in stored:
                raise VariableError(f"assigning variable {name!r}", found="no such variable")
            stored[name].assign(np.asarray(value, stored[name].info.type.dtype.numpy))

    def initialize(self) -> None:
        """Gives every variable its initial value."""
        self.sync()
        for stored in self.stored().values():
            stored.assign(initial_value(stored.info))

    # ---------------------------------------------------------------- life cycle

    def sync(self) -> None:
        """Waits until nothing is in flight; raises what callbacks raised."""
        if self._pipeline is not None:
            self._pipeline.sync()

    def close(self) -> None:
        """Delivers what is pending and forgets jobs and variables."""
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None
        for job in self.jobs:
            job.detach()
        self.jobs.clear()
        self.declared.clear()
        self._stored.clear()


def initial_value(info: VariableInfo) -> Any:
    """The initial value of a variable: the same whatever the layout."""
    seed = info.attrs.get("seed")
    return generate(
        info.attrs["initializer"],
        info.type.shape,
        info.type.dtype,
        op_seed(0 if seed is None else int(seed), info.name),
    )


_default: list[Session] = []


def default_session() -> Session:
    """The session that programs use without saying so."""
    if not _default:
        _default.append(Session())
    return _default[0]


def clear_default_session() -> None:
    """Delivers pending results, then drops all jobs and variables of the default session."""
    if _default:
        resources = _default[0].resources
        _default[0].close()
        _default[0] = Session(_default[0].registry)
        _default[0].resources = resources


def sync_default_session() -> None:
    """Waits until all asynchronous job calls have been delivered."""
    if _default:
        _default[0].sync()


def _deliver_at_exit() -> None:
    if _default:
        session = _default[0]
        try:
            session.sync()
        finally:
            session.close()


atexit.register(_deliver_at_exit)
