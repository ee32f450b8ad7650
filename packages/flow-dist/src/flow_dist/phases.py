"""Exchanges as phases of gathers: what each target is combined from, box by box.

All that a comm must know besides its transport: which boxes a process sends to which other one, in
an order that both can derive from the exchange alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from flow_core.base.shapes import Shape
from flow_core.comm.gathers import (
    BoxRef,
    GatherPlan,
    block_gathers,
    combined_range,
    gather_plans,
    reductions,
)
from flow_core.device import Launch
from flow_core.exchange import COMBINE, Exchange, neutral

AT_ONCE = 16384
"""Bytes up to which all members of an all-reduce send all they have, and each combines it."""


FEW = 4096
"""Bytes that are copied with the interpreter locked."""


@dataclass(frozen=True, slots=True)
class Box:
    """A box of an input or output.

    Attributes:
        device: where it lies.
        key: the same for the same box, in all processes.
        shape: its shape.
        dtype: its element type, as numpy has it.
        view: the box itself, None where it is another process's.
    """

    device: str
    key: tuple[object, ...]
    shape: Shape
    dtype: Any
    view: Any = None

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return prod(self.shape) * int(self.dtype.itemsize)


@dataclass(frozen=True, slots=True)
class Gather:
    """A target box, and what is combined in it, in order; a single part is copied."""

    target: Box
    parts: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class Phases:
    """An exchange between arrays, taken apart.

    Attributes:
        name: of the exchange.
        what: its collective, element type and largest shape, for people.
        combine: the ufunc that combines two parts.
        fills: what to do before anything else.
        phases: gathers; those of one phase are independent of each other.
    """

    name: str
    what: str
    combine: Callable[..., Any]
    fills: tuple[Launch, ...]
    phases: tuple[tuple[Gather, ...], ...]

    @property
    def devices(self) -> set[str]:
        """The devices that take part."""
        return {
            box.device for gathers in self.phases for g in gathers for box in (g.target, *g.parts)
        }


Route = tuple[int, int]
"""From process to process."""


def routes(gathers: Iterable[Gather], owner: Callable[[str], int]) -> dict[Route, list[Box]]:
    """The boxes that go from process to process, each once, in an order that all agree on."""
    found: dict[Route, dict[object, Box]] = {}
    for gather in gathers:
        there = owner(gather.target.device)
        for part in gather.parts:
            here = owner(part.device)
            if here != there:
                found.setdefault((here, there), {}).setdefault(part.key, part)
    return {route: list(boxes.values()) for route, boxes in found.items()}


def phases_of(exchange: Exchange, inputs: Sequence[Any], outputs: Sequence[Any]) -> Phases:
    """The phases of an exchange between arrays, which are None in other processes."""
    combine = COMBINE[exchange.combine]
    if exchange.collective == "all_reduce":
        plans = _reduced(exchange)
    else:
        plans = (tuple(block_gathers(exchange)),)
    gathers = tuple(
        tuple(_bound(exchange, plan, inputs, outputs) for plan in phase) for phase in plans
    )
    fills = tuple(_fills(exchange, outputs))
    return Phases(exchange.name, _what(exchange), combine, fills, gathers)


def _what(exchange: Exchange) -> str:
    largest = max((*exchange.inputs, *exchange.outputs), key=lambda t: t.nbytes)
    return f"{exchange.collective} {largest}"


def _fills(exchange: Exchange, outputs: Sequence[Any]) -> Iterator[Launch]:
    for index, operation in exchange.fills:
        if outputs[index] is not None:
            value = neutral(operation, exchange.outputs[index].dtype)
            yield partial(outputs[index].fill, np.array(value, outputs[index].dtype))


def _bound(
    exchange: Exchange, plan: GatherPlan, inputs: Sequence[Any], outputs: Sequence[Any]
) -> Gather:
    """Bind a gather plan to arrays."""
    target, *parts = (_box(exchange, ref, inputs, outputs) for ref in (plan.target, *plan.parts))
    return Gather(target, tuple(parts))


def _box(exchange: Exchange, ref: BoxRef, inputs: Sequence[Any], outputs: Sequence[Any]) -> Box:
    array = ref.array(inputs, outputs)
    types = exchange.outputs if ref.is_output else exchange.inputs
    view = None if array is None else ref.view(array)
    return Box(ref.device(exchange), (ref,), ref.shape, types[ref.index].dtype.numpy, view)


def _reduced(exchange: Exchange) -> tuple[tuple[GatherPlan, ...], ...]:
    """Each device combines its chunk, in rank order, and gives it to all others.

    Few bytes go to everybody at once: twice the work in half the time.
    """
    p = len(exchange.group)
    if sum(t.nbytes for t in exchange.inputs) <= AT_ONCE:
        members = [(m, exchange.inputs[m * p].size) for m in range(len(exchange.member_names))]
        whole = [(r, m, size) for r in range(p) for m, size in members if size]
        return (tuple(combined_range(exchange, m, rank, 0, size) for rank, m, size in whole),)
    chunks = list(reductions(exchange))
    copies = tuple(copy for chunk in chunks for copy in chunk.copies)
    return tuple(chunk.combine for chunk in chunks), copies


def links_from(
    exchange: Exchange, local: Sequence[str], inputs: Sequence[Any], outputs: Sequence[Any]
) -> Counter[tuple[str, str]]:
    """Bytes per launch that local devices give others, by (from, to), of the bound arrays.

    Those of an all-reduce are by definition those of its chunks: out and back.
    """
    found: Counter[tuple[str, str]] = Counter()
    for gather in gather_plans(exchange):
        there = gather.target.device(exchange)
        for part in gather.parts:
            here = part.device(exchange)
            if here in local and here != there:
                found[here, there] += part.view(part.array(inputs, outputs)).nbytes
    return found


def copied(target: Any, source: Any) -> Launch:
    """A launch that copies an array; a few bytes in one piece without numpy's preparations."""
    arrays = (target, source)
    is_plain = all(a.flags.c_contiguous and not a.dtype.hasobject for a in arrays)
    if target.nbytes > FEW or not is_plain:
        return partial(np.copyto, target, source)
    one, other = (array.reshape(-1).view(np.uint8).data for array in arrays)
    return partial(one.__setitem__, slice(None), other)


