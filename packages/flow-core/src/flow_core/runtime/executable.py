"""A plan that is bound to memory and kernels, and runs its steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import tensor_buffer
from flow_core.base.errors import PlanError, UnsupportedError
from flow_core.base.shapes import Shape
from flow_core.base.thread_pools import find_open_mp, sized_pools, with_sized_pools
from flow_core.comm.described import Sparse, places
from flow_core.comm.exchange import (
    BOXING,
    DevicePair,
    Exchange,
    devices_of_task,
    exchange_of,
    pack,
    unpack,
)
from flow_core.comm.liveness import check_liveness
from flow_core.device import Arena, Comm, Driver, Launch, World
from flow_core.plan import ArenaPlan, Buffer, Plan, Task
from flow_core.plugins.guards import result_error
from flow_core.plugins.kinds import show
from flow_core.plugins.specs import BindContext, load
from flow_core.runtime.failures import Blame, KernelSource, allocated, line_of, viewed
from flow_core.runtime.launch_order import LaunchOrder
from flow_core.runtime.streams import OverlapIfLong, Segment, StreamRunner, own_tasks, segments
from flow_core.runtime.variable_writes import VariableWrites
from flow_core.sharding.sbp import Region
from flow_core.sharding.topology import Device

VariableSource = Callable[[str, Device, Region | None, Shape], Any]
"""A function that returns the array of a part of a variable, given the variable's name, the device,
the part's region (None for the whole variable) and the array's shape."""


class Executable:
    """A loaded plan.  Its tasks are bound once, when it is created; `run` only calls launches."""

    # Whether launches are followed by waits regardless of ``sync_launches``.
    sync_always: ClassVar[bool] = False

    def __init__(
        self,
        plan: Plan,
        kernels: KernelSource,
        driver: Callable[[Device], Driver],
        variable: VariableSource,  # the function that returns the session's arrays of variables
        *,
        # Observers, which are called after each step with the step's number and statistics (job and
        # seconds).
        finished: Sequence[Callable[[int, Mapping[str, Any]], object]] = (),
        # A function that creates the communicator (comm) between the plan's devices.  Tasks of the
        # comm's local devices are bound and run here; other processes run the other tasks.
        comm: Callable[[Sequence[Device]], Comm] | None = None,
        # The step counter, an int64 scalar that the plans of a job share; None for a new one.
        step: Array | None = None,
        # The processes that run the plan together, None for a single process.  With several
        # processes, ``variable`` is called for the variables of all devices, in the order of the
        # plan, and may return None for those of other processes, unless the plan has only some
        # devices; every process gets all results.
        world: World | None = None,
        # Whether each launch on an asynchronous device is followed by a wait for its work, so that
        # an error names its op.
        sync_launches: bool = False,
        # Counts the writes to the variables; None if nothing else overwrites them.
        writes: VariableWrites | None = None,
        # Whether exchanges with other processes have a thread of their own in long steps.
        overlap: bool = True,
    ) -> None:
        # First, since a plan whose steps do not end must not allocate memory or connect processes.
        check_liveness(plan, world.owner if world else None)
        self.plan = plan
        # Number of the next step, a 0-d array.
        self.step = np.zeros((), np.int64) if step is None else step
        # arithmetic on the view takes a twentieth of the time of that on the array
        self._counter = memoryview(self.step.data)
        self._kernels, self._driver = kernels, driver
        self._finished = tuple(finished)
        devices = [a.device for a in plan.arenas]
        self._world = world
        self._overlap = overlap
        self._sync_launches = sync_launches or self.sync_always
        self._writes = writes or VariableWrites()
        self._overwrites = any(kernels.ops[task.type].overwrites(task.attrs) for task in plan.tasks)
        # None for a plan without exchanges.
        self.comm = comm(devices) if comm and (world or _has_exchanges(plan)) else None
        self._blame = Blame(plan, kernels, self.comm.name if self.comm else "")
        if self.comm is not None:
            self.comm.attach(driver)
        self._local = frozenset(self.comm.local if self.comm else devices)
        self._allocate(driver, variable)
        self._bind_step()
        self._unchecked = True
        self._roots = self._owners_of_fetches(world) if world else ()

    def _allocate(self, driver: Callable[[Device], Driver], variable: VariableSource) -> None:
        """Allocate the memory of the local devices; find the arrays of all buffers in it."""
        plan = self.plan
        arenas = [a for a in plan.arenas if a.device in self._local]
        self._order = LaunchOrder(plan, [a.device for a in arenas], driver, self._kernels)
        # Memory of the local devices.
        self.arenas = {a.device: self._arena(a, driver(a.device)) for a in arenas}
        self._arrays = [self._array(b, variable) for b in plan.buffers]
        # None for those that another process holds.
        self.feeds = tuple(self._arrays[i] for i in plan.feeds)
        self.fetches = tuple(self._arrays[i] for i in plan.fetches)
        # The regions of fed arrays that this process copies to devices in each step, as (index of
        # the parameter, slices); other parts of the arrays are not read.
        self.windows = tuple(self._windows())
        fed = [i for i, array in enumerate(self.feeds) if array is not None]
        copies = [self._copy_in(i, driver) for i in fed]
        self._copies = [(c, *w) for c, w in zip(copies, self.windows, strict=True)]
        self._results = [self._copy_out(i, driver) for i in range(len(self.fetches))]

    def _bind_step(self) -> None:
        """Bind all tasks, and run those before the first step."""
        plan = self.plan
        find_open_mp()
        with sized_pools(plan.cores):
            self._once = self._prologue()  # enqueued: its operands must live until it has run
            self._derived = self._bind_all(plan.derived)
            derive = self._order.compile(plan.derived, self._derived)
            self._derivation = with_sized_pools(plan.cores, derive)
            self._derive()
            self._launch = self._compiled()

    def _arena(self, plan: ArenaPlan, driver: Driver) -> Arena:
        """Allocate the memory of a device: by the comm if it provides memory, or by the driver."""
        try:
            found = self.comm.arena(plan.device, plan.nbytes) if self.comm else None
            if found is None:
                return allocated(driver, plan.device, plan.nbytes, self._kernels)
            return found
        except MemoryError as error:
            raise plan.too_large("allocating", f"what is left there: {error}") from None

    def _array(self, buffer: Buffer, variable: VariableSource) -> Any:
        is_here = buffer.device in self._local
        if is_here and buffer.memory not in self._local:
            raise _not_shared(self.plan, buffer)
        if buffer.kind == "variable" and (is_here or (self._world and not self.plan.classes)):
            logical, region = self.plan.shards.get(buffer.op, (buffer.op, None))
            found = variable(logical, buffer.memory, region, buffer.type.shape)
            return found if is_here else None
        if not is_here:
            return None
        if buffer.type.dtype.is_object:
            return np.empty(buffer.type.shape, object)
        arena = self.arenas[buffer.memory]
        return viewed(arena, buffer.offset, buffer.type, buffer.memory, self._kernels)

    def _prologue(self) -> Launch:
        """Run the tasks that precede the first step, and return their launch."""
        bound = self._bind_all(self.plan.prologue)
        launch = self._order.compile(self.plan.prologue, bound)
        with self._blame.step(self.plan.prologue, bound):
            launch()
        return launch

    def _bind_all(self, tasks: Sequence[Task]) -> list[Sequence[Launch]]:
        bound = [self.bind_task(task) for task in tasks]
        if not self._sync_launches:
            return bound
        pairs = zip(tasks, bound, strict=True)
        return [self._order.synchronized(task, launches) for task, launches in pairs]

    def _derive(self) -> None:
        """Compute the values that depend on variables alone."""
        self._derived_at = self._writes.count
        with self._blame.step(self.plan.derived, self._derived):
            self._derivation()

    def bind_task(self, task: Task) -> Sequence[Launch]:
        """Return the launches of one task; a task of another process has no launches."""
        arrays = self._arrays
        if task.type == BOXING:
            return self._bind_exchange(task)
        if task.device not in self._local:
            return ()
        query = self._blame.query(task)
        context = BindContext(
            query=query,
            inputs=tuple([arrays[i] for i in task.inputs]),
            outputs=tuple([arrays[i] for i in task.outputs]),
            workspace=None if task.workspace is None else arrays[task.workspace],
            step=self.step,
            seed=task.seed,
            stream=self._order.streams[task.device],
            cores=self.plan.cores,
        )
        with self._blame.task("binding", task):
            bound = load(self._kernels.find_kernel(query, task.device.type).load)(context)
        return bound if isinstance(bound, tuple | list) else (bound,)

    def _bind_exchange(self, task: Task) -> Sequence[Launch]:
        if self.comm is None:
            raise PlanError(
                f"binding {task.op!r}",
                found="an exchange without a communicator",
                allowed="a communicator that joins the plan's devices",
            )
        buffers = self.plan.buffers
        members = devices_of_task(task, buffers)
        if not members & self._local and task.attrs.get("whole"):
            return ()  # the other processes do not have all of these exchanges
        with self._blame.task("binding", task):
            exchange = exchange_of(task, buffers, self.comm.local)
            inputs = self._spread(task.inputs, exchange.senders, exchange)
            outputs = self._spread(task.outputs, exchange.receivers, exchange)
            bound = self.comm.bind(exchange, inputs, outputs)
            launches = list(bound)
        if not all(map(callable, launches)):
            raise result_error(
                *self._blame.attempted("binding", task),
                show(bound),
                "a sequence of launches (callables without arguments)",
                line_of(task),
            )
        return launches

    def _spread(
        self, found: Sequence[int], devices: Sequence[Device], exchange: Exchange
    ) -> Sequence[Any]:
        """Return the arrays at one end of an exchange; None for devices without buffers."""
        if len(found) == len(devices):
            return [self._arrays[i] for i in found]
        members = len(exchange.member_names)
        size, own = len(devices) // members, len(found) // members
        own_devices = [self.plan.buffers[i].device for i in found]
        first = {device: places(devices, (device,))[0] for device in own_devices[:own]}
        return Sparse(len(devices), {
            k // own * size + first[device]: self._arrays[i]
            for k, (i, device) in enumerate(zip(found, own_devices, strict=True))
            if self._arrays[i] is not None
        })  # fmt: skip

    def observed(self, position: int, launches: Sequence[Launch]) -> Sequence[Launch]:
        """Return the launches of a task of a step; subclasses add launches that observe the task.

        Args:
            launches: the launches of the task; none for a task of other processes.
        """
        return launches

    def _compiled(self) -> Launch:
        """Return the launch of a step, which runs tasks in plan order, or streams on threads."""
        bound = [self.observed(i, row) for i, row in enumerate(self._bind_all(self.plan.tasks))]
        self._bound = bound
        return self._launcher(bound)

    def _launcher(self, bound: Sequence[Sequence[Launch]]) -> Launch:
        """Return the launch of a step, given the launches of its tasks."""
        cores = self.plan.cores
        in_order = with_sized_pools(cores, self._order.compile(self.plan.tasks, bound))
        is_alone = self._world is None or not self._overlap
        if self._order.asynchronous or (self.plan.workers <= 1 and is_alone):
            return in_order
        positions, tasks = own_tasks(self.plan.tasks, self._takes_part)
        parts = segments(tasks)
        for part in parts:
            launches = [bound[positions[i]] for i in part.tasks]
            part.launch = self._order.compile([tasks[i] for i in part.tasks], launches)
        waiting = frozenset[int]() if is_alone else frozenset(self._waiting(tasks, parts))
        runner = StreamRunner(parts, self.plan.workers, cores, waiting)
        if self.plan.workers > 1:
            return runner
        return OverlapIfLong(in_order, runner, len(parts)) if waiting else in_order

    def _waiting(self, tasks: Sequence[Task], parts: Sequence[Segment]) -> Iterator[int]:
        """Yield the indices of the segments in which other processes take part."""
        for index, part in enumerate(parts):
            if any(self._takes_part(tasks[i])[1] for i in part.tasks):
                yield index

    def _check_outputs(self) -> None:
        """Check the shapes of all outputs, which a wrong kernel may have changed."""
        self._blame.check_outputs(self.plan.tasks, self._arrays)
        self._unchecked = False

    def _takes_part(self, task: Task) -> tuple[bool, bool]:
        """Return whether this process runs a part of a task, and whether other processes do."""
        if task.type != BOXING:
            return task.device in self._local, False
        found = devices_of_task(task, self.plan.buffers)
        return bool(found & self._local), bool(found & self._local and found - self._local)

    def run(self, feeds: Sequence[Array]) -> tuple[Array, ...]:
        """Run one step: copy the feeds to the devices, launch, and copy the results to the host."""
        if self.comm is not None:
            self.comm.before_step()
        started = time.perf_counter() if self._finished else 0.0
        try:
            if self._overwrites:
                self._writes.count += 1
            elif self._derived_at != self._writes.count:
                self._derive()
            for copy, index, window in self._copies:
                copy(feeds[index][window])
            self._launch()
            if self._unchecked:
                self._check_outputs()
            self._counter[()] += 1
            # from a list: CPython keeps the memory of thousands of tuples of unknown length
            results = tuple([fetch() for fetch in self._results])
        except Exception:
            is_deferred = self._order.asynchronous and not self._sync_launches
            with self._blame.step(self.plan.tasks, self._bound, is_deferred):
                raise
        if self.comm is not None:
            self.comm.after_step()
        if self._world is not None:
            results = self._shared(self._world, results)
        if self._finished:
            self._notify(self._counter[()] - 1, time.perf_counter() - started)
        return results

    def _notify(self, step: int, seconds: float) -> None:
        """Call the observers of a finished step."""
        for observer in self._finished:
            try:
                observer(step, {"job": self.plan.job, "seconds": seconds})
            except Exception:
                with self._blame.observer(observer):
                    raise

    def _windows(self) -> Iterator[tuple[int, Any]]:
        """Yield the elements of `windows`; micro-batches are slices of axis 0."""
        parts, sizes = self.plan.micro_batches, self.plan.fed_shapes
        for target, (index, region) in zip(self.feeds, self.plan.fed, strict=True):
            if target is None:
                continue
            box = [slice(*bounds) for bounds in region]
            if parts > 1:
                first = index % parts * sizes[index][0]
                box[0] = slice(first + box[0].start, first + box[0].stop)
            whole = parts == 1 and region == tuple([(0, n) for n in sizes[index]])
            yield index // parts, ... if whole else tuple(box)

    def _copy_in(
        self, position: int, driver: Callable[[Device], Driver]
    ) -> Callable[[Array], object]:
        """Return a function that copies an array into a fed buffer; objects stay on the host."""
        target, buffer = self.feeds[position], self.plan.buffers[self.plan.feeds[position]]
        if buffer.type.dtype.is_object:
            return partial(target.__setitem__, ...)
        return partial(driver(buffer.device).copy_in, target)

    def _copy_out(self, position: int, driver: Callable[[Device], Driver]) -> Callable[[], Any]:
        """Return a function that copies a result to the host, or returns None if it is remote."""
        source, buffer = self.fetches[position], self.plan.buffers[self.plan.fetches[position]]
        if source is None:
            return lambda: None
        if buffer.type.dtype.is_object:
            return partial(_copied, source)
        return partial(driver(buffer.memory).copy_out, source)

    def _owners_of_fetches(self, world: World) -> tuple[int, ...]:
        buffers = [self.plan.buffers[i] for i in self.plan.fetches]
        for buffer in buffers:
            if buffer.type.dtype.is_object and buffer.type.dtype != tensor_buffer:
                raise UnsupportedError(
                    f"fetching {buffer.name!r} of job {self.plan.job!r}",
                    found=f"{buffer.type}, in a program of {world.size} processes",
                    allowed="arrays of numbers, and tensors of changing shape",
                    hint="decode the records in the job, and fetch the decoded arrays",
                )
        return tuple([world.owner(buffer.device) for buffer in buffers])

    def _shared(self, world: World, results: Sequence[Array]) -> tuple[Array, ...]:
        """Share the results among all processes."""
        what = f"the results of job {self.plan.job!r}"
        types = [self.plan.buffers[i].type for i in self.plan.fetches]
        arrays = [
            np.empty(type_.shape, type_.dtype.numpy) if array is None else array
            for type_, array in zip(types, results, strict=True)
        ]
        ragged = {i for i, type_ in enumerate(types) if type_.dtype.is_object}
        if ragged:
            made = {i: (arrays[i], results[i] is not None) for i in sorted(ragged)}
            self._share_ragged(world, made, what)
        plain = [i for i in range(len(arrays)) if i not in ragged]
        world.share([arrays[i] for i in plain], [self._roots[i] for i in plain], what)
        return tuple(arrays)

    def _share_ragged(
        self, world: World, arrays: Mapping[int, tuple[Any, bool]], what: str
    ) -> None:
        """Share arrays of objects among all processes: first their sizes, then their bytes."""
        roots = [self._roots[i] for i in arrays]
        messages = [pack(x) if is_here else None for x, is_here in arrays.values()]
        sizes = [np.array([0 if m is None else m.size], np.int64) for m in messages]
        world.share(sizes, roots, what)
        full = [
            np.empty(int(size[0]), np.uint8) if m is None else m
            for m, size in zip(messages, sizes, strict=True)
        ]
        world.share(full, roots, what)
        for (array, is_here), message in zip(arrays.values(), full, strict=True):
            if not is_here:
                array[...] = unpack(message).reshape(array.shape)

    def sent(self) -> Mapping[DevicePair, int]:
        """Return the numbers of bytes that local devices have sent, by (source, target)."""
        return {} if self.comm is None else self.comm.sent()

    def measured(self) -> Mapping[Device, int]:
        """Return the number of bytes allocated on each device, which the plan predicts exactly."""
        return {device: arena.nbytes for device, arena in self.arenas.items()}


def _has_exchanges(plan: Plan) -> bool:
    return any(task.type == BOXING for task in (*plan.prologue, *plan.tasks))


def _not_shared(plan: Plan, buffer: Buffer) -> PlanError:
    return PlanError(
        f"binding the plan of job {plan.job!r}",
        found=f"{buffer.name} of {buffer.device}, in the memory of {buffer.memory}, "
        "which another process runs",
        allowed="plans whose devices share no memory, or all of their devices in one process",
        hint="compile the job with function_config.share_replicas(False)",
    )


def _copied(source: Array) -> Array:
    return source.copy()
