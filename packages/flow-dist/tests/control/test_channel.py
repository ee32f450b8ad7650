"""Server and clients over sockets: joining, foreign connections, gathering, and failures."""

import asyncio
import contextlib
import json
import logging
import queue
import random
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import processes
import pytest

from flow_dist.bootstrap.membership import LaunchError, Membership
from flow_dist.control.board import Limits
from flow_dist.control.client import ControlClient, JobStoppedError, describe_error
from flow_dist.control.listener import LOG_LINES, MAX_UNAUTHENTICATED
from flow_dist.control.server import ControlServer
from flow_dist.control.watch import Watch
from flow_dist.control.wire import TO_RANK, Framing, WireError, pack

FAST = Limits(beat=0.05, silence=1.0, exchange=3.0, start=5.0, settle=0.2)


@dataclass
class Job:
    server: ControlServer
    clients: list[ControlClient] = field(default_factory=list)
    watches: list[Watch] = field(default_factory=list)
    stops: "queue.Queue[tuple[int, str]]" = field(default_factory=queue.Queue)

    def join(self, rank: int, size: int, token: str = "secret") -> ControlClient:
        self.watches.append(Watch())
        client = ControlClient(
            Membership(rank, size, rank, size, f"host{rank}"),
            "127.0.0.1",
            self.server.port,
            token,
            watch=self.watches[-1],
            stop=lambda message: self.stops.put((rank, message)),
            patience=2,
        )
        self.clients.append(client)
        return client

    def stopped(self) -> dict[int, str]:
        return dict(
            self.stops.get(timeout=processes.scaled(60)) for _ in range(len(self.clients) - 1)
        )


@contextlib.contextmanager
def job(size: int, limits: Limits = FAST, join: bool = True) -> Iterator[Job]:
    made = Job(ControlServer(size, "secret", limits=limits))
    try:
        if join:
            for rank in range(size):
                made.join(rank, size)
        yield made
    finally:
        for client in made.clients:
            client.close()
        made.server.close()