def in_turn(launches: Iterable[Launch]) -> Launch:
    """One launch for some: a single one is itself."""
    steps = tuple(launches)
    if len(steps) == 1:
        return steps[0]

    def launch() -> None:
        for step in steps:
            step()

    return launch


def launches_of(combine: Callable[..., Any], target: Any, parts: Sequence[Any]) -> Iterator[Launch]:
    """Combines arrays in their order, the first two at once; a single one is copied.

    The target may be one of the parts.
    """
    if len(parts) == 1:
        yield copied(target, parts[0])
        return
    late = any(is_same(target, part) for part in parts[2:])  # read after the target is written
    sums = np.empty(target.shape, target.dtype) if late else target
    yield partial(combine, parts[0], parts[1], sums)  # by position: `out` by name takes longer
    for part in parts[2:-1]:
        yield partial(combine, sums, part, sums)
    if len(parts) > 2:
        yield partial(combine, sums, parts[-1], target)


def is_same(one: Any, other: Any) -> bool:
    """Whether two arrays of the same shape begin at the same place in memory."""
    ends = (array.__array_interface__["data"][0] for array in (one, other))
    return len(set(ends)) == 1


def apart(
    exchange: Exchange, inputs: Sequence[Any], outputs: Sequence[Any]
) -> tuple[tuple[Any, ...], list[Launch]]:
    """Inputs that no output overwrites while another device of this process needs them.

    That can be where each device combines all it gets, and this process has several of them.

    Returns:
        The inputs, some as copies, and launches that make these.
    """
    is_small = sum(t.nbytes for t in exchange.inputs) <= AT_ONCE
    local = {d for d, x in zip(exchange.senders, inputs, strict=True) if x is not None}
    if exchange.collective != "all_reduce" or not is_small or len(local) < 2:
        return tuple(inputs), []
    found = list(inputs)
    copies: list[Launch] = []
    for i, (given, made) in enumerate(zip(inputs, outputs, strict=True)):
        if given is not None and is_same(given, made):
            found[i] = np.empty_like(given)
            copies.append(partial(np.copyto, found[i], given))
    return tuple(found), copies
