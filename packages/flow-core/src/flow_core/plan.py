"""The physical plan: tasks on fixed buffers, and the actors and registers that schedule steps.

The plan is the only data structure that the compiler and the runtime share.  Converting a plan to
JSON and back preserves it exactly.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from math import prod
from typing import Any

from flow_core.base.decoding import INTEGERS, Decoder, Mismatch, parsed, shown
from flow_core.base.dtypes import BY_NAME
from flow_core.base.errors import BudgetError, GraphError, OutOfMemoryError, PlanError, nearest
from flow_core.base.shapes import Shape
from flow_core.base.thread_budget import NOT_DIVIDED, Cores
from flow_core.ir.graph import NO_ATTRS, Attrs, AttrValue, TensorType, tensor_type
from flow_core.sharding.sbp import Region
from flow_core.sharding.topology import DEVICE_FORM, Device

COLLECTIVES: Mapping[str, str] = {
    "all_reduce": "every member holds the combination of all inputs; no blocks, see `chunks`",
    "reduce_scatter": "each receiver combines its block of every partial result",
    "reduce": "one receiver combines all inputs",
    "all_gather": "each sender's block goes to every other member",
    "all_to_all": "every member may send a different block to every other member",
    "gather": "one receiver, several senders",
    "scatter": "one sender, a different block for each receiver",
    "broadcast": "one sender, the same block for every receiver",
    "send_recv": "one sender, one receiver",
    "copy_h2d": "from host memory to other devices, block by block",
    "copy_d2h": "from other devices to host memory, block by block",
    "copy_d2d": "between device types other than the host's",
    "slice": "no transfer: a part of what the device holds",
    "zero_pad": "no transfer: what the device holds, if anything, padded with neutral elements",
    "copy": "no transfer",
}
"""Collectives, and what each guarantees about the blocks of an exchange."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """A piece of memory with a type."""

    op: str  # the op whose output or workspace it holds
    output: int | None  # position of this output; None for a workspace
    kind: str  # "feed", "constant", "temp", "workspace" (all in the arena) or "variable"
    device: Device  # whose tasks use it
    offset: int  # bytes from the start of the arena; -1 for variables, which the session owns
    type: TensorType  # shape and element type
    first: int = 0  # position of the first task that uses it (only for arena kinds)
    last: int = 0  # position of the last one
    # The device whose memory holds it; None for ``device``.  Devices that share their memory store
    # a value that is equal on all of them only once.
    home: Device | None = None

    @property
    def name(self) -> str:
        """The name in reports and errors."""
        return f"{self.op}/workspace" if self.output is None else f"{self.op}:{self.output}"

    @property
    def memory(self) -> Device:
        """The device whose memory holds the buffer."""
        return self.home or self.device


@dataclass(frozen=True, slots=True)
class Task:
    """One kernel on fixed buffers (by position in `Plan.buffers`)."""

    op: str
    type: str
    attrs: Mapping[str, AttrValue]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    workspace: int | None  # the workspace buffer; None if the kernel needs none
    device: Device  # that runs it
    kernel: str  # name of the kernel, for reports
    seed: int = 0  # 64-bit seed of a random op
    seconds: float = 0.0  # predicted
    line: str = ""  # the user's line, for reports
    stream: int = 0  # position of its stream in `Plan.streams`; tasks of one stream run in order
    # Positions of tasks of other streams that must end before it starts.
    waits: tuple[int, ...] = ()
    # The reason why a driver cannot capture it as part of a step; empty if it can.
    unrecordable: str = ""


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """The memory of one device."""

    device: Device
    nbytes: int  # of the device's only allocation
    # Total bytes of the largest set of buffers that are live at the same time, the minimum for any
    # memory layout.
    lower_bound: int
    peak: int = 0  # position of the task at which this set is live
    # (bytes, buffer name, user's line) of the live set at the peak, largest first.
    owners: tuple[tuple[int, str, str], ...] = ()
    # The size in a faster order of the ops, which exceeded the limits of memory; 0 if the plan has
    # the fastest order.
    faster: int = 0

    def too_large(
        self, attempted: str, allowed: str, more: Iterable[tuple[int, str, str]] = ()
    ) -> OutOfMemoryError:
        """Return the error about insufficient memory, which lists the largest buffers.

        Args:
            attempted, allowed: the operation, and the available memory.
            more: memory needed in addition to the arena, as in ``owners``.
        """
        others = tuple(more)
        needed = self.nbytes + sum(n for n, _, __ in others)
        largest = sorted((*self.owners, *others), reverse=True)[:20]
        rows = "\n".join(f"    {n:>14,} bytes  {name}  {line}" for n, name, line in largest)
        error = OutOfMemoryError(
            f"{attempted} the memory of {self.device}",
            found=f"{needed:,} bytes, the largest at the peak:\n{rows}",
            allowed=allowed,
            hint="make the batch smaller, place ops on more devices, recompute activations "
            "(flow.experimental.scope.config(checkpointing=True)), or let each device keep a part "
            "of the optimizer's states (function_config.optimizer_placement_optimization_mode)",
        )
        error.nbytes = needed
        return error


@dataclass(frozen=True, slots=True)
class RegisterPlan:
    """A register: the slots between an actor that fills them and the actors that read them."""

    name: str  # unique
    producer: str  # actor that fills the slots
    consumers: tuple[str, ...]  # actors that must all acknowledge a slot before it is free
    slots: int
    initial: int = 0  # number of slots that are filled before the first step


@dataclass(frozen=True, slots=True)
class Transfer:
    """An entry of the ledger: the transition of a logical value from one layout to another."""

    value: str  # the logical value
    steps: tuple[str, ...]  # the primitive steps, in order: "all_gather", "slice" ..
    source: str  # the layouts (placement and SBP) as text
    target: str
    nbytes: int  # bytes sent between devices, per step of the job
    seconds: float  # predicted
    line: str = ""  # the user's line of the op that needs it
    # Bytes per pair of devices, keyed by the text "from->to".
    links: Mapping[str, int] = field(default_factory=dict)
    why: str = ""
    alternatives: tuple[str, ...] = ()  # the other possible sequences of steps, and their costs

    @property
    def collectives(self) -> frozenset[str]:
        """Names of its steps; groups of devices may perform different steps at the same time."""
        return frozenset(name for step in self.steps for name in step.split("+"))

    def __str__(self) -> str:
        way = f"{self.source} -> {self.target} by {', '.join(self.steps)}"
        return f"{self.line or 'no line'}: {self.value} {way}, {self.nbytes:,} bytes"


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """Everything a runtime needs to run a job."""

    job: str
    arenas: tuple[ArenaPlan, ...]  # per device
    buffers: tuple[Buffer, ...]
    prologue: tuple[Task, ...]  # tasks that run once, when the plan is loaded
    tasks: tuple[Task, ...]  # tasks of one step, in order
    feeds: tuple[int, ...]  # buffers that are fed: a whole parameter, or a part of it
    fetches: tuple[int, ...]  # buffers of the results
    variables: Mapping[str, int]  # the buffer of each variable, by name
    actors: tuple[str, ...] = ()  # names of the actors, in the direction of the data flow
    registers: tuple[RegisterPlan, ...] = ()  # the registers between the actors
    # For each physical variable that is a part of a logical variable, by its name: the name of the
    # logical variable, and the region of the part.
    shards: Mapping[str, tuple[str, tuple[tuple[int, int], ...]]] = field(default_factory=dict)
    # Facts about the compilation, by name, which reports show.
    notes: Mapping[str, Any] = field(default_factory=dict)
    ledger: tuple[Transfer, ...] = ()  # every transfer between devices and every change of a layout
    # Number of parts of each parameter along axis 0; in ``fed``, parts of a parameter are
    # consecutive.
    micro_batches: int = 1
    # Names of the streams; a stream runs its tasks in the order of the plan.
    streams: tuple[str, ...] = ()
    # Registers between streams, which hold the slots of each logical value between its producer and
    # its consumers, as allocated in the arenas.
    flows: tuple[RegisterPlan, ...] = ()
    # Number of threads that run the streams; a single thread runs all tasks in the order of the
    # plan.
    workers: int = 1
    # Per buffer of ``feeds``, the position of the fed array, in the order of the job's parameters
    # (and their micro-batches), and the region of the array that it holds.
    fed: tuple[tuple[int, Region], ...] = ()
    # Tasks that compute values from variables alone; they run when the plan is loaded, and again
    # before the next step after a variable was overwritten.
    derived: tuple[Task, ...] = ()
    # Number of threads of each worker for its kernels, and of the loaders.
    cores: Cores = NOT_DIVIDED
    # Kernel settings of the session and the job; see `flow_core.plugins.specs.KernelQuery`.
    settings: Mapping[str, AttrValue] = NO_ATTRS
    costs: str = ""  # the cost model of all predicted times, and its source
    # The regions of the parts of logical values, by "op:output" of the tasks that compute them;
    # only in plans whose results are checked for NaN and infinities.
    regions: Mapping[str, Region] = field(default_factory=dict)
    # The shapes of the fed arrays, or of their micro-batches, by position.
    fed_shapes: tuple[Shape, ...] = ()
    # The number of devices of each class of devices that do the same, by its first device; the plan
    # then has tasks of some devices only.  Empty in a plan of all devices.
    classes: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return the job's name and the sizes of the plan."""
        sizes = ", ".join(f"{name} {text}" for name, text in self._sizes())
        return f"<plan of job {self.job!r}: {sizes}>"

    def _repr_html_(self) -> str:
        """Return the sizes and the most expensive transfers, for notebooks."""
        from flow_core.base.formats.html_table import html_table

        ranked = sorted(self.ledger, key=lambda e: -e.seconds)
        rows = [
            (e.value, ", ".join(e.steps), f"{e.nbytes:,} bytes", e.line)
            for e in ranked[:5] if e.nbytes
        ]  # fmt: skip
        sizes = html_table(f"plan of job {self.job!r}", self._sizes())
        return sizes + (html_table("most expensive transfers", rows) if rows else "")

    def _sizes(self) -> tuple[tuple[str, str], ...]:
        return (
            ("tasks per step", f"{len(self.tasks):,}"),
            ("devices", self._devices()),
            ("bytes of arenas", f"{sum(a.nbytes for a in self.arenas):,}"),
            ("bytes across devices per step", f"{self.bytes_per_step:,}"),
            *((name, str(text)) for name, text in self.notes.items()),
        )

    def _devices(self) -> str:
        all_ = sum(self.classes.values())
        return f"{len(self.arenas):,}" + (f" of {all_:,}" if all_ else "")

    @property
    def bytes_per_step(self) -> int:
        """Predicted number of bytes sent between devices per step."""
        return sum(entry.nbytes for entry in self.ledger)

    def assert_budget(
        self, *, bytes_per_step: int | None = None, no: str | Iterable[str] = ()
    ) -> None:
        """Assert limits on the transfers of a step; for use in tests.

        Args:
            bytes_per_step: maximum number of bytes sent between devices; None for no limit.
            no: the name of a primitive step, such as "all_gather", that must not occur, or several
                names.

        Raises:
            PlanError: No primitive step has this name.
            BudgetError: The plan exceeds a limit; the error, also an `AssertionError`, lists the
                offending entries of the ledger, largest first, with the user's lines.

        >>> gather = Transfer("x:0", ("all_gather",), "gpu[0:0-1] S(0)", "gpu[0:0-1] B", 8, 1e-6)
        >>> plan = Plan("job", (), (), (), (), (), (), {}, ledger=(gather,))
        >>> plan.assert_budget(bytes_per_step=8, no="all_reduce")
        >>> plan.assert_budget(no="all_gather")
        Traceback (most recent call last):
        ...
        flow_core.base.errors.BudgetError: checking what a step of job 'job' moves
          found:   1 transfers by all_gather:
            no line: x:0 gpu[0:0-1] S(0) -> gpu[0:0-1] B by all_gather, 8 bytes
          allowed: none by all_gather
          next:    see the whole ledger: flow plan script.py:job
        """
        unwanted = {no} if isinstance(no, str) else set(no)
        self._check_names(unwanted)
        offending = [e for e in self.ledger if unwanted.intersection(e.collectives)]
        if offending:
            found_ways = (unwanted.intersection(e.collectives) for e in offending)
            ways = ", ".join(sorted(set().union(*found_ways)))
            self._over_budget(f"{len(offending)} transfers by {ways}", offending, f"none by {ways}")
        if bytes_per_step is not None and self.bytes_per_step > bytes_per_step:
            moving = [e for e in self.ledger if e.nbytes]
            found = f"{self.bytes_per_step:,} bytes in {len(moving)} transfers"
            self._over_budget(found, moving, f"{bytes_per_step:,} bytes per step")

    def _check_names(self, names: Iterable[str]) -> None:
        """Reject misspelt names, which would never match an entry."""
        for name in names:
            if name not in COLLECTIVES:
                raise PlanError(
                    f"checking what a step of job {self.job!r} moves",
                    found=f"no step is called {name!r}",
                    allowed=", ".join(COLLECTIVES),
                    hint=nearest(name, COLLECTIVES) or None,
                )

    def _over_budget(self, found: str, entries: Iterable[Transfer], allowed: str) -> None:
        lines = [f"\n    {e}" for e in sorted(entries, key=lambda e: -e.nbytes)]
        raise BudgetError(
            f"checking what a step of job {self.job!r} moves",
            found=f"{found}:{''.join(lines)}",
            allowed=allowed,
            hint="see the whole ledger: flow plan script.py:job",
        )

    def to_json(self) -> str:
        """Return the plan as JSON text."""
        return json.dumps(self.to_data())

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan that a JSON text represents.  Raises `PlanError`."""
        try:
            return decode_plan(parsed(text))
        except Mismatch as error:
            raise unreadable(error) from error

    def to_data(self) -> dict[str, Any]:
        """Return the plan as JSON-compatible data, which `from_data` reads."""
        data = asdict(self)
        tasks = (*data["prologue"], *data["derived"], *data["tasks"])
        for task in tasks:
            task["attrs"] = dict(task["attrs"])
        data["settings"] = dict(self.settings)
        for record in (*data["arenas"], *data["buffers"], *tasks):
            record["device"] = str(record["device"])
        for buffer in data["buffers"]:
            buffer["home"] = None if buffer["home"] is None else str(buffer["home"])
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Plan:
        """Return the plan that parsed JSON represents.  Raises `PlanError`."""
        try:
            return decode_plan(data)
        except Mismatch as error:
            raise unreadable(error) from error


def decode_plan(data: object) -> Plan:
    """Return the plan that parsed JSON represents.  Raises `Mismatch`."""
    plan: Plan = _DECODER.decode(Plan, data)
    check_references(plan)
    return plan


def unreadable(error: Mismatch) -> PlanError:
    """Return the error about data that is not a plan."""
    where = error.where.removeprefix(".")
    return PlanError(
        "reading a saved plan",
        found=f"{error.found} at {where}" if where else error.found,
        allowed=error.allowed,
        hint="write the plan again: flow plan script.py:job --json > plan.json",
    )


def _tensor_type(data: Any) -> TensorType:
    """Return a tensor type after checking its element type and size."""
    shape: tuple[int, ...] = _DECODER.decode(_Saved, data).shape
    name = data["dtype"].get("name")
    dtype = BY_NAME.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise Mismatch(shown(name), ", ".join(BY_NAME)).within(".dtype.name")
    if min(shape, default=0) < 0 or prod(shape) * dtype.itemsize not in INTEGERS:
        raise Mismatch(f"shape {list(shape)}", "sizes of 0 or more").within(".shape")
    return tensor_type(shape, dtype)


@dataclass(frozen=True, slots=True)
class _Saved:
    """A tensor type as `asdict` writes it."""

    shape: tuple[int, ...]
    dtype: Mapping[str, Any]


def _device(data: Any) -> Device:
    """Return the device that a text form represents."""
    try:
        return Device.parse(data)
    except GraphError:
        raise Mismatch(shown(data), DEVICE_FORM) from None


_DECODER = Decoder(
    types={TensorType: _tensor_type, Device: _device},
    fields={"Task.attrs": Attrs, "Plan.settings": Attrs},
)


def check_references(plan: Plan) -> None:
    """Check that all positions refer to existing buffers, streams and tasks; raises `Mismatch`."""
    buffers = range(len(plan.buffers))
    for name in ("feeds", "fetches"):
        _check_positions([getattr(plan, name)], buffers, f".{name}")
    _check_positions([plan.variables.values()], buffers, ".variables")
    streams = range(max(len(plan.streams), 1))
    for name in ("prologue", "derived", "tasks"):
        tasks = getattr(plan, name)
        used = [(*t.inputs, *t.outputs, *_own(t.workspace)) for t in tasks]
        _check_positions(used, buffers, f".{name}[*]")
        _check_positions([(t.stream,) for t in tasks], streams, f".{name}[*].stream")
        _check_positions([t.waits for t in tasks], range(len(tasks)), f".{name}[*].waits")


def _own(workspace: int | None) -> tuple[int, ...]:
    return () if workspace is None else (workspace,)


def _check_positions(rows: Sequence[Collection[int]], allowed: range, where: str) -> None:
    """Check all positions of some rows; an error has the row's number in place of ``*``."""
    every = [*chain.from_iterable(rows)]
    if not every or (min(every) in allowed and max(every) in allowed):
        return
    for i, row in enumerate(rows):
        for position in row:
            if position not in allowed:
                found = Mismatch(f"position {position}", f"one of {len(allowed)}")
                raise found.within(where.replace("*", str(i)))
