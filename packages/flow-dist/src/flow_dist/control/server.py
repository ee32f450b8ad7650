"""The server of the control channel: admits the ranks, feeds the board, and gives stop orders.

The server runs in a thread of its own in the supervisor, or in rank 0 if there is no supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import math
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from flow_dist.bootstrap.membership import LaunchError
from flow_dist.bootstrap.output import report as print_report
from flow_dist.control.board import Board, Failure, Limits
from flow_dist.control.listener import MAX_UNAUTHENTICATED, Listener, allow_connections
from flow_dist.control.ranges import pack_equal
from flow_dist.control.wire import (
    TO_RANK,
    TO_SERVER,
    Framing,
    Message,
    WireError,
    field,
    pack,
    prove,
    random_token,
    verify,
)

LOG = logging.getLogger(__name__)

HANDSHAKE = 5.0
"""Seconds within which a connection must authenticate."""

_REPORT_SECONDS = 0.3
"""Seconds within which ranks can report their positions before they are stopped."""


class ControlServer:
    """The control server of a job, which admits the ranks and monitors them.

    Raises:
        LaunchError: the address is not available, or the system does not let this process open one
            file descriptor per rank.
    """

    def __init__(
        self,
        size: int,
        token: str,  # the secret of the job
        address: str = "127.0.0.1",  # the only address to listen on
        port: int = 0,  # the port to listen on; 0 selects any free port
        limits: Limits | None = None,
        # Receives reports about a job that makes no progress; if None, they are printed.
        report: Callable[[str], object] | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self._report = report or print_report
        self.address = address  # where the server listens
        self._token = token
        self._board = Board(size, self.limits, time.monotonic())
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._gathered: dict[str, dict[int, Any]] = {}
        self._doubted = False
        self._verdict: Failure | None = None
        self._concluded = threading.Event()
        allow_connections(size + MAX_UNAUTHENTICATED)
        self._loop = asyncio.new_event_loop()
        self._event = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = self._listen(port)
        self._thread = threading.Thread(target=self._run, name="flow-control", daemon=True)
        self._thread.start()

    def __enter__(self) -> ControlServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -------------------------------------------------------- from other threads

    @property
    def over(self) -> bool:
        """Whether all ranks have ended with status 0."""
        return self._board.over

    @property
    def has_open_ranks(self) -> bool:
        """Return whether a rank has neither disconnected nor said goodbye, and so may be silent."""
        return self._board.open > 0

    @property
    def has_lost_ranks(self) -> bool:
        """Whether a rank has disconnected without a goodbye."""
        ranks = dict(self._board.ranks).values()
        return any(rank.gone is not None and rank.ended is None for rank in ranks)

    @property
    def hosts(self) -> dict[int, str]:
        """The hosts of the ranks that have joined."""
        return {n: rank.host for n, rank in dict(self._board.ranks).items()}

    def wait(self, seconds: float) -> Failure | None:
        """Wait for a verdict for at most ``seconds``; return None if there is none yet."""
        self._concluded.wait(seconds)
        return self._verdict

    def stop_ranks(self, message: str, seconds: float = 2.0) -> None:
        """Tell all ranks to stop, and wait at most ``seconds`` until they have disconnected."""
        self._loop.call_soon_threadsafe(self._broadcast, {"is": "stop", "message": message})
        until = time.monotonic() + seconds
        while self.has_open_ranks and time.monotonic() < until:
            time.sleep(0.01)

    def close(self) -> None:
        """Close all connections and end the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    # --------------------------------------------------------- in its own thread

    def _listen(self, port: int) -> int:
        try:
            self._listener = Listener(self.address, port, self._serve, self._board.size)
        except OSError as error:
            self._loop.close()
            raise LaunchError(
                f"listening on {self.address}:{port} for the ranks of the job",
                found=str(error),
                allowed="an address of this host and a free port, or port 0",
            ) from error
        return self._listener.port

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._start_task(self._supervise())
        self._start_task(self._listener.run())
        try:
            self._loop.run_forever()
        finally:
            self._listener.close()
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(self._finish_tasks())
            self._loop.close()

    async def _finish_tasks(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*rest, return_exceptions=True)
        await asyncio.sleep(0)  # lets the transports close their sockets

    def _start_task(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _supervise(self) -> None:
        """Send heartbeats and check the board until the job fails."""
        rhythm = min(self.limits.beat, self.limits.settle, self.limits.silence / 4) / 2
        beaten = -math.inf
        while not self._board.check(now := time.monotonic()):
            if now - beaten >= self.limits.silence / 5:
                self._broadcast({"is": "beat"})
                beaten = now
            if self._doubted:
                self._doubted = False
                self._broadcast({"is": "where"})
            stalled = self._board.stalled(now)
            if stalled is not None:
                self._report(stalled)
            asleep = time.monotonic()
            await self._wait_for_event(rhythm)
            overslept = time.monotonic() - asleep - rhythm
            if overslept > self.limits.beat:  # this process was suspended and received nothing
                self._board.discount(overslept)
        self._broadcast({"is": "where"})
        await asyncio.sleep(_REPORT_SECONDS)
        self._conclude()
        while True:  # also tell ranks that join late
            failure = self._verdict
            self._broadcast({"is": "stop", "message": failure.message if failure else ""})
            await asyncio.sleep(rhythm)

    async def _wait_for_event(self, seconds: float) -> None:
        """Wait until an event needs attention, but at most ``seconds``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # `wait_for` may lose a cancellation
                await self._event.wait()
        self._event.clear()

    def _conclude(self) -> None:
        self._verdict = self._board.verdict(time.monotonic())
        self._concluded.set()

    def _broadcast(self, message: Message) -> None:
        data = pack(message, TO_RANK)
        for writer in list(self._writers.values()):
            if not writer.is_closing():
                writer.write(data)

    # --------------------------------------------------------------- connections

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        rank = None
        try:
            framing, rank = await self._authenticate(reader, writer)
            while data := await reader.read(1 << 16):
                for message in framing.feed(data):
                    self._dispatch(rank, message)
        except (WireError, TimeoutError) as error:
            self._listener.log_drop(peer, str(error) or "no proof in time")
        except OSError as error:
            LOG.info("connection of %s: %s", peer, error)
        except asyncio.CancelledError:  # the server closes: drop unsent data
            writer.transport.abort()
        except Exception as error:  # noqa: BLE001 - asyncio would log a traceback
            self._listener.log_drop(peer, f"{type(error).__name__}: {error}")
        finally:
            self._listener.release(writer)
            if rank is not None:
                self._disconnected(rank)
            writer.close()

    def _disconnected(self, rank: int) -> None:
        self._board.lost(rank, time.monotonic())
        self._doubted = True  # a rank that does not answer may have failed first
        self._event.set()
        self._writers.pop(rank, None)

    async def _authenticate(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Framing, int]:
        async with asyncio.timeout(HANDSHAKE):
            admitted = await self._handshake(reader, writer)
        self._listener.release(writer)
        return admitted

    async def _handshake(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Framing, int]:
        nonce, framing = random_token(), Framing(TO_SERVER)
        writer.write(pack({"is": "hello", "nonce": nonce}))
        hello = await _first(reader, Framing(4096))
        theirs = field(hello, "nonce", str)
        if not verify(self._token, "rank", hello.get("proof"), nonce, theirs):
            raise WireError("a connection", found="no proof of the job's token")
        proof = prove(self._token, "server", theirs, nonce)
        try:
            rank = self._register(hello, str(writer.get_extra_info("peername")[0]))
        except WireError as error:
            # an engine may restart a single rank while the others still end
            again = self._listener.missing == 0
            refusal = {"why": str(error.found), "allowed": str(error.allowed), "again": again}
            writer.write(pack({"is": "refused", "proof": proof, **refusal}))
            raise
        limits = {"beat": float(self.limits.beat), "silence": float(self.limits.silence)}
        writer.write(pack({"is": "welcome", "proof": proof, **limits}))
        self._writers[rank] = writer
        self._start_if_all()
        return framing, rank

    def _register(self, hello: Message, address: str) -> int:
        rank: int = field(hello, "rank", int)
        size = field(hello, "size", int)
        host = field(hello, "host", str)
        if size != self._board.size or not 0 <= rank < size or rank in self._board.ranks:
            raise WireError(
                "a rank that joins",
                found=f"rank {rank} of {size} on {host:.60}",
                allowed=f"each of the {self._board.size} ranks once",
            )
        known = address == host or ipaddress.ip_address(address).is_loopback
        name = host if known else f"{host} ({address})"
        self._board.joined(rank, name, address, time.monotonic())
        return rank

    def _start_if_all(self) -> None:
        ranks = self._board.ranks
        self._listener.missing = self._board.size - len(ranks)
        if self._listener.missing == 0:
            hosts = [ranks[n].host for n in range(self._board.size)]
            self._broadcast({"is": "start", "hosts": pack_equal(hosts)})

    def _dispatch(self, rank: int, message: Message) -> None:
        handler = self._HANDLERS.get(field(message, "is", str))
        if handler is None:
            raise WireError("a message of a rank", found=f"{message['is']!r:.40}")
        handler(self, rank, message)

    def _on_beat(self, rank: int, message: Message) -> None:
        in_doubt = self._board.in_doubt
        self._board.beat(rank, _changes(message), time.monotonic())
        if in_doubt and not self._board.in_doubt:
            self._event.set()

    def _on_bye(self, rank: int, message: Message) -> None:
        status = field(message, "exit", int)
        self._board.ended(rank, status, _changes(message), time.monotonic())
        self._writers[rank].write(pack({"is": "bye"}))

    def _on_raised(self, rank: int, message: Message) -> None:
        error = field(message, "error", str)
        self._board.raised(rank, error, _changes(message), time.monotonic())
        self._event.set()

    def _on_gather(self, rank: int, message: Message) -> None:
        key = field(message, "key", str)
        values = self._gathered.setdefault(key, {})
        values[rank] = message.get("value")
        if len(values) == self._board.size:
            del self._gathered[key]
            ordered = pack_equal(values[n] for n in range(self._board.size))
            reply = {"is": "gathered", "key": key, "values": ordered}
            try:
                self._broadcast(reply)
            except WireError as error:
                self._broadcast({**reply, "values": [], "problem": str(error)})

    _HANDLERS: dict[str, Callable[[ControlServer, int, Message], None]] = {  # noqa: RUF012 - constant
        "beat": _on_beat,
        "bye": _on_bye,
        "raised": _on_raised,
        "gather": _on_gather,
    }


async def _first(reader: asyncio.StreamReader, framing: Framing) -> Message:
    while data := await reader.read(4096):
        for message in framing.feed(data):
            return message
    raise WireError("a connection", found="its end before the first message")


def _changes(message: Message) -> Message:
    changes: Message = field({"report": {}, **message}, "report", dict)
    return changes
