"""Address and port of rank 0 for processes of a Slurm step, from Slurm's node list."""

from __future__ import annotations

import re
from collections.abc import Mapping

from flow_dist.bootstrap.addresses import LOOPBACK, address_towards
from flow_dist.bootstrap.membership import LaunchError, read_number

FIRST_PORT, PORTS = 20000, 10000
"""First port and number of ports to choose from, below the usual range of ephemeral ports."""

_NODE_LISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
_HOST = re.compile(r"[\w.-]+")


def master_of_step(env: Mapping[str, str], rank: int) -> tuple[str, int] | None:
    """Return the address and port of rank 0; on its own host, an address that others can reach.

    Raises:
        LaunchError: Slurm's variables are malformed, or the last host cannot be reached.

    >>> step = {"SLURM_STEP_NODELIST": "n[07-09,11]", "SLURM_JOB_ID": "1234567"}
    >>> master_of_step(step, 3)
    ('n07', 24567)
    """
    name = next((name for name in _NODE_LISTS if env.get(name)), None)
    if name is None or not env.get("SLURM_JOB_ID"):
        return None
    first, last = ends_of(env[name])
    for host in (first, last):
        if not _HOST.fullmatch(host):
            allowed = "a list of hosts, as in n[07-09,11]"
            raise LaunchError(f"reading {name}", found=f"{env[name]!r:.60}", allowed=allowed)
    job, step = read_number("SLURM_JOB_ID", env["SLURM_JOB_ID"]), env.get("SLURM_STEP_ID", "")
    number = read_number("SLURM_STEP_ID", step) if step[:1].isdigit() else 0  # else "batch"
    port = FIRST_PORT + (job + 101 * number) % PORTS
    if rank:
        return first, port
    return (LOOPBACK if first == last else address_towards(last)), port


def ends_of(hosts: str) -> tuple[str, str]:
    """Return the first and the last host of a Slurm node list.

    >>> ends_of("gpu[07-09,11]"), ends_of("a,rack[1-2]n[3,5]"), ends_of("one")
    (('gpu07', 'gpu11'), ('a', 'rack2n5'), ('one', 'one'))
    """
    parts = re.split(r",(?![^\[]*\])", hosts)
    first = re.sub(r"\[(\w+)[^\]]*\]", r"\1", parts[0])
    last = re.sub(r"\[(?:[^\]]*[-,])?(\w+)\]", r"\1", parts[-1])
    return first, last
