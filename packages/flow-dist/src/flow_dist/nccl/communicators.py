"""NCCL communicators: one per group of devices, created on first use and shared by all plans.

The processes that own a member take part in the creation of a communicator, all in the same order:
they tell each other the unique id.  Thereby they first compare versions and GPUs, because NCCL
would report mismatches only as "invalid usage".
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from flow_core.authoring.backends import DeviceCopier, World
from flow_core.authoring.specs import Device
from flow_core.base.errors import FlowError
from flow_dist.bootstrap.membership import LaunchError
from flow_dist.control.waiting import wait
from flow_dist.control.watch import WATCH
from flow_dist.nccl.library import Library, NcclStatus, statuses, version_text

Devices = tuple[Device, ...]

CODES: Mapping[int, tuple[str, str]] = {
    1: ("a CUDA call failed", "run with NCCL_DEBUG=INFO; an earlier kernel may have failed"),
    2: ("a system call failed", "run with NCCL_DEBUG=INFO; see the network and NCCL_SOCKET_IFNAME"),
    3: ("an error inside of NCCL", "run with NCCL_DEBUG=WARN, and try another version of NCCL"),
    4: ("an argument that NCCL rejects", "report this to flow-dist, with NCCL_DEBUG=WARN"),
    5: ("a call that NCCL rejects", "report this to flow-dist, with NCCL_DEBUG=WARN"),
    6: ("another rank or its network has failed", "see the message of the rank that failed"),
    8: ("another rank did not respond in time", "see the message of the rank that failed"),
}
"""The meaning of each NCCL result, and the next step for the user."""


class NcclError(FlowError):
    """An NCCL call, or an operation that it enqueued, has failed.

    Attributes:
        code: NCCL's result; -1 if another part of the program has failed.
        rank: rank of the process that noticed the failure.
        host: host of that process.
        step: number of the running step.
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
"""The rank, host and step of a process."""


def position_of(world: World | None) -> Place:
    """Return the position of this process."""
    return (0 if world is None else world.rank, socket.gethostname(), int(WATCH.steps))


