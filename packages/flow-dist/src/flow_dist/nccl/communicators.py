"""Communicators: one per group of devices, made when a plan first needs it, shared by all plans.

All processes come here for each new group, in the same order, members or not: the unique id goes
round by the processes' own meetings (MPI), and so does what is compared before NCCL is asked, as
what NCCL says of such things is "invalid usage".
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from flow_core.base.errors import FlowError
from flow_core.device import Workbench, World
from flow_core.sharding.topology import Device
from flow_dist.bootstrap.membership import LaunchError
from flow_dist.control.waiting import wait
from flow_dist.control.watch import WATCH
from flow_dist.nccl.library import Library, NcclStatus, statuses, version_text

Devices = tuple[Device, ...]

CODES: Mapping[int, tuple[str, str]] = {
    1: ("a CUDA call failed", "run with NCCL_DEBUG=INFO; an earlier kernel may have failed"),
    2: ("a system call failed", "run with NCCL_DEBUG=INFO; see the network and NCCL_SOCKET_IFNAME"),
    3: ("an error inside of NCCL", "run with NCCL_DEBUG=WARN, and try another version of NCCL"),
    4: ("an argument that NCCL does not take", "report this to flow-dist, with NCCL_DEBUG=WARN"),
    5: ("a call that NCCL does not allow", "report this to flow-dist, with NCCL_DEBUG=WARN"),
    6: ("another rank has failed, or its network has", "see the message of the rank that failed"),
    8: ("another rank did not answer in time", "see the message of the rank that failed"),
}
"""NCCL's results: what they mean, and the next step."""


class NcclError(FlowError):
    """NCCL could not do its part of a program.

    Attributes:
        code: NCCL's result, -1 where another part of the program has failed.
        rank: the process that noticed.
        host: its host.
        step: the number of the running step.
    """

    def __init__(self, attempted: str, status: NcclStatus, place: Place) -> None:
        meaning, hint = CODES.get(status.code, ("an error", "run with NCCL_DEBUG=INFO"))
        self.code, self.rank, self.host, self.step = status.code, *place
        super().__init__(
            f"{attempted}, on rank {self.rank} on {self.host}, at step {self.step}",
            found=f"{meaning}: {status.text} ({status.code})",
            hint=hint,
        )


Place = tuple[int, str, int]
"""Rank, host and step."""


def place_of(world: World | None) -> Place:
    """Where this process is."""
    return (0 if world is None else world.rank, socket.gethostname(), int(WATCH.steps))


