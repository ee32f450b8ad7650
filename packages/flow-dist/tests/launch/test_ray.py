"""Ranks on a Ray cluster of two hosts, which are network namespaces: nox -s ray."""

import contextlib
import os
import re
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fault_table
import processes
import pytest
from click.testing import CliRunner
from launching import HELPERS, lines_of, mpich
from two_hosts import TwoHosts, two_hosts, why_not

from flow_dist.bootstrap.membership import LaunchError
from flow_dist.cli import main
from flow_dist.launch import ray
from flow_dist.launch.ray import assign_ranks
from flow_dist.launch.supervisor import Job

PROGRAM = HELPERS / "restart_program.py"
PORT = 6379
SILENCE, LONG = 15.0, 60.0
"""Seconds of silence where that is to be noticed, and where a machine with much else to do may not
be taken for a lost one: Ray itself is a dozen of processes."""


def test_ranks_of_a_node_are_consecutive() -> None:
    nodes = ["b", "a", "b", "c", "a", "b"]
    found = assign_ranks(nodes)
    assert [nodes[number] for number, _, _ in found] == ["b", "b", "b", "a", "a", "c"]
    assert sorted(number for number, _, _ in found) == list(range(6))
    assert [(local, size) for _, local, size in found] == [
        (0, 3), (1, 3), (2, 3), (0, 2), (1, 2), (0, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--ray", "--hosts", "a:2"], "--hosts is incompatible with --ray"),
        (["--each", "CPU=2"], "--each requires --ray"),
    ],
)
def test_incompatible_options(args: list[str], message: str) -> None:
    ended = CliRunner().invoke(main, ["run", *args, str(PROGRAM)])
    assert ended.exit_code == 2
    assert message in ended.output


def test_without_ray_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    ended = CliRunner().invoke(main, ["run", "--ray", str(PROGRAM)])
    assert ended.exit_code == 1
    assert "flow-dist[ray]" in ended.output


class SmallRay:
    """A fake of Ray's placement groups, on a cluster with resources for some bundles."""

    def __init__(self, cpus: int) -> None:
        self.util, self.cpus = self, cpus
        self.groups: list[int] = []

    def get_node_ip_address(self) -> str:
        return "10.0.0.1"

    def available_resources(self) -> dict[str, float]:
        return {"CPU": self.cpus}

    def placement_group(self, bundles: list[dict[str, float]], strategy: str) -> Any:
        self.groups.append(len(bundles))
        return SimpleNamespace(size=len(bundles), wait=lambda seconds: len(bundles) <= self.cpus)

    def remove_placement_group(self, group: Any) -> None:
        self.groups.remove(group.size)