@dataclass(eq=False)
class Communicator:
    """One communicator, with the handles of this process."""

    devices: Devices  # the members, in rank order
    library: Library
    ends: dict[Device, Any] = field(default_factory=dict)  # handles of the local devices
    # Names of the exchanges that use the communicator.
    exchanges: list[str] = field(default_factory=list)
    error: FlowError | None = None  # reason why the communicator cannot be used any more, else None
    # Whether the reason is that the communicator was freed, which is no failure.
    freed: bool = False
    # A lock that is held during NCCL calls.
    busy: threading.Lock = field(default_factory=threading.Lock)

    @property
    def failure(self) -> FlowError | None:
        """The error, unless it says that the communicator was freed."""
        error = self.error  # read first, because another thread sets it last
        return None if self.freed else error

    def rank(self, device: Device) -> int:
        return self.devices.index(device)

    def check(self) -> None:
        """Raise the error after which the communicator cannot be used, if there is one."""
        if self.error is not None:
            raise self.error

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Group the calls of a ``with`` block, which are enqueued together when the block ends."""
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
        """Return the asynchronous error of enqueued work, if there is one.

        Return None while another thread is inside of NCCL: that may be for as long as another
        rank does not come, and the thread that polls is the one that would abort the call.
        """
        if not self.busy.acquire(blocking=False):
            return None
        try:
            if self.error is not None:
                return None
            for end in self.ends.values():
                code = self.library.async_error(end)
                if code not in _FINE:
                    return code, self.library.last_error(end) or "an asynchronous error"
        finally:
            self.busy.release()
        return None

    def abort(self, error: FlowError, patience: float = 1.0) -> None:
        """Abort enqueued work; wait at most ``patience`` seconds for a thread inside of NCCL."""
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
        """Free the communicator after its work is done."""
        with self.busy:
            if self.error is None:
                self.freed = True
                self.error = LaunchError("using a communicator", found="one that was freed")
                for end in self.ends.values():
                    self.library.destroy(end)


_FINE = (0, 7)  # success, in progress


@contextmanager
def _ignored(library: Library) -> Iterator[None]:
    """Ignore errors of communicators that are being aborted."""
    try:
        yield
    except library.error:
        return


def _end_quietly(library: Library) -> None:
    with _ignored(library):
        library.group_end()


class Processes(World, Protocol):
    """The processes of a program, some of which can gather texts."""

    def gather_among(self, ranks: Collection[int], text: bytes, what: str) -> tuple[bytes, ...]:
        """All-gather a text over some processes, in rank order; each of them calls this."""


class Communicators:
    """All communicators of a process.

    Args:
        world: all processes; None if there is only one.
    """

    def __init__(self, library: Library, world: Processes | None) -> None:
        self.library, self._world = library, world
        self._communicators: dict[Devices, Communicator] = {}

    def owner(self, device: Device) -> int:
        return 0 if self._world is None else self._world.owner(device)

    def owns(self, device: Device) -> bool:
        return self._world is None or self._world.owner(device) == self._world.rank

    @property
    def communicators(self) -> Sequence[Communicator]:
        """The communicators created so far."""
        return tuple(self._communicators.values())

    def get(self, devices: Devices, copiers: Mapping[Device, DeviceCopier]) -> Communicator:
        """Return the communicator for some devices, of which this process owns one.

        Args:
            devices: the members, in rank order.
            copiers: copiers of the local members.

        Raises:
            LaunchError: NCCL versions differ, or two devices are the same GPU.
            NcclError: NCCL cannot connect the devices.
        """
        if devices not in self._communicators:
            self._communicators[devices] = self._create(devices, copiers)
        return self._communicators[devices]

    def _create(self, devices: Devices, copiers: Mapping[Device, DeviceCopier]) -> Communicator:
        what = f"connecting {len(devices)} devices by NCCL: {', '.join(map(str, devices))}"
        with self._named(what):
            mine = self._describe(devices, copiers)
        texts: Sequence[bytes] = [json.dumps(mine).encode()]
        members = sorted({self.owner(device) for device in devices})
        if self._world is not None:
            texts = self._world.gather_among(members, texts[0], what)
        descriptions = {rank: json.loads(text) for rank, text in zip(members, texts, strict=True)}
        check_members(what, descriptions)
        unique_id = bytes.fromhex(descriptions[self.owner(devices[0])]["id"])
        communicator = Communicator(devices, self.library)
        with WATCH.site(what, "ncclCommInitRank", ranks=members, lane="collectives"):
            self._join(communicator, unique_id, copiers, what)
        return communicator

    def _describe(self, devices: Devices, copiers: Mapping[Device, DeviceCopier]) -> dict[str, Any]:
        """Describe this process for the others; the owner of the first member adds the id."""
        return {
            "version": self.library.version,
            "host": socket.gethostname(),
            "places": {str(d): copiers[d].place for d in devices if d in copiers},
            "id": self.library.unique_id().hex() if devices[0] in copiers else "",
        }

    def _join(
        self,
        communicator: Communicator,
        unique_id: bytes,
        copiers: Mapping[Device, DeviceCopier],
        what: str,
    ) -> None:
        """Initialize every local device in its own thread, as each device waits for all others."""

        def join(device: Device) -> Callable[[], Any]:
            size, rank = len(communicator.devices), communicator.rank(device)
            return lambda: copiers[device].within(lambda: self.library.join(size, unique_id, rank))

        local = [device for device in communicator.devices if device in copiers]
        calls = [_Background(join(device)) for device in local]
        wait(lambda: all(call.over for call in calls))
        with self._named(what):
            communicator.ends.update(zip(local, [call.result() for call in calls], strict=True))

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            with statuses(self.library):
                yield
        except NcclStatus as status:
            raise NcclError(what, status, position_of(self._world)) from status

    def failed(self, communicator: Communicator, attempted: str, status: NcclStatus) -> NcclError:
        """Abort all communicators, and return the error that describes a failed call."""
        error = NcclError(attempted, status, position_of(self._world))
        self.abort(error)
        return error

    def poll(self) -> None:
        """Abort all communicators if enqueued work has failed."""
        for communicator in self.communicators:
            status = communicator.poll()
            if status is not None:
                names = ", ".join(repr(name) for name in communicator.exchanges)
                members = ", ".join(map(str, communicator.devices))
                self.failed(
                    communicator, f"exchange {names} between {members}", NcclStatus(*status)
                )
                return

    def abort(self, error: FlowError) -> None:
        """Abort all communicators: enqueued work ends, and no more can be enqueued."""
        for communicator in self.communicators:
            communicator.abort(error)

    def close(self) -> None:
        """Free all communicators; called in all processes when no plan uses them any more."""
        for communicator in self.communicators:
            communicator.destroy()
        self._communicators.clear()


class _Background:
    """A call in a daemon thread, so that the call does not delay the end of the process."""

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


def check_members(what: str, descriptions: Mapping[int, Mapping[str, Any]]) -> None:
    """Reject members that NCCL would not connect.

    Args:
        descriptions: the description of each process that owns a member, by rank.

    Raises:
        LaunchError: the versions of NCCL differ, or two devices of the program are the same GPU.
    """
    versions = {process["version"] for process in descriptions.values()}
    if len(versions) > 1:
        rows = (
            f"rank {rank} on {process['host']}: {version_text(process['version'])}"
            for rank, process in descriptions.items()
        )
        raise LaunchError(
            what, found=f"different versions of NCCL: {'; '.join(rows)}", allowed="one version"
        )
    owners: dict[str, str] = {}
    for rank, process in descriptions.items():
        for device, place in process["places"].items():
            text = f"{device} of rank {rank}"
            other = owners.setdefault(place, text)
            if other != text:
                raise LaunchError(
                    what,
                    found=f"{other} and {text} are both the GPU {place} of {process['host']}",
                    allowed="a GPU of its own for each device",
                    hint="set CUDA_VISIBLE_DEVICES to all GPUs of the host in every process, "
                    "or start fewer processes per host",
                )
