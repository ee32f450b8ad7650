"""The comm over NCCL: exchanges between GPUs, in device memory and on the devices' own streams.

Its launches queue work and return, and may be captured: NCCL follows the capture of the stream that
it is given.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from flow_core.base.errors import ConfigError
from flow_core.device import Launch, Scratch, Workbench, World, strided
from flow_core.exchange import DevicePair, Exchange, Meter, Steps, check_arrays, sent_by
from flow_core.plugins.specs import Available, Unavailable
from flow_core.sharding.topology import Device
from flow_dist.control.watch import WATCH
from flow_dist.control.watch import Site as Place
from flow_dist.mpi.lazy import bootstrap as join_processes
from flow_dist.mpi.lazy import place
from flow_dist.nccl.communicators import Clique, Groups
from flow_dist.nccl.guard import Guard
from flow_dist.nccl.library import NcclStatus, load_library, probe_nccl, statuses
from flow_dist.nccl.stages import Call, Site, Stage, stages_of
from flow_dist.nccl.types import check_types
from flow_dist.phases import links_from

ORDERED = "FLOW_DIST_NCCL_ORDERED"
"""The variable that is "1" where floating sums shall be added in the plan's order."""


def bootstrap() -> Available | Unavailable:
    """Whether NCCL is there, and the processes of this program, if there are several, are joined.

    The library itself is loaded by the first comm: a program on one GPU has none.

    Raises:
        LaunchError: there are several, but MPI does not join them.
    """
    found = probe_nccl()
    if isinstance(found, Unavailable) or place().alone:
        return found
    joined = join_processes()
    if isinstance(joined, Unavailable):
        return joined
    return Available(joined.count, f"{found.note}; {joined.note}")


@cache
def process_groups() -> Groups:
    """The communicators of this process, which all its plans share, and their guard."""
    joined: World | None = None
    if not place().alone:
        from flow_dist.mpi import world

        joined = world.world()
    groups = Groups(load_library(), joined)
    Guard(groups)
    return groups


def is_ordered(env: Mapping[str, str] = os.environ) -> bool:
    """Whether floating sums are added in the plan's order.

    Raises:
        ConfigError: the setting is neither 0 nor 1.
    """
    text = env.get(ORDERED, "0")
    if text not in ("0", "1", ""):
        raise ConfigError(f"setting {ORDERED}", found=repr(text), allowed="0 or 1")
    return text == "1"