@pytest.mark.parametrize(("cpus", "least", "size"), [(4, 0, 3), (2, 1, 2), (2, 0, 0), (1, 2, 0)])
def test_as_many_ranks_as_there_are_resources_for(
    cpus: int, least: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = SmallRay(cpus)
    monkeypatch.setattr(ray, "_connect", lambda: small)
    job = Job("t.py", size=3, least=least)
    with ray.Cluster({"CPU": 1}) as cluster:
        if size == 0:
            with pytest.raises(LaunchError, match=f"reserving resources for {least or 3} ranks"):
                cluster.fit(job, None)
        else:
            found = cluster.fit(job, None)
            assert (found.ranks, found.listen) == (size, "10.0.0.1")
            assert cluster.fit(found, None).ranks == size
            assert small.groups == [size]
    assert small.groups == []


class Cluster:
    """A Ray cluster of two hosts with two CPUs each."""

    def __init__(self, hosts: TwoHosts, folder: str) -> None:
        self.hosts = hosts
        self.env = {
            **{name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # Ray starts workers with 15, and the ranks inherit it
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "DEVICES": "0:0-1",
        }
        a, b = hosts.addresses
        self.head = f"{a}:{PORT}"
        self._start(
            0, "--head", f"--port={PORT}", f"--node-ip-address={a}", f"--temp-dir={folder}/a"
        )
        self._start(1, f"--address={self.head}", f"--node-ip-address={b}")

    def _start(self, host: int, *args: str) -> None:
        start = [sys.executable, "-m", "ray.scripts.scripts", "start", *args, "--num-cpus=2"]
        small = ["--object-store-memory=80000000", "--disable-usage-stats"]
        small += ["--include-dashboard=false"] if host == 0 else []
        apart = ("setsid", "--wait")  # Ray's processes go on in a group of their own
        done = self.on(host, [*apart, *start, *small], timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr

    def on(self, host: int, command: Sequence[str], timeout: float) -> processes.Completed[str]:
        env = {**self.env, "RAY_ADDRESS": self.head} if host == 0 else self.env
        return processes.run(self.hosts.on(host, command), env=env, timeout=timeout)

    def run(self, *args: str, timeout: float = 250) -> processes.Completed[str]:
        flow_dist = [sys.executable, "-c", "from flow_dist.cli import main; main()"]
        return self.on(0, [*flow_dist, "run", "--ray", *args], timeout)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    pytest.importorskip("ray", reason="Ray is not installed: nox -s ray")
    mpich()
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:  # a short path, as sockets have names of 107 letters
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        yield Cluster(stack.enter_context(two_hosts()), folder)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kit_on_four_actors(cluster: Cluster) -> None:
    done = cluster.run("-n", "4", str(HELPERS / "run_comm_kit.py"), "mpi", "float32", "bool")
    assert lines_of(done) == 4 * ["167 checks"]


def struck(folder: Path) -> float:
    until = time.monotonic() + processes.scaled(250)
    while not (folder / "struck").exists() and time.monotonic() < until:
        time.sleep(0.02)
    return float((folder / "struck").read_text())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("kill", "died without an error"),
        ("worker", "died without an error"),
        ("stop", "has not responded for"),
        ("raise", "raised KeyError: 'nothing'"),
    ],
)
def test_actors_start_again(cluster: Cluster, fault: str, words: str, tmp_path: Path) -> None:
    fault_table.undisturbed(tmp_path / "right")
    folder = tmp_path / "run"
    silence = SILENCE if fault == "stop" else LONG
    options = ["-n", "2", "--max-restarts", "1", "--silence", str(silence)]
    done = cluster.run(*options, str(PROGRAM), str(folder), "8", fault, "5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"flow-dist: rank 1 of 2 on .* {words}", done.stderr), done.stderr
    assert "restart 1 of 1 with 2 ranks" in done.stderr
    assert "resuming at step 4 " in done.stderr
    assert fault_table.same(folder, tmp_path / "right")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_actors_of_a_lost_host_start_elsewhere(cluster: Cluster, tmp_path: Path) -> None:
    """The last test, as the host stays lost."""
    fault_table.undisturbed(tmp_path / "right")
    folder = tmp_path / "run"
    script = (
        "import sys; from flow_dist.launch.ray import run; "
        "from flow_dist.control.board import Limits; "
        "sys.exit(run(sys.argv[1], 2, sys.argv[2:], strategy='SPREAD', restarts=1, "
        f"limits=Limits(silence={SILENCE})))"
    )
    command = [sys.executable, "-c", script, str(PROGRAM), str(folder), "8", "host", "4"]
    env = {**cluster.env, "RAY_ADDRESS": cluster.head}
    with processes.Program(cluster.hosts.on(0, command), env=env) as process:
        struck(folder)
        cluster.hosts.down()
        (folder / "happened").touch()
        out, err = process.communicate(timeout=250)
    assert process.returncode == 0, out + err
    lost = cluster.hosts.names[1]  # Ray decides which of the ranks is there
    assert re.search(rf"flow-dist: rank [01] of 2 on {lost} .* has not responded for", err), err
    assert "restart 1 of 1 with 2 ranks" in err
    assert fault_table.same(folder, tmp_path / "right")