@pytest.mark.slow
def test_all_come_talk_and_go() -> None:
    with job(3) as made:
        for client in made.clients:
            assert client.start(5) == ("host0", "host1", "host2")
        got: dict[int, list[object]] = {}

        def gather(rank: int) -> None:
            got[rank] = made.clients[rank].gather("hash", {"of": rank}, 5)

        threads = [threading.Thread(target=gather, args=(rank,)) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == {n: [{"of": 0}, {"of": 1}, {"of": 2}] for n in range(3)}
        time.sleep(2 * FAST.silence)  # heartbeats keep it alive
        for client in made.clients:
            client.goodbye()
        assert made.server.over
        assert made.server.wait(0.3) is None
        assert made.stops.empty()


def test_exit_actions_run_last_in_first_out() -> None:
    """What needs MPI is done before MPI ends, which was to be done since it began."""
    with job(1) as made:
        (client,) = made.clients
        done: list[str] = []
        client.at_end(lambda: done.append("end MPI"))
        client.at_end(lambda: done.append("use MPI"))
        client.finish()
        assert done == ["use MPI", "end MPI"]


def test_a_stalled_rank_is_reported_with_its_line() -> None:
    limits = Limits(beat=0.02, silence=5.0, settle=0.1, stall=0.2)
    reports: queue.Queue[str] = queue.Queue()
    server = ControlServer(1, "secret", limits=limits, report=reports.put)
    with Job(server).join(0, 1):
        text = reports.get(timeout=processes.scaled(10))
        assert text.startswith("no step has finished for 0 s\n  rank 0: on host0")
        assert "at work at step 0" in text
        assert reports.get(timeout=processes.scaled(10)).startswith("no step has finished for 0 s")
    server.close()


def test_a_lost_connection_stops_all_others() -> None:
    with job(3) as made:
        site = made.watches[0].site("loss", "all_reduce float32[2]", ranks=range(3), at="t.py:4")
        site.enter()
        made.watches[1].steps = 17
        time.sleep(0.2)
        made.clients[1].close()
        failure = made.server.wait(processes.scaled(60))
        assert failure is not None
        assert (failure.kind, failure.rank, failure.step) == ("died", 1, 17)
        assert "rank 0: on host0, at step 0 in 'loss' (t.py:4)" in failure.message
        assert made.stopped() == {0: failure.message, 2: failure.message}


def test_stop_ranks_reaches_all() -> None:
    with job(2) as made:
        made.server.stop_ranks("go home", 0.1)
        assert {made.stops.get(timeout=processes.scaled(60)) for _ in range(2)} == {
            (0, "go home"),
            (1, "go home"),
        }


def test_stop_ranks_returns_with_the_last_disconnect() -> None:
    with job(2) as made:
        for client in made.clients:
            client.goodbye()
        stop = threading.Thread(target=made.server.stop_ranks, args=("go home", 1e6), daemon=True)
        stop.start()
        stop.join(processes.scaled(60))
        assert not stop.is_alive()


@pytest.mark.slow
def test_an_exception_reaches_all() -> None:
    with job(2) as made:
        try:
            int("x")
        except ValueError as error:
            made.clients[1].raised(error)
        failure = made.server.wait(processes.scaled(60))
        assert failure is not None
        assert (failure.kind, failure.rank) == ("exception", 1)
        assert "ValueError: invalid literal" in failure.message
        assert f"{__file__}:" in failure.message
        assert made.stopped() == {0: failure.message}


def test_a_rank_waiting_in_gather_is_stopped() -> None:
    with job(2) as made:
        threading.Timer(0.3, made.clients[1].close).start()
        with pytest.raises(JobStoppedError, match="gathering 'hash'"):
            made.clients[0].gather("hash", 1, 10)


def test_gathering_other_things_is_a_divergence() -> None:
    with job(2) as made:
        for client, key in zip(made.clients, "ab", strict=True):
            threading.Thread(target=_try, args=(client, key)).start()
        failure = made.server.wait(processes.scaled(5))
        assert failure is not None
        assert (failure.kind, failure.rank) == ("diverged", 1)


def _try(client: ControlClient, key: str) -> None:
    with contextlib.suppress(JobStoppedError):
        client.gather(key, 1, 10)


def test_values_that_are_too_large_together() -> None:
    """Each fits into a message to the server; all ranks get an error, and the job goes on."""
    with job(10) as made:
        errors: queue.Queue[LaunchError] = queue.Queue()

        def gather(rank: int) -> None:
            with pytest.raises(LaunchError, match=r"gathering 'big'[^z]*smaller values") as caught:
                made.clients[rank].gather("big", f"{rank}" + "z" * 1_000_000, 30)
            errors.put(caught.value)

        threads = [threading.Thread(target=gather, args=(rank,)) for rank in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors.qsize() == 10
        assert made.server.wait(0.2) is None


@pytest.mark.slow
def test_a_program_with_many_open_files() -> None:
    """The descriptor of the connection is larger than `select.select` allows."""
    files = [open("/dev/null") for _ in range(1100)]  # noqa: SIM115
    try:
        with job(2) as made:
            assert made.clients[1]._socket.fileno() > 1024
            time.sleep(2 * FAST.silence)
            assert made.server.wait(0.1) is None
            assert made.stops.empty()
    finally:
        for file in files:
            file.close()


def test_all_ranks_may_join_at_once() -> None:
    """As many connections as ranks may authenticate at a time."""
    size = 3 * MAX_UNAUTHENTICATED
    with job(size, join=False) as made:
        sockets = [socket.create_connection(("127.0.0.1", made.server.port)) for _ in range(size)]
        for connection in sockets:
            assert connection.recv(4096)
        made.join(0, size)
        for connection in sockets:
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.recv(1)
            connection.close()


def test_a_server_that_is_gone() -> None:
    with job(2) as made:
        made.server.close()
        stops = dict(made.stops.get(timeout=processes.scaled(60)) for _ in range(2))
        assert "rank 1 of 2 on host1 lost its control server" in stops[1]


def test_a_wrong_token(caplog: pytest.LogCaptureFixture) -> None:
    with job(2, join=False) as made:
        with pytest.raises(LaunchError, match="with the same token"):
            made.join(0, 2, token="other")
        assert "no proof of the job's token" in caplog.text
        assert not made.server.hosts


def test_a_server_without_the_token_is_not_believed() -> None:
    class Liar(threading.Thread):
        def __init__(self) -> None:
            super().__init__()
            self.socket = socket.create_server(("127.0.0.1", 0))

        def run(self) -> None:
            connection, _ = self.socket.accept()
            with connection:
                connection.sendall(pack({"is": "hello", "nonce": "n"}))
                connection.recv(4096)
                connection.sendall(pack({"is": "welcome", "proof": "x", "beat": 1.0}))
                connection.recv(1)

    liar = Liar()
    liar.start()
    with pytest.raises(LaunchError, match="no proof"):
        ControlClient(
            Membership(0, 2, 0, 2, "h"), "127.0.0.1", liar.socket.getsockname()[1], "secret"
        )
    liar.join()
    liar.socket.close()


@pytest.mark.parametrize("rank", [0, 7])
def test_each_rank_joins_once(rank: int) -> None:
    with job(2, join=False) as made:
        made.join(0, 2)
        size = 8 if rank else 2
        with pytest.raises(
            LaunchError, match=f"rank {rank} of {size} on .*\n.*each of the 2 ranks"
        ):
            made.join(rank, size)
        assert list(made.server.hosts) == [0]


def test_a_rank_that_an_engine_restarts_waits_for_the_end_of_the_job() -> None:
    """Until then, the server of the earlier start refuses it; the next start has the same port."""
    with job(2) as made:
        port, began = made.server.port, threading.Event()
        again: list[ControlClient] = []

        def restarted() -> None:
            began.set()
            again.append(Job.join(next_job, 1, 2))

        next_job = Job(made.server)
        thread = threading.Thread(target=restarted)
        thread.start()
        began.wait()
        made.clients[1].close()
        made.stopped()
    with ControlServer(2, "secret", port=port, limits=FAST) as server:
        thread.join()
        assert list(server.hosts) == [1]
        again[0].close()


STRANGE = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "long": b"\xff\xff\xff\xff",
    "not json": b"\x00\x00\x00\x02xx",
    "a list": b"\x00\x00\x00\x02[]",
    "no fields": pack({"is": "hello"}),
    "pickle": b"\x00\x00\x00\x11cos\nsystem\n(S'ls'",
    "no proof": pack({"is": "hello", "nonce": "a", "rank": 0, "size": 2, "host": "h", "pid": 1}),
}


@pytest.mark.parametrize("name", STRANGE)
def test_an_unauthenticated_connection_is_dropped_and_logged(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with job(2) as made, socket.create_connection(("127.0.0.1", made.server.port)) as stranger:
        stranger.settimeout(5)
        stranger.sendall(STRANGE[name])
        while stranger.recv(4096):
            pass
        assert "dropped a connection from ('127.0.0.1'" in caplog.text
        assert made.server.wait(0.2) is None
        for client in made.clients:
            client.goodbye()
        assert made.server.over


def pester(port: int, seed: int, until: float) -> int:
    """What strangers may do, at random, until a time; how many connections that took."""
    chance, kept = random.Random(seed), []
    opened = 0
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            stranger = socket.create_connection(("127.0.0.1", port), 1)
            opened += 1
            stranger.settimeout(0.01)
            kind = chance.randrange(5)
            if kind == 0:  # half of a length, and then nothing
                stranger.sendall(chance.randbytes(2))
            elif kind == 1:
                stranger.sendall(chance.randbytes(chance.randrange(1, 5000)))
            elif kind == 2:  # a good frame with anything in it
                stranger.sendall(pack({"is": "hello", "nonce": chance.randbytes(9).hex()}))
            elif kind == 3:  # it goes at once, with an error
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                stranger.close()
            kept.append(stranger)
        if len(kept) > 40:
            kept.pop(chance.randrange(len(kept))).close()
    for stranger in kept:
        stranger.close()
    return opened


def test_ranks_come_through_a_throng(caplog: pytest.LogCaptureFixture) -> None:
    """More connections than may prove something at a time, all of them silent."""
    with job(2, join=False) as made, contextlib.ExitStack() as strangers:
        for _ in range(MAX_UNAUTHENTICATED + 20):
            place = ("127.0.0.1", made.server.port)
            strangers.enter_context(contextlib.closing(socket.create_connection(place, 5)))
        for rank in range(2):
            made.join(rank, 2)
        assert made.clients[0].start(5) == ("host0", "host1")
        for client in made.clients:
            client.goodbye()
        assert made.server.over
    assert "its end before the first message" in caplog.text


@pytest.mark.slow
def test_unauthenticated_connections_do_not_slow_the_job(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with job(2) as made:
        until = time.monotonic() + 1.5
        counts: list[int] = []
        threads = [
            threading.Thread(target=lambda n=n: counts.append(pester(made.server.port, n, until)))
            for n in range(3)
        ]
        for thread in threads:
            thread.start()
        slowest = 0.0
        while time.monotonic() < until:
            began = time.monotonic()
            both = [
                threading.Thread(target=c.gather, args=(f"{began}", 0, 5)) for c in made.clients
            ]
            for thread in both:
                thread.start()
            for thread in both:
                thread.join()
            slowest = max(slowest, time.monotonic() - began)
        for thread in threads:
            thread.join()
        assert made.server.wait(0.2) is None
        assert made.stops.empty()
        assert slowest < 5 * FAST.silence
        for client in made.clients:
            client.goodbye()
        assert made.server.over
    lines = [record for record in caplog.records if "dropped" in record.message]
    assert sum(counts) > 20
    assert 0 < len(lines) <= LOG_LINES + 1


EXHAUSTIVE = pytest.mark.exhaustive
ODD = ("\ud800", "\0", "", "x" * 3000, 10**300, -1, 1e308, True, None, [], {}, [[["a"]]], {"a": {}})
"""Values that JSON carries, for any field of a message."""


class Writer:
    """A connection's other direction, which goes nowhere."""

    transport = SimpleNamespace(abort=lambda: None)

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return "203.0.113.1", 7

    def write(self, data: bytes) -> None:
        assert len(data) < 200

    def close(self) -> None:
        pass


def frames(count: int, seed: int) -> Iterator[bytes]:
    """First messages of strangers: random, and a rank's with fields, bytes or its end changed."""
    chance = random.Random(seed)
    hello = {"is": "hello", "nonce": "a" * 64, "proof": "b" * 64, "rank": 0, "size": 2, "host": "h"}
    for n in range(count):
        changed = {**hello, chance.choice([*hello, "x"]): chance.choice(ODD)}
        data = bytearray(pack(changed if n % 4 else hello))
        for _ in range(chance.choice((0, 0, 1, 1, 8))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        yield (
            chance.randbytes(chance.randrange(60)),
            bytes(data),
            bytes(data[: chance.randrange(len(data))]),
            len(data).to_bytes(4, "big") + chance.randbytes(len(data)),
        )[chance.choice((0, 1, 1, 1, 2, 3))]


def say_first(server: ControlServer, messages: Iterable[bytes]) -> None:
    """Has a server read each message as the whole of a connection."""

    async def say() -> None:
        for message in messages:
            reader = asyncio.StreamReader()
            reader.feed_data(message)
            reader.feed_eof()
            await server._serve(reader, cast("asyncio.StreamWriter", Writer()))

    asyncio.run_coroutine_threadsafe(say(), server._loop).result(60)


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=EXHAUSTIVE) for n in range(1, 50))])
def test_any_first_message_is_dropped_with_a_line_at_most(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of them leaves the server as it was; the log has a few lines and a number."""
    with job(2, join=False) as made:
        say_first(made.server, frames(4000, seed))
        assert not made.server.hosts
        for rank in range(2):
            made.join(rank, 2)
        assert made.clients[0].start(5) == ("host0", "host1")
        for client in made.clients:
            client.goodbye()
        assert made.server.over
    assert {record.name for record in caplog.records} == {"flow_dist.control.listener"}
    assert 0 < len(caplog.records) <= LOG_LINES + 1
    assert not any("Error" in record.message or record.exc_info for record in caplog.records)


@pytest.mark.parametrize("name", ["nonce", "proof", "rank", "size", "host"])
@pytest.mark.parametrize("value", ODD, ids=lambda value: f"{value!r:.9}")
def test_an_odd_field_is_one_line(
    name: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    hello = {"is": "hello", "nonce": "a", "proof": "b", "rank": 0, "size": 2, "host": "h"}
    with job(2, join=False) as made:
        say_first(made.server, [pack({**hello, name: value})])
    assert [record.name for record in caplog.records] == ["flow_dist.control.listener"]
    reasons = ("no proof", f"as {name!r}", "allowed: a JSON object")
    assert any(reason in caplog.text for reason in reasons), caplog.text


def test_an_error_of_ours_is_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A defect in what reads the first message costs its connection only."""
    monkeypatch.setattr("flow_dist.control.server.verify", {}.__getitem__)
    with job(2, join=False) as made:
        say_first(made.server, [pack({"is": "hello", "nonce": "a"})] * 20)
        assert made.server.wait(0.01) is None
    assert len(caplog.records) == LOG_LINES + 1
    assert "TypeError" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_server_that_says_anything_is_refused() -> None:
    """A rank that connects to a foreign server raises a typed error, whatever it receives."""
    heard = [*frames(60, 3), pack({"is": "hello", "nonce": "\ud800"})]
    with socket.create_server(("127.0.0.1", 0)) as liar:

        def lie() -> None:
            for message in heard:
                connection, _ = liar.accept()
                with connection, contextlib.suppress(OSError):
                    connection.sendall(message)
                    connection.shutdown(socket.SHUT_WR)
                    connection.recv(4096)

        thread = threading.Thread(target=lie)
        thread.start()
        for _ in heard:
            client = object.__new__(ControlClient)
            client._sending, client._framing = threading.Lock(), Framing(TO_RANK)
            client.membership, client._early = Membership(0, 2, 0, 2, "h"), []
            client._socket = socket.create_connection(liar.getsockname(), 5)
            with client._socket, pytest.raises((WireError, OSError)):
                client._handshake("secret")
        thread.join()


def test_an_unauthenticated_peer_receives_only_a_nonce() -> None:
    with job(2) as made, socket.create_connection(("127.0.0.1", made.server.port)) as stranger:
        told = json.loads(stranger.recv(4096)[4:])
        assert set(told) == {"is", "nonce"}


NONSENSE: list[dict[str, object]] = [
    {"step": "many"},
    {"finished": "all"},
    {"line": 3},
    {"site": 3},
    {"counts": [3]},
    {"counts": [[0, 1]]},
    {"teams": [[0, [["a", 1, 1]], ""]]},
    {"teams": [[0, [[0, 3, 1]], ""]]},
    {"teams": [[0, [[0, 1, 1], [0, 1, 1]], ""]]},
    {"teams": [[0, [[0, 2, 0]], ""]]},
    {"teams": [[0, 1, ""]]},
    {"groups": []},
    {"teams": [[0, [[0, 2, 1]], ""]], "counts": [[0, []]]},
    {"teams": [[0, [[0, 2, 1]], ""]], "counts": [[0, 1, "abc"]]},
    {"teams": [[0, [[0, 2, 1]], ""]], "sites": [[0, "op", "what", 3, 0]]},
    {"sites": [[0, "op", "what", "at", 0]]},
]


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_a_rank_that_says_nonsense_is_lost(nonsense: dict[str, object]) -> None:
    with job(2) as made:
        made.clients[1]._send({"is": "beat", "report": nonsense})
        failure = made.server.wait(processes.scaled(60))
        assert failure is not None
        assert (failure.kind, failure.rank) == ("died", 1)


def test_an_address_that_is_not_ours() -> None:
    with pytest.raises(LaunchError, match="listening on 203"):
        ControlServer(1, "secret", "203.0.113.7")


def test_it_listens_on_its_address_only() -> None:
    with job(1) as made, pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", made.server.port), 1)


def test_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(LaunchError, match="joining the job at 127"):
        ControlClient(Membership(0, 2, 0, 2, "h"), "127.0.0.1", port, "secret", patience=0.2)


def test_errors_in_short() -> None:
    try:
        raise WireError("a message", found="nothing")
    except WireError as error:
        text = describe_error(error)
    assert text.startswith("WireError: a message\n  found:")
    assert f"{__file__}:" in text
