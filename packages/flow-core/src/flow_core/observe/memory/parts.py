"""What the memory of a job's devices holds at the peak of a step, by kind and source line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flow_core.base.alignment import aligned
from flow_core.compiler.request import Compiled
from flow_core.frontend.job.differentiate import STEP_VARIABLE
from flow_core.frontend.trace.job_build import JobBuild
from flow_core.plan import ArenaPlan, Buffer, Plan
from flow_core.sharding.topology import Device

WEIGHTS, STATES, ACTIVATIONS, GRADIENTS, WORKSPACE, INPUTS, GAPS = KINDS = (
    "weights", "optimizer states", "activations", "gradients", "workspace",
    "inputs and constants", "gaps",
)  # fmt: skip
"""The kinds of contents; gaps are the bytes of an arena that no buffer occupies at the peak."""


@dataclass(frozen=True, slots=True)
class Part:
    """A buffer of a device at the peak of a step."""

    kind: str  # one of `KINDS`
    name: str
    line: str  # the source line of the op that writes it, empty if unknown
    nbytes: int  # its size in bytes, aligned


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of one device."""

    device: str  # as text
    arena: int  # in bytes
    variables: int  # in bytes
    parts: tuple[Part, ...]  # what the memory holds at the peak of a step, the largest first

    @property
    def nbytes(self) -> int:
        """The bytes that the device needs."""
        return self.arena + self.variables

    def by_kind(self) -> dict[str, int]:
        """Return the bytes of each kind that occurs, in the order of `KINDS`."""
        sums = Counter[str]()
        for part in self.parts:
            sums[part.kind] += part.nbytes
        return {kind: sums[kind] for kind in KINDS if sums[kind]}


def device_memory(compiled: Compiled, build: JobBuild, device: Device) -> DeviceMemory:
    """Return what the memory of a device of a compiled job holds at the peak of a step.

    Args:
        build: its traced graph, from which values of the forward pass and states are told.
    """
    plan = compiled.plan
    (arena,) = (arena for arena in plan.arenas if arena.device == device)
    lines = {name: str(line) for name, line in compiled.graph.lines.items()}
    variables = [
        Part(_kind_of_variable(name, plan, build), name, lines.get(name, ""), nbytes)
        for name, buffer in _variables(plan).items()
        if buffer.device == device and (nbytes := aligned(buffer.type.nbytes))
    ]
    live = [
        Part(_kind(buffer, compiled, build), buffer.name, lines.get(buffer.op, ""), nbytes)
        for buffer, nbytes in _live(plan, arena)
    ]
    gaps = arena.nbytes - sum(part.nbytes for part in live)
    if gaps:
        live.append(Part(GAPS, "", "", gaps))
    parts = sorted((*variables, *live), key=lambda part: (-part.nbytes, part.name))
    held = sum(part.nbytes for part in variables)
    return DeviceMemory(str(device), arena.nbytes, held, tuple(parts))


def _variables(plan: Plan) -> dict[str, Buffer]:
    """Return the buffers of variables that have their own memory, by name."""
    found = {name: plan.buffers[i] for name, i in plan.variables.items()}
    return {name: buffer for name, buffer in found.items() if not buffer.home}


def _live(plan: Plan, arena: ArenaPlan) -> Iterator[tuple[Buffer, int]]:
    """Yield the buffers of an arena that are live at its peak, without views of others."""
    found = [
        (buffer.offset, -aligned(buffer.type.nbytes), buffer)
        for buffer in plan.buffers
        if buffer.memory == arena.device and buffer.offset >= 0
        and buffer.first <= arena.peak <= buffer.last
    ]  # fmt: skip
    end = 0
    for offset, size, buffer in sorted(found, key=lambda item: item[:2]):
        if offset - size > end:
            yield buffer, offset - size - max(offset, end)
            end = offset - size


def _kind_of_variable(name: str, plan: Plan, build: JobBuild) -> str:
    logical = plan.shards[name][0] if name in plan.shards else name
    if logical == STEP_VARIABLE.format(job=build.name):
        return STATES
    return WEIGHTS if not build.forward or logical in build.forward else STATES


def _kind(buffer: Buffer, compiled: Compiled, build: JobBuild) -> str:
    kinds: Mapping[str, str] = {"workspace": WORKSPACE, "feed": INPUTS, "constant": INPUTS}
    if buffer.kind in kinds:
        return kinds[buffer.kind]
    origin = compiled.graph.origin(buffer.op).logical
    traced = build.builder.ops.get(origin)
    if traced is not None and traced.type == "variable":  # a gathered copy
        return WEIGHTS
    return ACTIVATIONS if not build.forward or origin in build.forward else GRADIENTS