@dataclass(eq=False)
class Clique:
    """A communicator, as this process has it.

    Attributes:
        devices: the members, in the order of their ranks.
        library: NCCL.
        ends: the local devices' ends, by device.
        exchanges: names of the exchanges that use it.
        error: why it may be used no longer.
        busy: held while NCCL is called.
    """

    devices: Devices
    library: Library
    ends: dict[Device, Any] = field(default_factory=dict)
    exchanges: list[str] = field(default_factory=list)
    error: FlowError | None = None
    busy: threading.Lock = field(default_factory=threading.Lock)

    def rank(self, device: Device) -> int:
        """The rank of a member."""
        return self.devices.index(device)

    def check(self) -> None:
        """Raises why it may be used no longer."""
        if self.error is not None:
            raise self.error

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Calls in the block are queued as one when it ends."""
        with self.busy:
            self.check()
            self.library.group_start()
            try:
                yield
            except BaseException:
                _end_quietly(self.library)
                raise
            self.library.group_end()

    def poll(self) -> tuple[int, str] | None:
        """The error of something queued before, None while there is none."""
        with self.busy:
            if self.error is not None:
                return None
            for end in self.ends.values():
                code = self.library.async_error(end)
                if code not in _FINE:
                    return code, self.library.last_error(end) or "an asynchronous error"
        return None

    def abort(self, error: FlowError, patience: float = 1.0) -> None:
        """Ends what is queued.  Whoever is inside of NCCL gets a moment to leave it, no more."""
        free = self.busy.acquire(timeout=patience)
        try:
            if self.error is not None:
                return
            self.error = error
            for end in self.ends.values():
                with _ignored(self.library):
                    self.library.abort(end)
        finally:
            if free:
                self.busy.release()

    def destroy(self) -> None:
        """Frees it, when its work is done."""
        with self.busy:
            if self.error is None:
                self.error = LaunchError("using a communicator", found="one that was freed")
                for end in self.ends.values():
                    self.library.destroy(end)


_FINE = (0, 7)  # success, in progress


@contextmanager
def _ignored(library: Library) -> Iterator[None]:
    """Errors of a library that is given up anyway."""
    try:
        yield
    except library.error:
        return


def _end_quietly(library: Library) -> None:
    with _ignored(library):
        library.group_end()


class Groups:
    """All communicators of a process.

    Args:
        library: NCCL.
        world: the processes; None for one.

    Attributes:
        library: NCCL.
    """

    def __init__(self, library: Library, world: World | None) -> None:
        self.library, self._world = library, world
        self._cliques: dict[Devices, Clique] = {}

    def owner(self, device: Device) -> int:
        """The rank of the process that has a device."""
        return 0 if self._world is None else self._world.owner(device)

    def owns(self, device: Device) -> bool:
        """Whether a device is this process's."""
        return self._world is None or self._world.owner(device) == self._world.rank

    @property
    def cliques(self) -> Sequence[Clique]:
        """Those made so far."""
        return tuple(self._cliques.values())

    def of(self, devices: Devices, benches: Mapping[Device, Workbench]) -> Clique | None:
        """The communicator of some devices; None where this process has none of them.

        Args:
            devices: the members, in the order of their ranks.
            benches: of the local ones.

        Raises:
            LaunchError: the processes have different NCCL, or two devices are one.
            NcclError: NCCL cannot join them.
        """
        if devices not in self._cliques:
            self._cliques[devices] = self._made(devices, benches)
        found = self._cliques[devices]
        return found if found.ends else None

    def _made(self, devices: Devices, benches: Mapping[Device, Workbench]) -> Clique:
        what = f"joining {len(devices)} devices by NCCL: {', '.join(map(str, devices))}"
        with self._named(what):
            mine = self._card(devices, benches)
        texts = [json.dumps(mine).encode()]
        if self._world is not None:
            texts = list(self._world.gather(texts[0], what))
        cards = [json.loads(text) for text in texts]
        check_cards(what, cards)
        unique_id = next(bytes.fromhex(card["id"]) for card in cards if card["id"])
        clique = Clique(devices, self.library)
        members = {rank for rank, card in enumerate(cards) if card["places"]}
        with WATCH.site(what, "ncclCommInitRank", ranks=members, lane="meetings"):
            self._join(clique, unique_id, benches, what)
        return clique

    def _card(self, devices: Devices, benches: Mapping[Device, Workbench]) -> dict[str, Any]:
        """What a process says of itself: the one that has the first member makes the id."""
        return {
            "version": self.library.version,
            "host": socket.gethostname(),
            "places": {str(d): benches[d].place for d in devices if d in benches},
            "id": self.library.unique_id().hex() if devices[0] in benches else "",
        }

    def _join(
        self, clique: Clique, unique_id: bytes, benches: Mapping[Device, Workbench], what: str
    ) -> None:
        """Each device joins in a thread of its own: it waits for all others."""

        def join(device: Device) -> Callable[[], Any]:
            size, rank = len(clique.devices), clique.rank(device)
            return lambda: benches[device].within(lambda: self.library.join(size, unique_id, rank))

        local = [device for device in clique.devices if device in benches]
        calls = [_Background(join(device)) for device in local]
        wait(lambda: all(call.over for call in calls))
        with self._named(what):
            clique.ends.update(zip(local, [call.result() for call in calls], strict=True))

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            with statuses(self.library):
                yield
        except NcclStatus as status:
            raise NcclError(what, status, place_of(self._world)) from status

    def failed(self, clique: Clique, attempted: str, status: NcclStatus) -> NcclError:
        """The error of a call; nothing is done with NCCL after it."""
        error = NcclError(attempted, status, place_of(self._world))
        self.abort(error)
        return error

    def poll(self) -> None:
        """Looks for errors of what was queued, and gives everything up where there is one."""
        for clique in self.cliques:
            found = clique.poll()
            if found is not None:
                names = ", ".join(repr(name) for name in clique.exchanges)
                members = ", ".join(map(str, clique.devices))
                self.failed(clique, f"exchange {names} between {members}", NcclStatus(*found))
                return

    def abort(self, error: FlowError) -> None:
        """Gives up all communicators: what is queued ends, and nothing more can be queued."""
        for clique in self.cliques:
            clique.abort(error)

    def close(self) -> None:
        """Frees all communicators; in all processes, when no plan uses them any more."""
        for clique in self.cliques:
            clique.destroy()
        self._cliques.clear()


class _Background:
    """A call in a thread of its own, which the process does not wait for at its end."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._result: Any = None
        self._error: BaseException | None = None
        self.over = False
        threading.Thread(target=self._run, name="flow-nccl-join", daemon=True).start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self._error = error
        self.over = True

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result


def check_cards(what: str, cards: Sequence[Mapping[str, Any]]) -> None:
    """Refuses what NCCL would not join.

    Raises:
        LaunchError: versions differ, or two devices of the program are one of the machine.
    """
    versions = {card["version"] for card in cards if card["places"]}
    if len(versions) > 1:
        rows = (
            f"rank {rank} on {card['host']}: {version_text(card['version'])}"
            for rank, card in enumerate(cards)
        )
        raise LaunchError(
            what, found=f"different versions of NCCL: {'; '.join(rows)}", allowed="one version"
        )
    seen: dict[str, str] = {}
    for rank, card in enumerate(cards):
        for device, place in card["places"].items():
            text = f"{device} of rank {rank}"
            other = seen.setdefault(place, text)
            if other != text:
                raise LaunchError(
                    what,
                    found=f"{other} and {text} are both the GPU {place} of {card['host']}",
                    allowed="a GPU of its own for each device",
                    hint="give every process the same CUDA_VISIBLE_DEVICES, with all GPUs, "
                    "or start fewer processes per host",
                )
