"""Processes that no MPI launcher has started initialize MPI over the control channel."""

import os
import socket
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import processes
import pytest
from hypothesis import given
from hypothesis import strategies as st
from launching import HELPERS, lines_of, mpich

from flow_dist.bootstrap.engines import MPI_VARIABLES
from flow_dist.mpi.pmi import Service, joined_by_launcher, process_mapping


def places(text: str) -> list[int]:
    """Hosts of the ranks by a mapping, as MPICH reads it."""
    blocks = eval(text.replace("(vector,", "(").replace("))", "),)"))
    return [first for first, hosts, each in blocks for _ in range(hosts * each)]


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
def test_the_mapping_has_the_ranks_of_a_host_together(hosts: list[str]) -> None:
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    assert places(process_mapping(hosts)) == [numbers[host] for host in hosts]


class Ranks:
    """An exchange between threads."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.said: dict[str, dict[int, Any]] = {}

    def exchange(self, rank: int, name: str, values: dict[str, str]) -> list[dict[str, str]]:
        self.said.setdefault(name, {})[rank] = values
        self.barrier.wait(processes.scaled(10))
        return [*self.said[name].values()]


def ask(rank: int, size: int, exchange: Any, found: dict[int, list[str]]) -> None:
    """A rank's MPI: tells its address, and asks for all, which are present after the barrier."""
    client_end, server_end = socket.socketpair()
    service = Service(size, "job", process_mapping("ab"), exchange)
    thread = threading.Thread(target=service.serve, args=(server_end,))
    thread.start()
    lines = [
        "cmd=init pmi_version=1 pmi_subversion=1",
        "cmd=get_maxes",
        "cmd=get_my_kvsname",
        "cmd=get_universe_size",
        "cmd=get kvsname=job key=PMI_process_mapping",
        f"cmd=put kvsname=job key=at-{rank} value=address#{rank}$x=y",
        f"cmd=get kvsname=job key=at-{1 - rank}",
        "cmd=barrier_in",
        *(f"cmd=get kvsname=job key=at-{other}" for other in range(size)),
        "cmd=spawn",
    ]
    with client_end, client_end.makefile("rw") as stream:
        for line in lines:
            stream.write(line + "\n")
            stream.flush()
            found[rank].append(stream.readline().strip())
    thread.join()


def test_addresses_go_round_at_barriers() -> None:
    found: dict[int, list[str]] = {0: [], 1: []}
    ranks = Ranks(2)
    threads = [
        threading.Thread(target=ask, args=(rank, 2, partial(ranks.exchange, rank), found))
        for rank in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert found[0] == [
        "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
        "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024",
        "cmd=my_kvsname rc=0 kvsname=job",
        "cmd=universe_size rc=0 size=2",
        "cmd=get_result rc=0 value=(vector,(0,1,1),(1,1,1))",
        "cmd=put_result rc=0",
        "cmd=get_result rc=-1 msg=key_not_found",
        "cmd=barrier_out rc=0",
        "cmd=get_result rc=0 value=address#0$x=y",
        "cmd=get_result rc=0 value=address#1$x=y",
        "cmd=spawn_result rc=-1",
    ]


def test_launchers_that_know_mpi() -> None:
    assert not joined_by_launcher({"RANK": "0", "WORLD_SIZE": "2"})
    assert all(joined_by_launcher({name: "0"}) for name in MPI_VARIABLES)


def start(size: int, script: Path, *args: str, **env: str) -> list[processes.Completed[str]]:
    """Runs a script as torchrun does: nothing but variables tells the processes apart."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1] - 1
    common = {name: value for name, value in os.environ.items() if name not in MPI_VARIABLES}
    common |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "FLOW_DIST_TOKEN": "secret"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    common |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **env}
    command, ranks = [sys.executable, str(script), *args], map(str, range(size))
    return processes.run_together(
        (command, {**common, "RANK": rank, "LOCAL_RANK": rank}) for rank in ranks
    )


@pytest.mark.exhaustive
def test_kit_under_variables_alone() -> None:
    mpich()
    first, *others = start(3, HELPERS / "run_comm_kit.py", "mpi", "float32", "bool")
    assert all(done.returncode == 0 for done in others), others
    assert lines_of(first) == 3 * ["167 checks"]


@pytest.mark.slow
def test_training_under_variables_alone(tmp_path: Path) -> None:
    """The losses of one process, bit for bit; no message, and no wait at the end.

    No token is passed: it comes from the user's secret.
    """
    mpich()
    program, steps = HELPERS / "restart_program.py", "4"
    (one,) = start(1, program, str(tmp_path / "one"), steps, DEVICES="0:0-1")
    home = {"FLOW_DIST_TOKEN": "", "HOME": str(tmp_path), "XDG_CONFIG_HOME": ""}
    two = start(2, program, str(tmp_path / "two"), steps, DEVICES="0:0-1", **home)
    assert [done.returncode for done in two] == [0, 0], two
    assert lines_of(two[0]) == lines_of(one)
    assert len(lines_of(one)) == 4
    assert not two[1].stdout
    assert not any(line.startswith("flow-dist") for done in two for line in done.stderr.split("\n"))


@pytest.mark.slow
def test_one_that_dies_under_variables_alone(tmp_path: Path) -> None:
    mpich()
    program = HELPERS / "restart_program.py"
    first, last = start(2, program, str(tmp_path), "8", "kill", "3", DEVICES="0:0-1")
    assert (first.returncode, last.returncode) == (1, -9)
    assert "flow-dist: rank 1 of 2 on " in first.stderr
    assert "died without an error" in first.stderr
