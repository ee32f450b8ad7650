"""The communicator (comm) over NCCL: exchanges between GPUs in device memory, on device streams.

The launches of the comm enqueue work and return.  They can be captured in CUDA graphs, because NCCL
takes part in the capture of the stream that it is given.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from flow_core.authoring.backends import (
    Comm,
    DeviceCopier,
    DevicePair,
    Exchange,
    Launch,
    Meter,
    Scratch,
    Steps,
    check_arrays,
    present,
    sent_by,
    strided,
)
from flow_core.authoring.specs import Available, Device, Devices, Unavailable
from flow_core.base.errors import ConfigError
from flow_dist.control.watch import WATCH
from flow_dist.control.watch import Site as Place
from flow_dist.mpi.lazy import bootstrap as join_processes
from flow_dist.mpi.lazy import membership
from flow_dist.nccl.communicators import Communicator, Communicators, Processes
from flow_dist.nccl.guard import Guard
from flow_dist.nccl.library import NcclStatus, load_library, probe_nccl, statuses
from flow_dist.nccl.stages import Call, Site, Stage, stages_of
from flow_dist.nccl.types import check_types
from flow_dist.phases import link_bytes, what_of

ORDERED = "FLOW_DIST_NCCL_ORDERED"
"""The environment variable that is "1" if floating-point sums are added in the plan's order."""


def bootstrap() -> Available | Unavailable:
    """Probe NCCL, and join the processes of this program if there are several.

    The first comm loads the library, because a program on one GPU needs neither of them.  Raises
    `LaunchError` if there are several processes, but MPI cannot join them.
    """
    probed = probe_nccl()
    if isinstance(probed, Unavailable) or membership().alone:
        return probed
    joined = join_processes()
    if isinstance(joined, Unavailable):
        return joined
    return Available(joined.count, f"{probed.note}; {joined.note}")


@cache
def process_communicators() -> Communicators:
    """Return the communicators of this process, shared by all plans, and start their guard."""
    joined: Processes | None = None
    if not membership().alone:
        from flow_dist.mpi import world

        joined = world.world()
    groups = Communicators(load_library(), joined)
    Guard(groups)
    return groups


def is_ordered(env: Mapping[str, str] = os.environ) -> bool:
    """Return whether floating-point sums are added in the plan's order.

    Raises `ConfigError` if the setting is neither 0 nor 1.
    """
    text = env.get(ORDERED, "0")
    if text not in ("0", "1", ""):
        raise ConfigError(f"setting {ORDERED}", found=repr(text), allowed="0 or 1")
    return text == "1"


