"""The session: owner of the plugin registry, the variables and the jobs of a program."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from flow_core.base.arrays import DeviceArray
from flow_core.base.config import Settings
from flow_core.base.errors import (
    BrokenJobWarning,
    ConfigError,
    DeviceUnavailableError,
    FlowWarning,
    JobError,
    OutOfMemoryError,
    SourceLine,
    UnsupportedError,
    VariableError,
    warn,
)
from flow_core.base.forks import check_process, owned
from flow_core.base.shapes import Shape, num_elements
from flow_core.base.shutdown import run_shutdown_calls
from flow_core.base.thread_budget import Budget, find_budget, host_memory
from flow_core.base.thread_pools import set_budget
from flow_core.compiler.request import Held
from flow_core.compiler.reshard.planner import TensorLayout
from flow_core.costs.kept_kernels import read_kernels
from flow_core.costs.model import DEFAULT, CostModel
from flow_core.costs.topology_file import read_topology
from flow_core.device import Driver, World
from flow_core.frontend.session.resource_config import ResourceConfig
from flow_core.frontend.session.variable_storage import (
    HeldParts,
    Part,
    ReadRegion,
    StoredVariable,
    own_ranks,
    too_large,
    two_layouts,
    whole,
)
from flow_core.frontend.session.variables import check_savable
from flow_core.frontend.trace.job_build import maybe_current_job
from flow_core.frontend.trace.variable_info import VariableInfo
from flow_core.ir.graph import TensorType, tensor_type
from flow_core.passes.optimizer_placement import Owned
from flow_core.plugins.host import default_registry
from flow_core.plugins.registry import Registry
from flow_core.plugins.specs import Available
from flow_core.runtime.failures import allocated, viewed
from flow_core.runtime.pipeline import Pipeline
from flow_core.runtime.variable_writes import VariableWrites
from flow_core.sharding.sbp import Region, region_shape
from flow_core.sharding.topology import Device, Placement, devices_of

if TYPE_CHECKING:  # load the recorder only if needed
    from flow_core.frontend.session.recorder import Recorder

Found = TypeVar("Found")


class Session:
    """State shared by the jobs of a program.

    Args:
        registry: the plugins; the default registry of the process if None.
    """

    def __init__(self, registry: Registry | None = None, settings: Settings | None = None) -> None:
        self.registry = registry or default_registry()
        self.settings = settings or Settings.from_env()
        self.resources = ResourceConfig()
        self.jobs: list[Any] = []  # in the order of their definition
        self.eager = False
        self.declared: dict[str, VariableInfo] = {}
        self._stored: dict[str, StoredVariable] = {}
        self._updated: dict[str, Collection[Device]] = {}
        self._drivers: dict[Device, Driver] = {}
        self.compiling = threading.RLock()  # a lock held while a job is traced, compiled and bound
        self.pipeline = Pipeline()
        self.writes = VariableWrites()  # counts the writes to variables
        self.layouts: dict[str, TensorLayout] = {}  # chosen by the first compiled job that has them
        self.sharing: dict[str, bool] = {}  # whether devices share one copy, likewise
        self.staged: dict[str, Owned] = {}  # of variables of jobs in stages
        self._left_out: set[Any] = set()
        self.checked_weights: set[str] = set()  # names of train jobs
        self._world: World | None = self.registry.world()
        self.pipeline.one_caller = self._world is not None
        self._joined_machines: tuple[str, ...] = ()
        self.budget = self._find_budget()
        self.costs = self._find_costs()
        self.recorder = self._find_recorder()  # None if the settings request no recording
        owned(self)

    # ------------------------------------------------------------------ devices

    @property
    def default_placement(self) -> Placement:
        """The devices of ops outside any placement scope: all that the program has configured.

        The devices are GPUs if some are available and ``flow.config`` does not set their number
        to 0, otherwise CPUs.  There is one per machine unless ``flow.config`` sets another number.
        """
        available = isinstance(self.registry.probe("gpu"), Available)
        kind = "gpu" if available and self.resources.gpu_device_num != 0 else "cpu"
        count = getattr(self.resources, f"{kind}_device_num") or 1
        machines = range(self.resources.machine_num)
        return Placement.parse(kind, [f"{machine}:0-{count - 1}" for machine in machines])

    @property
    def world(self) -> World | None:
        """The processes that run this program together, None for a single process."""
        if self._world is None:
            self._meet_machines()
        if self._world is not None:
            self._world.arrange(self.resources.machine_num)
        return self._world

    def _meet_machines(self) -> None:
        """Join the processes started manually on the machines of ``flow.env.machine``."""
        machines = self.resources.others.get("env.machine", ())
        if len(machines) < 2 or machines == self._joined_machines:
            return
        self._joined_machines = machines
        used = min(self.resources.machine_num, len(machines))
        port = self.resources.others.get("env.ctrl_port")
        found = self.registry.static_bootstrap(machines, used, port)
        if found is not None and self._stored:
            raise ConfigError(
                "joining the machines of flow.env.machine",
                found="variables that jobs of this process have made before",
                allowed="a call of flow.env.machine before the first job",
            )
        self._world = found
        self.pipeline.one_caller = found is not None
        self.budget = self._find_budget()

    def _find_costs(self) -> CostModel:
        """Return the cost model of the topology file, or the default one."""
        if not self.settings.topology:
            return DEFAULT
        return read_topology(Path(self.settings.topology), read_kernels(self.registry))

    def _find_recorder(self) -> Recorder | None:
        if not self.settings.replay:
            return None
        from flow_core.frontend.session.recorder import recorder_of

        return recorder_of(self.settings, self._stored, self.writes, self._world)

    def _find_budget(self) -> Budget:
        world = self._world
        share, processes = (None, 1) if world is None else (world.cores, world.size)
        budget = find_budget(self.settings.cores, share, processes)
        set_budget(budget)
        return budget

    def _root(self, device: Device) -> tuple[int, bool]:
        """Return the rank of the process that owns a device, and whether it is this process."""
        world = self.world
        root = 0 if world is None else world.owner(device)
        return root, world is None or root == world.rank

    def driver(self, device: Device) -> Driver:
        if device not in self._drivers:
            self._drivers[device] = self.registry.driver(device)
        return self._drivers[device]

    def free_memory(self, device: Device) -> int | None:
        """Return how many bytes of a device a plan may use, None if no limit is known.

        ``flow.config.reserved_device_mem_mbyte`` is subtracted.
        """
        free = self.driver(device).memory()
        if free is None and self.memory(device) == "cpu":
            return host_memory()
        reserved = int(self.resources.others.get("reserved_device_mem_mbyte", 0)) << 20
        if free is None or device.type == "cpu":
            return free
        return max(0, free - reserved)

    def held(self) -> Held:
        """Return the parts of variables that devices hold; None for provisional parts."""
        return HeldParts(self._stored)

    def memory(self, device: Device) -> str:
        """Return the memory kind of a device: the device type whose kernels can read its memory."""
        return self.registry.devices[device.type].kernels or device.type

    # ---------------------------------------------------------------- variables

    def declare_variable(self, info: VariableInfo) -> None:
        """Record a request for a variable.

        Raises:
            VariableError: the name is not allowed in checkpoints, or another request conflicts.
        """
        check_savable(info)
        known = self.declared.setdefault(info.name, info)
        known.check_same(info)

    @contextmanager
    def binding(self) -> Iterator[None]:
        """Discard the parts of variables created in a ``with`` block that fails."""
        before = {name: stored.state() for name, stored in self._stored.items()}
        updated = dict(self._updated)
        try:
            yield
        except BaseException:
            self._stored = {name: self._stored[name] for name in before}
            for restore in before.values():
                restore()
            self._updated = updated
            raise

    @contextmanager
    def declaring(self) -> Iterator[None]:
        """Discard the variables declared in a ``with`` block that fails."""
        before = dict(self.declared)
        try:
            yield
        except BaseException:
            self.declared = before
            raise

    def variable(
        self, name: str, device: Device, region: Region | None = None, shape: Shape | None = None
    ) -> DeviceArray | None:
        """Return the array in which a device holds a variable or a part of it.

        A collective operation; it initializes a new array, and returns None in other processes.

        Args:
            region: the part to hold; None for the whole variable.
            shape: the array's shape, if it differs from the shape of the part.
        """
        stored = self._stored.get(name) or self._store(name, device)
        wanted = region or whole(stored.info)
        stored.settle(device, wanted)
        part = stored.part(device)
        if part is None:
            part = self._adopt(stored, device, wanted)
        if part.region != wanted:
            raise two_layouts(stored.info, device, part.region, region)
        return part.view(shape)

    def adopt(self, name: str, layout: TensorLayout, world: World) -> None:
        """Hold a variable in a layout, as `variable` does for one device after the other.

        A collective operation, which costs nothing for other processes if no device has a part.
        """
        stored = self._stored.get(name) or self._store(name, layout.placement.device(0))
        devices, shape = devices_of(layout.placement), stored.info.type.shape
        stored.settle(devices[0], layout.region(shape, 0))
        if not stored.has_parts:
            stored.memory, machines = self.memory(devices[0]), self.resources.machine_num
            own = own_ranks(layout.placement, world.owner, world.rank, machines)
            held = ((devices[i], layout.region(shape, i)) for i in own)
            stored.adopt(layout, {device: self._new_part(stored, device, r) for device, r in held})
        elif not stored.is_in(layout):
            for rank, device in enumerate(devices):
                self.variable(name, device, layout.region(shape, rank))

    def is_still_zero(self, name: str) -> bool:
        """Return whether a variable initialized to zero is still zero; False if unknown."""
        stored = self._stored.get(name)
        if stored is None:
            return True
        if stored.world is not None:  # reading is collective, and some processes might not call
            return False
        return not np.any(stored.numpy())

    def value(self, name: str) -> Any:
        return self._stored[name].numpy()

    def check_replicas(self, job: str, updated: Mapping[str, Collection[Device]]) -> None:
        """Raise an error if a copy of a variable is on a device where no job would update it.

        Args:
            updated: for each variable that the job updates, the devices on which it does.
        """
        for name, devices in updated.items():
            known = self._updated.get(name)
            self._updated[name] = devices if known in (None, devices) else {*known, *devices}
        for name, devices in self._updated.items():
            stored = self._stored[name]
            outdated = stored.apart_from(devices)
            if outdated:
                owners, copies = (", ".join(map(str, d)) for d in (sorted(devices), outdated))
                raise UnsupportedError(
                    f"binding job {job!r}",
                    at=stored.info.line,
                    found=f"variable {name!r}, updated on {owners} only, with a copy on {copies}",
                    allowed="jobs that use a variable where another job updates it",
                    hint="give both jobs the same placement",
                )

    def _store(self, name: str, device: Device) -> StoredVariable:
        stored = StoredVariable(self.declared[name], self.memory(device), world=self.world)
        self._stored[name] = stored
        return stored

    def _adopt(self, stored: StoredVariable, device: Device, region: Region) -> Part:
        """Add a part to a variable: in the memory of an equal part if possible, else in new."""
        if not stored.parts:
            stored.memory = self.memory(device)
        if stored.memory != self.memory(device):
            devices = " and ".join(map(str, [*stored.parts, device]))
            raise UnsupportedError(
                f"variable {stored.info.name!r}",
                at=stored.info.line,
                found=f"jobs on {devices}, which share no memory",
                allowed="one kind of device for the jobs of a session that share variables",
            )
        part = self._shared(stored, device, region) or self._new_part(stored, device, region)
        stored.parts[device] = part
        if stored.world is None:
            stored.forget_first()
        return part

    def _new_part(self, stored: StoredVariable, device: Device, region: Region) -> Part:
        root, is_here = self._root(device)
        if not is_here:
            stored.refresh()  # a collective operation: the owner of the part needs the value
            return Part(region, None, None, root)
        driver, dtype = self.driver(device), stored.info.type.dtype
        shape = region_shape(region)
        nbytes = num_elements(shape) * dtype.itemsize
        free = self.free_memory(device)
        if free is not None and nbytes > free:
            raise too_large(stored.info, device, nbytes, f"{free:,} free bytes")
        try:
            arena = allocated(driver, device, nbytes, self.registry)
            array = viewed(arena, 0, tensor_type(shape, dtype), device, self.registry)
            part = Part(region, array, driver, root, arena)
            if not stored.blank:
                stored.fill(part)
        except MemoryError as error:
            raise too_large(stored.info, device, nbytes, f"what is left: {error}") from None
        return part

    def drop_initial_values(self) -> None:
        """Drop the initial values of variables; a job calls this once it holds all its parts."""
        for stored in self._stored.values():
            stored.forget_first()

    def _shared(self, stored: StoredVariable, device: Device, region: Region) -> Part | None:
        """Return the part whose memory a new part can share, or None.

        Unless all devices share the variable, the part is on a device of equal machine and index.
        """
        anywhere = self.sharing.get(stored.info.name, False)
        for other, part in stored.parts.items():
            same_place = (other.machine, other.index) == (device.machine, device.index)
            if (anywhere or same_place) and part.region == region:
                return part
        return None

    def each(self, phase: Callable[[Any], Found]) -> Iterator[Found]:
        """Yield a function's results for all jobs, except jobs for which the function fails.

        For each of those jobs, one warning is issued; a call of the job raises the error.
        """
        for job in list(self.jobs):
            try:
                found = phase(job)
            except Exception as error:  # noqa: BLE001 - any error concerns that job only
                self._leave_out(job, error)
            else:
                yield found

    def _leave_out(self, job: Any, error: Exception) -> None:
        if job in self._left_out:
            return
        self._left_out.add(job)
        self.warn(
            f"job {job.name!r} cannot be used, so functions that save, load or list the variables "
            f"of all jobs skip its variables: {type(error).__name__}: {error}",
            BrokenJobWarning,
            job.line,
        )

    def warn(self, text: str, category: type[FlowWarning], at: SourceLine | None) -> None:
        if self.world is None or self.world.rank == 0:
            warn(text, category, at)

    def stored(self) -> Mapping[str, StoredVariable]:
        """Return the allocated variables of all jobs; trace and allocate them if needed.

        Jobs that cannot be traced, or whose variables cannot be allocated, are excluded.  Raises
        `JobError` if called while a job is being traced.
        """
        variables = self._allocated()
        for stored in variables.values():
            stored.write()
        self.drop_initial_values()
        return variables

    def _allocated(self) -> dict[str, StoredVariable]:
        """Return the variables of `stored`; those that it would initialize may be blank."""
        for name in self.requested_types():
            if name not in self._stored or not self._stored[name].has_parts:
                self._allocate(name)
        return {name: self._stored[name] for name in sorted(self._stored)}

    def requested_types(self) -> dict[str, TensorType]:
        """Return the types of all variables that jobs request, allocated or not; see `stored`."""
        job = maybe_current_job()
        if job is not None:
            raise JobError.at_caller(
                f"use of the session's variables in job {job.name!r}",
                found="the definition of a job",
                allowed="calls outside of job functions",
                hint="move the call out of the job function; inside it, use flow.get_variable",
            )
        list(self.each(lambda job: job.prepare()))
        return {name: info.type for name, info in self.declared.items()}

    def _allocate(self, name: str) -> None:
        """Allocate a variable that no job has bound, on a device of the first job that uses it.

        It stays blank: values that are loaded next need no initial values before them.
        """
        job, device = self._first_user(name)
        try:
            with self.binding():
                (self._stored.get(name) or self._store(name, device)).blank = True
                self.variable(name, device)
        except (DeviceUnavailableError, OutOfMemoryError) as error:
            if job is None:
                raise
            self._leave_out(job, error)
        else:
            self._stored[name].provisional = True

    def _first_user(self, name: str) -> tuple[Any, Device]:
        """Return the first job that uses a variable (None if none does), and its device."""
        for job in self.jobs:
            if (device := job.device_of(name)) is not None:
                return job, device
        return None, self.default_placement.device(0)

    def types(self) -> dict[str, TensorType]:
        """Return the types of all variables of `stored`, by name, without initializing them."""
        return {name: stored.info.type for name, stored in self._allocated().items()}

    def assign(self, values: Mapping[str, Any]) -> None:
        """Overwrite variables with arrays; all names must be known and all shapes must match."""
        with self.quiesced(), self.writes:
            variables = self._allocated()
            for name, value in values.items():
                if name not in variables:
                    raise _unknown_variable(name)
                variables[name].assign(np.asarray(value, variables[name].info.type.dtype.numpy))
            self._resume()

    def load_regions(self, readers: Mapping[str, ReadRegion]) -> None:
        """Overwrite variables; each process reads only the regions that its devices hold.

        A variable that no job has laid out yet is read when a job requests its parts.  Raises
        `VariableError` if no job has a variable with one of the names.
        """
        with self.quiesced(), self.writes:
            known = self.requested_types()
            for name, read in readers.items():
                if name not in known:
                    raise _unknown_variable(name)
                stored = self._stored.get(name) or self._store(name, self._first_user(name)[1])
                stored.load(read)
            self._resume()

    def initialize(self) -> None:
        """Reset every variable to its initial value."""
        with self.quiesced(), self.writes:
            for stored in self._allocated().values():
                stored.reset()
            self._resume()

    def forget(self, names: Iterable[str]) -> None:
        """Drop variables that no traced job uses, with their layouts."""
        for table in self._by_name():
            for name in names:
                table.pop(name, None)

    def _by_name(self) -> tuple[dict[str, Any], ...]:
        tables = self.declared, self._stored, self._updated, self.layouts
        return *tables, self.sharing, self.staged

    def _resume(self) -> None:
        for job in self.jobs:
            job.resume()

    # ---------------------------------------------------------------- life cycle

    def before_call(self, job: str) -> None:
        """Raise errors of callbacks, and refuse calls whose order may differ between processes.

        Raises `JobError` if a callback calls a job, in a program of several processes.
        """
        if self._world is not None and self.pipeline.in_callback:
            raise JobError.at_caller(
                f"calling job {job!r} inside a callback",
                found=f"a program of {self._world.size} processes, which run their callbacks at "
                "different times",
                allowed="calls in the order of the script, the same in all processes",
                hint="store the result, and call the job after flow.sync_default_session()",
            )
        self.pipeline.raise_pending()

    def sync(self) -> None:
        """Wait until no step is in flight; raise errors of callbacks."""
        self.pipeline.sync()

    def quiesced(self) -> AbstractContextManager[None]:
        """Wait until no step is in flight, and let none start during a ``with`` block."""
        return self.pipeline.quiesced()

    def leave_to_parent(self) -> bool:
        """In a forked process, detach the jobs if the session is in use; return whether it is."""
        self.compiling = threading.RLock()  # a thread of the parent may hold the old lock
        if self._world is None and not self._drivers:
            return False
        self.pipeline.leave_to_parent()
        for job in self.jobs:
            job.session = None
        _default.clear()
        return True

    def close(self) -> tuple[BaseException, ...]:
        """Deliver pending steps, drop all jobs and variables, and return unreported errors."""
        errors = self.pipeline.close()
        if self.recorder is not None:
            self.recorder.close()
        for job in self.jobs:
            job.detach()
        others: tuple[Any, ...] = (self.jobs, self._left_out, self.checked_weights)
        for table in (*others, *self._by_name()):
            table.clear()
        return errors


def _unknown_variable(name: str) -> VariableError:
    return VariableError(f"assigning variable {name!r}", found="no such variable")


_default: list[Session] = []


def default_session() -> Session:
    """Return the session that programs use implicitly; refuse some forked processes."""
    if not _default:
        check_process()
        _default.append(Session())
    return _default[0]


def _deliver_at_exit() -> None:
    """Deliver pending steps when the interpreter exits; exit with status 1 on errors."""
    if not _default:
        return
    try:
        errors = _default[0].close()
    except KeyboardInterrupt:  # a second Ctrl-C cancels pending steps
        return
    for error in errors:
        sys.excepthook(type(error), error, error.__traceback__)
    if errors:
        run_shutdown_calls()
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # the interpreter would ignore an exception here and report success


atexit.register(_deliver_at_exit)