class NcclComm:
    """Joins the GPUs of a plan, over all processes of the program.

    Args:
        devices: all devices; the world's ``owner`` tells the process of each.
        groups: the communicators; those of this process when None.
        ordered: whether floating sums are added in the plan's order; the setting when None.

    Attributes:
        devices: all devices that it joins.
        local: those of this process, which may be none.
    """

    name = "nccl"

    def __init__(
        self, devices: Sequence[Device], groups: Groups | None = None, ordered: bool | None = None
    ) -> None:
        self._groups = groups or process_groups()
        self._ordered = is_ordered() if ordered is None else ordered
        self.devices = tuple(devices)
        self.local = tuple(d for d in devices if self._groups.owns(d))
        self._meters: list[Meter] = []
        self._scratch: dict[tuple[Device, int], Scratch] = {}
        self._cliques: dict[int, Clique] = {}
        self._steps = Steps()
        ranks = {self._groups.owner(device) for device in self.devices}
        what = f"exchanges between {len(self.devices)} devices"
        self._place = WATCH.site("a step over NCCL", what, ranks=ranks, lane="nccl")

    def bind(
        self, exchange: Exchange, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> tuple[Launch, ...]:
        """The launches of this process's part of an exchange; none where it has no part in it.

        Raises:
            PlanError: the arrays are not what the exchange says.
            UnsupportedError: NCCL cannot move such elements.
            LaunchError: the processes' NCCL or GPUs do not fit together.
            NcclError: NCCL cannot join the devices.
        """
        check_arrays(exchange, self.local, inputs, outputs)
        check_types(exchange)
        site = self._site(exchange, inputs, outputs)
        clique = None
        if exchange.links():  # else nothing leaves a device
            clique = self._groups.of(site.devices, site.benches)
        if not site.benches:
            return ()
        stages = stages_of(exchange, site, self._ordered)
        counts = self._counts(exchange, stages, site)
        launches = tuple(self._launches(exchange, stages, site, clique, counts))
        if len(self.local) > 1:  # each device computes on a stream of its own
            return tuple([_Call(launch) for launch in launches])
        return launches

    def _site(self, exchange: Exchange, inputs: Sequence[Any], outputs: Sequence[Any]) -> Site:
        ends = zip((*exchange.senders, *exchange.receivers), (*inputs, *outputs), strict=True)
        benches = {device: array.workbench for device, array in ends if array is not None}
        given, made = (
            tuple([None if array is None else strided(array) for array in arrays])
            for arrays in (inputs, outputs)
        )
        rooms = {
            device: self._scratch.setdefault((device, exchange.stream), Scratch(bench))
            for device, bench in benches.items()
        }
        for room in rooms.values():
            room.reuse()
        devices = tuple(sorted(exchange.devices))
        return Site(devices, benches, given, made, lambda device, *row: rooms[device].row(*row))

    def _launches(
        self,
        exchange: Exchange,
        stages: Sequence[Stage],
        site: Site,
        clique: Clique | None,
        counts: Callable[[], None] | None,
    ) -> Iterator[Launch]:
        for stage in stages:
            yield from stage.before
            if stage.calls and clique is not None:
                yield self._batch(exchange, stage, site, clique, counts).launch()
                counts = None  # the first one counts for all
            yield from stage.after

    def _batch(
        self,
        exchange: Exchange,
        stage: Stage,
        site: Site,
        clique: Clique,
        counts: Callable[[], None] | None,
    ) -> _Batch:
        if exchange.name not in clique.exchanges:
            clique.exchanges.append(exchange.name)
        self._cliques[id(clique)] = clique
        return _Batch(exchange, stage.calls, site.benches, self._groups, clique, counts)

    def _counts(
        self, exchange: Exchange, stages: Sequence[Stage], site: Site
    ) -> Callable[[], None] | None:
        """What counts the bytes: those of an all-reduce are by definition those of its chunks."""
        links: Counter[DevicePair] = Counter()
        if exchange.collective == "all_reduce":
            links = links_from(exchange, self.local, site.inputs, site.outputs)
        for call in [call for stage in stages for call in stage.calls] if not links else ():
            for there, nbytes in call.gives:
                links[call.device, there] += nbytes
        if not links:
            return None
        meter = Meter(links, self._steps)
        self._meters.append(meter)
        return meter.count

    def sent(self) -> Mapping[DevicePair, int]:
        """Bytes that local devices have sent so far, by (from, to)."""
        return sent_by(self._meters)

    def before_step(self) -> None:
        """A step begins: from now on the process may wait for others.

        Raises:
            FlowError: NCCL was given up.
        """
        self._check()
        self._steps.running = True
        self._place.enter()

    def after_step(self) -> None:
        """The results of a step are there.

        Raises:
            FlowError: NCCL was given up, so that they mean nothing.
        """
        self._check()
        self._steps.done += 1
        self._steps.running = False
        self._place.leave()

    def _check(self) -> None:
        for clique in self._cliques.values():
            clique.check()


@dataclass(frozen=True, slots=True)
class _Call:
    """A launch that a driver does not take for work of its own device."""

    launch: Launch

    def __call__(self) -> None:
        self.launch()


class _Batch:
    """The calls of one stage, made as one."""

    def __init__(
        self,
        exchange: Exchange,
        calls: Sequence[Call],
        benches: Mapping[Device, Workbench],
        groups: Groups,
        clique: Clique,
        counts: Callable[[], None] | None,
    ) -> None:
        self._groups, self._clique, self._calls = groups, clique, tuple(calls)
        at = f" ({exchange.line})" if exchange.line else ""
        largest = max((*exchange.inputs, *exchange.outputs), key=lambda t: t.nbytes)
        self.name = f"{exchange.collective} {largest}"
        members = ", ".join(map(str, clique.devices))
        self._attempted = f"{self.name} in {exchange.name!r}{at}, on {members}"
        self._benches = {call.device: benches[call.device] for call in calls}
        self._counts = counts
        ranks = {groups.owner(device) for device in clique.devices}
        self._site: Place | None = WATCH.site(
            exchange.name, self.name, ranks=ranks, at=exchange.line, lane="nccl first"
        )
        library = groups.library
        self._rows = [
            (library.primitive(call.primitive, clique.ends[call.device]), call.arguments, i)
            for call in calls
            for i, device in enumerate(self._benches)
            if device == call.device
        ]

    def launch(self) -> Launch:
        """It, as work of the first of its devices."""
        first = next(iter(self._benches))
        mine = [call for call in self._calls if call.device == first]
        reads = [box for call in mine for box in call.reads]
        writes = [box for call in mine for box in call.writes]
        return self._benches[first].foreign(self.queue, self.name, reads, writes)

    def queue(self, stream: int) -> None:
        """Queues the calls, those of the first device on a stream, others where they compute.

        Raises:
            NcclError: NCCL refuses; all communicators are given up then.
        """
        benches = list(self._benches.values())
        streams = [stream, *(bench.stream() for bench in benches[1:])]
        if self._site is not None:  # connections are made, so that others are waited for
            self._site.enter()
        try:
            with statuses(self._groups.library), self._clique.collecting():
                for call, arguments, device in self._rows:
                    call(*arguments, streams[device])
        except NcclStatus as status:
            raise self._groups.failed(self._clique, self._attempted, status) from status
        if self._site is not None:
            self._site.leave()
            self._site = None
        if self._counts is not None:
            self._counts()