class NcclComm(Comm):
    """The connection of a plan's GPUs over all processes of the program."""

    name = "nccl"

    def __init__(
        self,
        devices: Sequence[Device],  # all devices; the world's ``owner`` maps each device to a rank
        # The NCCL communicators; by default those that all plans of this process share.
        groups: Communicators | None = None,
        # Whether floating-point sums are added in the plan's order; if None, `ORDERED` decides.
        ordered: bool | None = None,
    ) -> None:
        self._groups = groups or process_communicators()
        self._ordered = is_ordered() if ordered is None else ordered
        self.devices = tuple(devices)  # all devices that the comm connects
        # The devices of this process, possibly none.
        self.local = tuple(d for d in devices if self._groups.owns(d))
        self._meters: list[Meter] = []
        self._scratch: dict[tuple[Device, int], Scratch] = {}
        self._communicators: dict[int, Communicator] = {}
        self._steps = Steps()
        ranks = {self._groups.owner(device) for device in self.devices}
        what = f"exchanges between {len(self.devices)} devices"
        self._place = WATCH.site("a step over NCCL", what, ranks=ranks, lane="nccl")

    def bind(
        self, exchange: Exchange, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> tuple[Launch, ...]:
        """Return this process's launches of an exchange; none if the process does not take part.

        Raises:
            PlanError: the arrays do not match the exchange.
            UnsupportedError: NCCL cannot transfer the elements.
            LaunchError: the processes' NCCL versions or GPUs are incompatible.
            NcclError: NCCL cannot connect the devices.
        """
        check_arrays(exchange, self.local, inputs, outputs)
        check_types(exchange)
        site = self._site(exchange, inputs, outputs)
        if not site.copiers:
            return ()
        communicator = None
        # otherwise, no data leaves a device; exchanges that are described always transfer data
        if exchange.local is not None or next(exchange.moves(), None):
            communicator = self._groups.get(site.devices, site.copiers)
        stages = stages_of(exchange, site, self._ordered)
        counts = self._counts(exchange, stages, site)
        launches = tuple(self._launches(exchange, stages, site, communicator, counts))
        if len(self.local) > 1:  # every device computes on its own stream
            return tuple([_Call(launch) for launch in launches])
        return launches

    def _site(self, exchange: Exchange, inputs: Sequence[Any], outputs: Sequence[Any]) -> Site:
        ends = (exchange.senders, inputs), (exchange.receivers, outputs)
        copiers = {
            devices[i]: array.copier for devices, arrays in ends for i, array in present(arrays)
        }
        sources, targets = ({i: strided(array) for i, array in present(side)} for _, side in ends)
        scratch = {
            device: self._scratch.setdefault((device, exchange.stream), Scratch(copier.scratch))
            for device, copier in copiers.items()
        }
        for row in scratch.values():
            row.reuse()
        return Site(
            _sorted(exchange.devices),
            copiers,
            sources,
            targets,
            lambda device, *row: scratch[device].row(*row),
        )

    def _launches(
        self,
        exchange: Exchange,
        stages: Sequence[Stage],
        site: Site,
        communicator: Communicator | None,
        counts: Callable[[], None] | None,
    ) -> Iterator[Launch]:
        for stage in stages:
            yield from stage.before
            if stage.calls and communicator is not None:
                yield self._batch(exchange, stage, site, communicator, counts).launch()
                counts = None  # once per exchange
            yield from stage.after

    def _batch(
        self,
        exchange: Exchange,
        stage: Stage,
        site: Site,
        communicator: Communicator,
        counts: Callable[[], None] | None,
    ) -> _Batch:
        if exchange.name not in communicator.exchanges:
            communicator.exchanges.append(exchange.name)
        self._communicators[id(communicator)] = communicator
        return _Batch(exchange, stage.calls, site.copiers, self._groups, communicator, counts)

    def _counts(
        self, exchange: Exchange, stages: Sequence[Stage], site: Site
    ) -> Callable[[], None] | None:
        """Return a launch that counts the bytes sent; for an all-reduce, those of its chunks."""
        links: Counter[DevicePair] = Counter()
        if exchange.collective == "all_reduce":
            links = link_bytes(exchange, self.local)
        for call in [call for stage in stages for call in stage.calls] if not links else ():
            for receiver, nbytes in call.sends:
                links[call.device, receiver] += nbytes
        if not links:
            return None
        meter = Meter(links, self._steps)
        self._meters.append(meter)
        return meter.count

    def sent(self) -> Mapping[DevicePair, int]:
        """Return the bytes that local devices have sent so far, keyed by (sender, receiver)."""
        return sent_by(self._meters)

    def before_step(self) -> None:
        """Mark the start of a step, in which the process may wait for others.

        Raises `FlowError` if the communicators were aborted.
        """
        self._check()
        self._steps.running = True
        self._place.enter()

    def after_step(self) -> None:
        """Mark the end of a step, once its results are complete.

        Raises `FlowError` if the communicators were aborted, so the results are invalid.
        """
        self._check()
        self._steps.done += 1
        self._steps.running = False
        self._place.leave()

    def _check(self) -> None:
        for communicator in self._communicators.values():
            communicator.check()


@lru_cache(maxsize=256)
def _sorted(devices: tuple[Device, ...]) -> Devices:
    return Devices(sorted(devices))


@dataclass(frozen=True, slots=True)
class _Call:
    """A launch that drivers do not attribute to a device."""

    launch: Launch

    def __call__(self) -> None:
        self.launch()


class _Batch:
    """The NCCL calls of one stage, which form one NCCL group."""

    def __init__(
        self,
        exchange: Exchange,
        calls: Sequence[Call],
        copiers: Mapping[Device, DeviceCopier],
        groups: Communicators,
        communicator: Communicator,
        counts: Callable[[], None] | None,
    ) -> None:
        self._groups, self._communicator, self._calls = groups, communicator, tuple(calls)
        at = f" ({exchange.line})" if exchange.line else ""
        self.name = what_of(exchange)
        self._attempted = (
            f"{self.name} in {exchange.name!r}{at}, on {', '.join(map(str, communicator.devices))}"
        )
        self._copiers = {call.device: copiers[call.device] for call in calls}
        self._counts = counts
        ranks = {groups.owner(device) for device in communicator.devices}
        self._site: Place | None = WATCH.site(
            exchange.name, self.name, ranks=ranks, at=exchange.line, lane="nccl first"
        )
        library = groups.library
        self._rows = [
            (library.primitive(call.primitive, communicator.ends[call.device]), call.arguments, i)
            for call in calls
            for i, device in enumerate(self._copiers)
            if device == call.device
        ]

    def launch(self) -> Launch:
        """Return a launch of the batch, attributed to the first device."""
        first = next(iter(self._copiers))
        mine = [call for call in self._calls if call.device == first]
        reads = [box for call in mine for box in call.reads]
        writes = [box for call in mine for box in call.writes]
        return self._copiers[first].foreign(self.queue, self.name, reads, writes)

    def queue(self, stream: int) -> None:
        """Enqueue the first device's calls on the given stream, and others on their own streams.

        Raises `NcclError` if a call failed; all communicators are aborted.
        """
        copiers = list(self._copiers.values())
        streams = [stream, *(copier.stream() for copier in copiers[1:])]
        if self._site is not None:  # the first call connects, and so waits for other ranks
            self._site.enter()
        try:
            with statuses(self._groups.library), self._communicator.collecting():
                for call, arguments, device in self._rows:
                    call(*arguments, streams[device])
        except NcclStatus as status:
            raise self._groups.failed(self._communicator, self._attempted, status) from status
        if self._site is not None:
            self._site.leave()
            self._site = None
        if self._counts is not None:
            self._counts()
