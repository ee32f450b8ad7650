"""Measure the control server with many simulated ranks, over real sockets.

    python control_bench.py --ranks 320,1024,4096 --seconds 10

The server is that of ``flow-dist run``.  The ranks are connections of a few other processes that
speak the real protocol with the real time limits.  The ranks form simulated hosts of 8 ranks each,
and exchange in three groups: all ranks, the ranks on one host, and the ranks with the same local
rank on all hosts.  The ranks train, then all wait for one straggler, then one rank disconnects.  A
heartbeat counts as missed if the server has not heard from a rank for two intervals.  The time
until the server names a rank is counted from the exceeded limit (straggler) or from the disconnect
(dead rank).  The output has one row per number of ranks, in Markdown.
"""

import argparse
import selectors
import socket
import subprocess
import sys
import time
from collections import deque
from itertools import pairwise
from queue import Queue

from flow_dist.control.board import Limits
from flow_dist.control.report import Reporter
from flow_dist.control.server import ControlServer
from flow_dist.control.watch import Watch
from flow_dist.control.wire import TO_RANK, Framing, field, pack, prove, random_token

HOST = 8
"""Number of ranks per simulated host."""

LIMITS = Limits(stall=5.0)
STEPS = 5
"""Number of steps per heartbeat while a rank trains; each step has three exchanges."""


class SimulatedRank:
    """One rank of the job: its connection and its position."""

    def __init__(self, rank, size, address, token):
        self.rank, self.framing = rank, Framing(TO_RANK)
        self.socket = socket.create_connection(address, 60)
        self._inbox = []
        self.beat = self._join(rank, size, token)
        self.socket.setblocking(True)
        self.watch = Watch()
        host = rank - rank % HOST
        groups = range(size), range(host, min(host + HOST, size)), range(rank % HOST, size, HOST)
        self.sites = [
            self.watch.site(f"op{i}", "all_reduce float32[4]", ranks=ranks, at="train.py:9")
            for i, ranks in enumerate(groups)
        ]
        self.reporter = Reporter(self.watch)
        self.due = time.monotonic() + self.beat

    def _join(self, rank, size, token):
        nonce = random_token()
        proof = prove(token, "rank", field(self._first(), "nonce", str), nonce)
        hello = {"is": "hello", "rank": rank, "size": size, "host": f"host{rank // HOST}"}
        self.socket.sendall(pack({**hello, "nonce": nonce, "proof": proof}))
        return float(field(self._first(), "beat", float))

    def _first(self):
        while not self._inbox:
            self._inbox += self.framing.feed(self.socket.recv(1 << 16))
        return self._inbox.pop(0)

    def send(self, trains):
        """Send a heartbeat; if the rank trains, count some steps first."""
        if trains:
            for _ in range(STEPS):
                for site in self.sites:
                    with site:
                        pass
            self.watch.steps += STEPS
            self.watch.finished += STEPS
        self.socket.sendall(pack({"is": "beat", "report": self.reporter.changes()}))

    def wait(self):
        """Enter an exchange of all ranks and wait in it."""
        self.sites[0].enter()


class Simulator:
    """Some ranks in one process, which obeys commands from its standard input.

    The commands are "train", "stall RANK" (all other ranks wait for this rank) and "die RANK".
    """

    def __init__(self):
        self._selector = selectors.DefaultSelector()
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        self._ranks = deque()  # in the order of their next heartbeats
        self._trains = False

    def add(self, rank):
        """Add a rank that has joined."""
        self._selector.register(rank.socket, selectors.EVENT_READ, rank)
        self._ranks.append(rank)
        self.send_due()

    def send_due(self):
        """Send the heartbeats that are due."""
        while self._ranks[0].due <= time.monotonic():
            rank = self._ranks.popleft()
            rank.send(self._trains)
            rank.due += rank.beat
            self._ranks.append(rank)

    def run(self):
        """Run until the server stops the ranks."""
        while True:
            for key, _ in self._selector.select(max(0.0, self._ranks[0].due - time.monotonic())):
                if key.data is None:
                    self._obey(*sys.stdin.readline().split())
                else:
                    self._receive(key.data)
            self.send_due()

    def _receive(self, rank):
        for message in rank.framing.feed(rank.socket.recv(1 << 20)):
            if message["is"] == "where":
                rank.send(False)
            elif message["is"] == "stop":
                sys.exit()

    def _obey(self, command, number=""):
        self._trains = command == "train"
        for rank in list(self._ranks):
            if command == "stall" and rank.rank != int(number):
                rank.wait()
            elif command == "die" and rank.rank == int(number):
                self._ranks.remove(rank)
                self._selector.unregister(rank.socket)
                rank.socket.close()


