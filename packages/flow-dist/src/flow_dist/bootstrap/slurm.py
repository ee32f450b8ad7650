"""Address and port of rank 0 for processes of a Slurm step, from Slurm's node list."""

from __future__ import annotations

import re
from collections.abc import Mapping

from flow_dist.bootstrap.addresses import LOOPBACK, address_towards

FIRST_PORT, PORTS = 20000, 10000
"""First port and number of ports to choose from, below the usual range of ephemeral ports."""


def master_of_step(env: Mapping[str, str], rank: int) -> tuple[str, int] | None:
    """Return the address and port of rank 0; on its own host, an address that others can reach.

    >>> step = {"SLURM_STEP_NODELIST": "n[07-09,11]", "SLURM_JOB_ID": "1234567"}
    >>> master_of_step(step, 3)
    ('n07', 24567)
    """
    text = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or ""
    job = env.get("SLURM_JOB_ID", "")
    if not (text and job.isdigit()):
        return None
    first, last = ends_of(text)
    step = env.get("SLURM_STEP_ID", "0")
    port = FIRST_PORT + (int(job) + 101 * int(step if step.isdigit() else 0)) % PORTS
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
