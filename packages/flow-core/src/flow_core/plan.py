"""The physical plan: tasks on fixed buffers, and the actors and registers that move steps.

It is all that compiler and runtime share; it is plain data and goes through JSON unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from flow_core.dtypes import as_dtype
from flow_core.errors import PlanError
from flow_core.ir import Attrs, AttrValue, TensorType, tensor_type


@dataclass(frozen=True, slots=True)
class Buffer:
    """A piece of memory with a type.

    Attributes:
        name: the value (or workspace) it holds.
        kind: "feed", "constant", "temp", "workspace" (all in the arena) or "variable".
        device: text form of its device.
        offset: bytes from the start of the arena; -1 for variables, which the session owns.
        type: shape and element type.
        first, last: positions of the first and last task that need it (arena kinds).
    """

    name: str
    kind: str
    device: str
    offset: int
    type: TensorType
    first: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """One kernel on fixed buffers (by position in `Plan.buffers`).

    Attributes:
        op: name of the op.
        type: type of the op.
        attrs: its attributes.
        inputs, outputs: buffers.
        workspace: buffer, None when the kernel needs none.
        device: text form of its device.
        kernel: name of the kernel, for people.
        seed: 64-bit seed of a random op.
        line: the user's line, for people.
    """

    op: str
    type: str
    attrs: Mapping[str, AttrValue]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    workspace: int | None
    device: str
    kernel: str
    seed: int = 0
    line: str = ""


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """The memory of one device.

    Attributes:
        device: text form.
        nbytes: size of the one allocation.
        lower_bound: largest live set of bytes, which no layout can undercut.
        peak: position of the task at which it is live.
        owners: (bytes, buffer name, user's line) of the live set at the peak, largest first.
    """

    device: str
    nbytes: int
    lower_bound: int
    peak: int = 0
    owners: tuple[tuple[int, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RegisterPlan:
    """Slots between actors.

    Attributes:
        name: unique name.
        producer: actor that fills the slots.
        consumers: actors that must all acknowledge a slot before it is free.
        slots: how many there are.
        initial: how many are already filled before the first step.
    """

    name: str
    producer: str
    consumers: tuple[str, ...]
    slots: int
    initial: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a runtime needs to run a job.

    Attributes:
        job: the job's name.
        arenas: memory per device.
        buffers: all buffers.
        prologue: tasks that run once, when the plan is loaded.
        tasks: tasks of one step, in order.
        feeds: buffers of the job's parameters, in order.
        fetches: buffers of the results.
        variables: buffer of each variable, by name.
        shards: per physical variable that is part of a logical one: its name and region.
        actors: names, in the order of the flow of data.
        registers: between the actors.
    """

    job: str
    arenas: tuple[ArenaPlan, ...]
    buffers: tuple[Buffer, ...]
    prologue: tuple[Task, ...]
    tasks: tuple[Task, ...]
    feeds: tuple[int, ...]
    fetches: tuple[int, ...]
    variables: Mapping[str, int]
    actors: tuple[str, ...] = ()
    registers: tuple[RegisterPlan, ...] = ()
    shards: Mapping[str, tuple[str, tuple[tuple[int, int], ...]]] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """The plan as JSON text."""
        return json.dumps(asdict(self), default=_encode)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan of a JSON text."""
        return _decode(json.loads(text))


def _encode(value: object) -> object:
    if isinstance(value, Attrs):
        return dict(value)
    raise TypeError(f"{type(value).__name__} in a plan")


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _type(data: Mapping[str, Any]) -> TensorType:
    return tensor_type(tuple(data["shape"]), as_dtype(data["dtype"]["name"]))


def _task(data: Mapping[str, Any]) -> Task:
    attrs = Attrs({k: _frozen(v) for k, v in data["attrs"].items()})
    return Task(**{**{k: _frozen(v) for k, v in data.items()}, "attrs": attrs})


def _decode(data: Mapping[str, Any]) -> Plan:
    return Plan(
        job=data["job"],
        arenas=tuple(ArenaPlan(**{k: _frozen(v) for k, v in a.items()}) for a in data["arenas"]),
        buffers=tuple(Buffer(**{**b, "type": _type(b["type"])}) for b in data["buffers"]),
        prologue=tuple(map(_task, data["prologue"])),
        tasks=tuple(map(_task, data["tasks"])),
        feeds=tuple(data["feeds"]),
        fetches=tuple(data["fetches"]),
        variables=data["variables"],
        actors=tuple(data["actors"]),
        registers=tuple(
            RegisterPlan(**{k: _frozen(v) for k, v in r.items()}) for r in data["registers"]
        ),
        shards={k: _frozen(v) for k, v in data["shards"].items()},
        notes=data["notes"],
    )


def check_no_deadlock(registers: Iterable[RegisterPlan]) -> None:
    """Refuses registers that can deadlock: a cycle of waits in which nobody has a token.

    An actor waits for a filled slot of each register it reads and for a free slot of each one
    it fills.  Seen as a marked graph (Commoner et al., 1971), steps flow for ever if and only
    if every cycle of waits holds a token: a slot filled or free at the start.
    """
    waits: dict[str, list[tuple[str, str]]] = {}
    for r in registers:
        for consumer in r.consumers:
            if r.initial == 0:
                waits.setdefault(consumer, []).append((r.producer, r.name))
            if r.slots - r.initial <= 0:
                waits.setdefault(r.producer, []).append((consumer, r.name))
    cycle = _find_cycle(waits)
    if cycle:
        raise PlanError(
            "checking a plan for deadlock",
            found=" -> ".join(cycle),
            allowed="registers in which every cycle of waits has a filled or a free slot",
            hint="give one of these registers another slot",
        )


def _find_cycle(waits: Mapping[str, list[tuple[str, str]]]) -> list[str]:
    done: set[str] = set()
    for start in waits:
        path: list[tuple[str, str]] = [(start, "")]
        stack = [iter(waits[start])]
        on_path = {start}
        while stack:
            step = next(stack[-1], None)
            if step is None:
                stack.pop()
                name, _ = path.pop()
                on_path.discard(name)
                done.add(name)
            elif step[0] in on_path:
                names = [p[0] for p in path]
                loop = [*path[names.index(step[0]) + 1 :], step]
                return [step[0], *(f"[register {reg}] {actor}" for actor, reg in loop)]
            elif step[0] not in done:
                path.append(step)
                on_path.add(step[0])
                stack.append(iter(waits.get(step[0], ())))
    return []