def simulate(first, last, size, address, token):
    """Run some ranks in this process."""
    simulator = Simulator()
    for number in range(first, last):
        simulator.add(SimulatedRank(number, size, address, token))
    simulator.run()


def watch(server, seconds):
    """Return the server's CPU seconds per second, and the number of missed heartbeats."""
    ranks, limit = server._board.ranks, 2 * server.limits.beat
    missed, sampling = set(), 0.0
    began, used = time.monotonic(), time.process_time()
    while time.monotonic() - began < seconds:
        time.sleep(limit / 4)
        now, before = time.monotonic(), time.thread_time()
        missed |= {(n, rank.heard) for n, rank in ranks.items() if now - rank.heard > limit}
        sampling += time.thread_time() - before
    cpu = time.process_time() - used - sampling
    return cpu / (time.monotonic() - began), len(missed)


def measure(size, processes, seconds):
    """Return the figures for one number of ranks."""
    token, reports = random_token(), Queue()

    def report(text):
        reports.put((text, time.monotonic()))

    with (
        ControlServer(size, token, limits=LIMITS, report=report) as server,
        Simulators(server, size, processes, token) as simulators,
    ):
        return _phases(server, simulators, reports, size, seconds)


class Simulators:
    """The processes of simulated ranks."""

    def __init__(self, server, size, processes, token):
        bounds = [size * i // processes for i in range(processes + 1)]
        place = f"{server.address}:{server.port}"
        command = [sys.executable, __file__, "--simulate"]
        self._server = server
        self._processes = [
            subprocess.Popen(
                [*command, f"{first},{last},{size},{place},{token}"],
                stdin=subprocess.PIPE,
                text=True,
            )
            for first, last in pairwise(bounds)
        ]

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        for process in self._processes:
            process.kill()
            process.wait()

    def tell(self, command):
        """Send a command to all processes."""
        if (failure := self._server.wait(0)) is not None:
            sys.exit(failure.message)
        for process in self._processes:
            process.stdin.write(f"{command}\n")
            process.stdin.flush()


def _phases(server, simulators, reports, size, seconds):
    began, used = time.monotonic(), time.process_time()
    row, odd = {"ranks": size}, size * 2 // 3
    while len(server.hosts) < size and server.wait(0.05) is None:
        pass
    row["joined"], row["join CPU"] = time.monotonic() - began, time.process_time() - used
    simulators.tell("train")
    time.sleep(2)
    row["training"], missed = watch(server, seconds)
    simulators.tell(f"stall {odd}")
    time.sleep(4 * LIMITS.beat)
    row["waiting"], more = watch(server, seconds)
    row["missed"] = missed + more
    text, at = reports.get(timeout=60)
    if f"for rank {odd}, which waits for none" in text:
        row["straggler"] = at - server._board._progress - LIMITS.stall
    simulators.tell(f"die {odd}")
    began = time.monotonic()
    failure = server.wait(60)
    if failure is not None and (failure.kind, failure.rank) == ("died", odd):
        row["dead"] = time.monotonic() - began
    return row


COLUMNS = {
    "ranks": "ranks",
    "joined": "joined, s",
    "join CPU": "CPU of joining, s",
    "training": "CPU in training, s/s",
    "waiting": "CPU while they wait, s/s",
    "missed": "missed heartbeats",
    "straggler": "straggler named, s",
    "dead": "dead rank named, s",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="320,1024,4096")
    parser.add_argument("--processes", type=int, default=2, help="processes of simulated ranks")
    parser.add_argument("--seconds", type=float, default=8, help="duration of each measured phase")
    parser.add_argument("--simulate", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.simulate:
        first, last, size, place, token = args.simulate.split(",")
        address, port = place.split(":")
        simulate(int(first), int(last), int(size), (address, int(port)), token)
        return
    print("|", " | ".join(COLUMNS.values()), "|")
    print("|---" * len(COLUMNS), "|", sep="", flush=True)
    for size in map(int, args.ranks.split(",")):
        row = measure(size, args.processes, args.seconds)
        cells = [row.get(name, "not") for name in COLUMNS]
        texts = [f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells]
        print("|", " | ".join(texts), "|", flush=True)


if __name__ == "__main__":
    main()
