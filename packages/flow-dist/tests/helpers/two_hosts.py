"""Two hosts on one machine: network namespaces with a link between them.

As a script it makes them and prints how to use them:
``PYTHONPATH=tests/helpers python PATH/two_hosts.py``.
"""

import contextlib
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import processes

AGENT = """#!/bin/sh
# Stands for ssh: runs the command in the namespace that owns the address.
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
case $host in
    {a}) TMPDIR={folder}/a; namespace={name_a} ;;
    {b}) TMPDIR={folder}/b; namespace={name_b} ;;
    *) echo "no host $host" >&2; exit 255 ;;
esac
mkdir -p $TMPDIR  # where Open MPI's daemons keep what they take for their host's own
export TMPDIR
exec ip netns exec $namespace {called} $namespace sh -c "$*"
"""

CALLED = 'unshare --uts sh -c \'echo "$0" > /proc/sys/kernel/hostname; exec "$@"\''
"""Runs a command under another name of the host: Open MPI takes those of one name for one host."""


@dataclass(frozen=True)
class TwoHosts:
    """Namespaces, their addresses, and what stands for ssh between them."""

    names: tuple[str, str]
    addresses: tuple[str, str]
    agent: str

    def on(self, host: int, command: Sequence[str]) -> list[str]:
        """A command line that runs a command on a host."""
        name = self.names[host]
        return ["ip", "netns", "exec", name, *shlex.split(CALLED), name, *command]

    def link(self, state: str) -> None:
        """Sets the link of the second host "up" or "down"."""
        _ip("-n", self.names[1], "link", "set", "eth0", state)

    def down(self) -> None:
        """The second host dies: its link first, then all its processes."""
        self.link("down")
        for pid in self.pids(1):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)

    def pids(self, host: int) -> list[int]:
        """The processes on a host."""
        said = _ip("netns", "pids", self.names[host])
        return [int(line) for line in said.split()]


def _ip(*args: str) -> str:
    return str(processes.run(["ip", *args], check=True).stdout)


def why_not() -> str | None:
    """Why there cannot be two hosts here, None when there can."""
    if sys.platform != "linux" or shutil.which("ip") is None:
        return "no Linux with ip"
    name = f"flow-try-{os.getpid()}"
    try:
        _ip("netns", "add", name)
    except processes.CalledProcessError as error:
        return f"no network namespaces: {error.stderr.strip()}"
    _ip("netns", "del", name)
    return None


@contextlib.contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Two hosts for a ``with`` block; everything on them is killed at its end."""
    number = os.getpid() % 250 + 1
    name_a, name_b = (f"flow{os.getpid()}{side}" for side in "ab")
    a, b = f"10.77.{number}.1", f"10.77.{number}.2"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        agent = Path(folder) / "agent"
        text = AGENT.replace("{a}", a).replace("{b}", b).replace("{folder}", folder)
        text = text.replace("{called}", CALLED)
        agent.write_text(text.replace("{name_a}", name_a).replace("{name_b}", name_b))
        agent.chmod(0o755)
        hosts = TwoHosts((name_a, name_b), (a, b), str(agent))
        try:
            _make(hosts)
            yield hosts
        finally:
            for host, name in enumerate(hosts.names):
                with contextlib.suppress(processes.CalledProcessError, ProcessLookupError):
                    for pid in hosts.pids(host):
                        os.kill(pid, 9)
                    _ip("netns", "del", name)


def _make(hosts: TwoHosts) -> None:
    for name in hosts.names:
        _ip("netns", "add", name)
    name_a, name_b = hosts.names
    peer = ("type", "veth", "peer", "name", "eth0", "netns", name_b)
    _ip("link", "add", "eth0", "netns", name_a, *peer)
    for name, address in zip(hosts.names, hosts.addresses, strict=True):
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "link", "set", "eth0", "up")
    for name in hosts.names:  # a launcher that starts before finds no network
        while "state UP" not in _ip("-n", name, "link", "show", "eth0"):
            time.sleep(0.02)


if __name__ == "__main__":
    with two_hosts() as made:
        a, b = made.addresses
        run = f"flow-dist run --hosts {a}:2,{b}:2 --address {a} --agent {made.agent} script.py"
        sys.stdout.write(" ".join(made.on(0, run.split())) + "\nEnter ends them. ")
        sys.stdout.flush()
        sys.stdin.readline()
