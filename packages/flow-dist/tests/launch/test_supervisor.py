"""``flow-dist run``: every way to end, its report and status, and that no process is left."""

import os
import re
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import processes
import psutil
import pytest
from click.testing import CliRunner

from flow_dist.bootstrap.addresses import address_towards, rank_0_address
from flow_dist.bootstrap.membership import LaunchError, Membership
from flow_dist.cli import main
from flow_dist.control import channel
from flow_dist.control.board import Failure
from flow_dist.control.channel import join, parse_address
from flow_dist.launch.mpi_launchers import MPICH, OPEN_MPI, Host, Launcher
from flow_dist.launch.supervisor import Job, without_silent_hosts
from flow_dist.shm.cleanup import Scratch

FLOW_DIST = [sys.executable, "-c", "from flow_dist.cli import main; main()", "run"]
FAST = ["--beat", "0.1", "--silence", "3", "--exchange", "4", "--start", "60"]

SCRIPT = """
import os, signal, sys, time
from flow_dist.control import channel as control
from flow_dist.control.watch import WATCH

print("hello", os.environ["FLOW_DIST_RESTART"], *sys.argv[1:], flush=True)
client = control.current()
rank, size = client.membership.rank, client.membership.size
faults = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "raise": lambda: {}["nothing"],
    "status": lambda: sys.exit(3),
    "leave": lambda: sys.exit(0),
    "quit": lambda: os._exit(0),
    "hang": lambda: time.sleep(1000),
    "other": lambda: client.gather("other", rank, 60),
}
for step in range(4):
    WATCH.steps = step
    if step == 2 and rank == size - 1 and len(sys.argv) > 1:
        faults[sys.argv[1]]()
    assert client.gather(f"step {step}", rank, 60) == list(range(size))
print("done", rank, __name__, __file__, flush=True)
"""


KILLED = """
import os, re, signal, sys
from pathlib import Path
import psutil
from flow_dist.control import channel as control
from flow_dist.shm.cleanup import own_files
from flow_dist.mpi.world import world

world()
client = control.current()
if client.membership.rank == 0:
    print(len(own_files()), os.environ.get("PMIX_SERVER_TMPDIR", "none"))
    maps = Path("/proc/self/maps").read_text()
    print(*set(re.findall(r"/dev/shm/(?:mpich_shm_|sm_segment)\\S+", maps)), flush=True)
client.gather("all there", 0, 60)
if sys.argv[1] == "program":
    raise ValueError("in all ranks")
if client.membership.rank == 1 and sys.argv[1] == "rank":
    os.kill(os.getpid(), signal.SIGKILL)
if client.membership.rank == 1:
    above = psutil.Process().parents()
    next(p for p in above if "flow_dist.cli" in str(p.cmdline())).send_signal(signal.SIGINT)
client.gather("never", 0, 60)
"""


TIDY = """
import os, sys, time
from pathlib import Path
from flow_dist.control import channel as control, termination as ending

place = control.current().membership
ending.BEFORE.append(lambda message: Path(sys.argv[1], str(place.rank)).write_text(message))
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def left(script: str) -> list[int]:
    """Processes that still run a script."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        if script in (process.info["cmdline"] or []):
            found.append(process.pid)
    return found


def test_one_process_needs_no_launcher(script: str) -> None:
    ended = processes.run([*FLOW_DIST, "-n", "1", *FAST, script])
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"hello 0\ndone 0 __main__ {script}\n"
    assert not ended.stderr


@pytest.mark.slow
def test_three_processes(script: str) -> None:
    ended = processes.run([*FLOW_DIST, "-n", "3", *FAST, script])
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.split("\n")) == sorted(
        ["", *["hello 0"] * 3, *(f"done {rank} __main__ {script}" for rank in range(3))]
    )


WORDS = {
    "kill": r"died without an error",
    "stop": r"has not responded for \d",
    "raise": r"raised KeyError: 'nothing' \(at .*train.py:\d+\)",
    "status": "ended with status 3",
    "leave": "has ended, while rank 0 waits for it in 'gather step 2'",
    "quit": "died without an error",
    "hang": "keeps rank 0 waiting in 'gather step 2'",
    "other": "diverged: it is in gather other: .*; rank 0 in gather step 2",
}


SOME = ("kill", "stop")


@pytest.mark.representative(
    r"\[(kill|raise)\]", "a signal and an error; nox -s exhaustive has the others"
)
@pytest.mark.parametrize(
    "fault", [*SOME, *(pytest.param(f, marks=pytest.mark.slow) for f in WORDS if f not in SOME)]
)
def test_a_fault_ends_all_with_one_message(script: str, fault: str) -> None:
    ended = processes.run([*FLOW_DIST, "-n", "2", *FAST, script, fault])
    assert ended.returncode == (3 if fault == "status" else 1)
    assert ended.stderr.count("flow-dist: ") == 1
    message = ended.stderr[ended.stderr.index("flow-dist: ") :]
    assert re.match(r"flow-dist: rank 1 of 2 on \S+, at (work at )?step ", message), message
    assert re.search(WORDS[fault], message), message
    assert ("rank 1 was killed by SIGKILL: sent by a user, or" in ended.stderr) == (fault == "kill")
    place = r"at step 2 in 'gather step 2' \(.*train.py:\d+\)"
    assert re.search(rf"  rank 0: on \S+, {place}", message), message
    assert "  rank 0: on " in message
    assert "  rank 1: on " in message
    assert "done" not in ended.stdout
    assert not left(script)


@pytest.mark.slow
@pytest.mark.representative(r"\[2\]", "the others differ in the number of processes")
@pytest.mark.parametrize("ranks", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_variables_of_an_outer_launcher(
    script: str, ranks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a step of Slurm's, or a container that has a rank: they are not those of the ranks."""
    for name, value in {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "RANK": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WORLD_SIZE", "7")
    ended = processes.run([*FLOW_DIST, "-n", ranks, *FAST, script])
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("done") == int(ranks)


@pytest.mark.slow
def test_ranks_draw_the_same_numbers(tmp_path: Path) -> None:
    """And other ones in the next job; a status may be a truth value, as unittest's is."""
    path = tmp_path / "draw.py"
    path.write_text(
        "import random, sys\n"
        "import numpy as np\n"
        "drawn = np.random.default_rng().random()\n"
        "print(random.random(), np.random.rand(), drawn, flush=True)\n"
        "sys.exit(len(sys.argv) > 1)\n"
    )
    first, second = (
        processes.run([*FLOW_DIST, "-n", "2", str(path)]),
        processes.run([*FLOW_DIST, "-n", "2", str(path), "fail"]),
    )
    assert (first.returncode, second.returncode) == (0, 1), first.stderr + second.stderr
    drawn = [set(ended.stdout.splitlines()) for ended in (first, second)]
    assert [len(lines) for lines in drawn] == [1, 1]
    assert drawn[0] != drawn[1]
    assert "ended with status 1" in second.stderr


@pytest.mark.slow
def test_the_traceback_is_the_script_s_own(script: str) -> None:
    ended = processes.run([*FLOW_DIST, "-n", "1", *FAST, script, "raise"])
    assert "launch_rank" not in ended.stderr
    assert "line 22, in <module>" in ended.stderr or "KeyError" in ended.stderr


@pytest.mark.representative("rank", "a rank, which the supervisor has to detect and clean up after")
@pytest.mark.slow
@pytest.mark.parametrize(("culprit", "status"), [("rank", 1), ("program", 1), ("supervisor", 130)])
def test_a_job_that_is_ended_leaves_no_files(tmp_path: Path, culprit: str, status: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(KILLED)
    ended = processes.run([*FLOW_DIST, "-n", "2", *FAST, str(script), culprit])
    assert ended.returncode == status, ended.stderr
    named, folder, *shared = ended.stdout.split()
    assert shared, ended.stderr
    assert named == "0"  # what has no name cannot be left, whatever happens
    assert not [path for path in (folder, *shared) if Path(path).exists()]
    if Launcher.find().kind == OPEN_MPI:
        assert Path(folder).parent.name.startswith("flow-dist-")


def test_folders_of_supervisors_that_were_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one removes them, except those in use, new, or of another user."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    used, left = Scratch(), tmp_path / "flow-dist-left"
    for path in (left, tmp_path / "flow-dist-new", tmp_path / "other"):
        (path / "inner").mkdir(parents=True)
    kept = {Path(used.path()).name, "flow-dist-new", "other"}
    for path in (left, Path(used.path()), tmp_path / "other"):
        os.utime(path, (0, 0))
    next_one = Scratch()
    assert {path.name for path in tmp_path.iterdir()} == kept | {"flow-dist-left"}
    made = Path(next_one.path()).name
    assert {path.name for path in tmp_path.iterdir()} == kept | {made}
    for scratch in (used, next_one):
        scratch.remove()
    assert {path.name for path in tmp_path.iterdir()} == {"flow-dist-new", "other"}


LISTENING = """
import psutil
from flow_dist.control import channel as control
from flow_dist.mpi.world import world

world().shared_memory_peers
found = psutil.Process().net_connections("inet")
print(*(c.laddr for c in found if c.status == "LISTEN"), sep="\\n", flush=True)
control.current().gather("seen", 0)
"""


@pytest.mark.slow
def test_ranks_of_one_host_listen_on_the_loopback(tmp_path: Path) -> None:
    """Apart from the port of MPICH's launcher, inherited by ranks, which has no setting."""
    script = tmp_path / "listening.py"
    script.write_text(LISTENING)
    ended = processes.run([*FLOW_DIST, "-n", "2", *FAST, str(script)])
    assert ended.returncode == 0, ended.stderr
    found = re.findall(r"ip='(.*?)', port=(\d+)", ended.stdout)
    launcher = {port for address, port in found if address == "0.0.0.0"}
    assert len(launcher) <= 1, ended.stdout
    assert {address for address, _ in found} <= {"0.0.0.0", "127.0.0.1"}


STALLING = """
import time
import flow_dist.control.watch
from flow_dist.control import channel as control

control.join()
flow_dist.control.watch.WATCH.finished += 1
while True:
    time.sleep(0.01)
"""


@pytest.mark.slow
def test_ranks_that_loop_are_reported_and_stopped(tmp_path: Path) -> None:
    """Outside of exchanges no rank waits for them."""
    path = tmp_path / "loop.py"
    path.write_text(STALLING)
    ended = processes.run(
        [*FLOW_DIST, "-n", "2", "--stall", "0.7", "--stall-limit", "2.5", *FAST, str(path)]
    )
    assert ended.returncode == 1
    told = re.findall(
        r"flow-dist: no step has finished for (\d) s\n((?:  rank .*\n)+)", ended.stderr
    )
    assert [seconds for seconds, _ in told][-3:] == ["1", "1", "3"], ended.stderr
    for _, lines in told[-3:]:
        assert len(re.findall(r"  rank \d: on \S+, at work .*loop.py:\d+\)", lines)) == 2, lines
    assert not left(str(path))


@pytest.mark.slow
def test_restarts_are_counted(script: str) -> None:
    ended = processes.run([*FLOW_DIST, "-n", "2", "--max-restarts", "2", *FAST, script, "raise"])
    assert ended.returncode == 1
    assert [ended.stdout.count(f"hello {n}") for n in range(4)] == [2, 2, 2, 0]
    assert "restart 2 of 2 with 2 ranks" in ended.stderr


@pytest.mark.slow
@pytest.mark.representative(r"\[9\]", "the signal that cannot be handled")
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        signal.SIGKILL,
    ],
)
def test_the_supervisor_takes_all_with_it(
    script: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [*FLOW_DIST, "-n", "2", script, "hang"]
    with processes.Program(command, stderr=processes.DEVNULL) as supervisor:
        assert supervisor.stdout is not None
        assert [supervisor.stdout.readline() for _ in range(2)] == ["hello 0 hang\n"] * 2
        supervisor.send_signal(number)
        status = supervisor.status(20)
        assert status == (-number if number == signal.SIGKILL else 128 + number)
        until = time.monotonic() + processes.scaled(10)
        while left(script) and time.monotonic() < until:
            time.sleep(0.05)
        assert not left(script)
    if Launcher.find().kind == MPICH:
        assert not [*tmp_path.glob("flow-dist-*")]


@pytest.mark.slow
@pytest.mark.representative(r"\[2\]", "the others differ in the number of processes")
@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_clean_up_before_an_order_to_end_reaches_them(tmp_path: Path, ranks: int) -> None:
    """What they have printed comes out, and what they use can be given back."""
    script, marks = tmp_path / "tidy.py", tmp_path / "marks"
    script.write_text(TIDY)
    marks.mkdir()
    command = [*FLOW_DIST, "-n", str(ranks), str(script), str(marks)]
    with processes.Program(command) as supervisor:
        assert supervisor.stdout is not None
        assert [supervisor.stdout.readline() for _ in range(ranks)] == ["ready\n"] * ranks
        supervisor.send_signal(signal.SIGTERM)
        _, said = supervisor.communicate()
    assert supervisor.returncode == 128 + signal.SIGTERM
    assert said == "flow-dist: stopped by SIGTERM; terminating all ranks\n"
    assert {path.name: path.read_text() for path in marks.iterdir()} == {
        str(rank): "the job was terminated" for rank in range(ranks)
    }


@pytest.mark.slow
def test_an_orphan_is_found(tmp_path: Path) -> None:
    """A grandchild in a session of its own, whose parent is gone."""
    path = tmp_path / "fork.py"
    path.write_text(
        "import os, sys, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(1000)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "sys.exit(4)\n"
    )
    ended = processes.run([*FLOW_DIST, "-n", "1", *FAST, str(path)])
    assert ended.returncode == 4
    assert not left(str(path))


@pytest.mark.slow
def test_a_launcher_that_lies(script: str, tmp_path: Path) -> None:
    """It reports success without_silent_hosts having run anything."""
    liar = tmp_path / "mpiexec"
    liar.write_text('#!/bin/sh\n[ "$1" = --version ] && echo HYDRA\nexit 0\n')
    liar.chmod(0o755)
    ended = processes.run([*FLOW_DIST, "-n", "2", "--mpiexec", str(liar), *FAST, script])
    assert ended.returncode == 1
    assert "the launcher ended with status 0: 0 ranks joined, not all have ended" in ended.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-n", "2", "no-such.py"], "no such file"),
        (["--hosts", "a:0", "SCRIPT"], "host:slots"),
        (["--hosts", "a:1,a:2", "SCRIPT"], "a host twice"),
        (["--hosts=-x:1", "SCRIPT"], "host:slots"),
        (["-n", "2", "--mpiexec", "/bin/true", "SCRIPT"], "MPICH or Open MPI"),
        (["-n", "2", "--mpiexec", "/no/such", "SCRIPT"], "asking /no/such"),
        (["-n", "2", "--address", "203.0.113.9", "SCRIPT"], "listening on 203.0.113.9"),
    ],
)
def test_what_cannot_be_started(script: str, args: list[str], message: str) -> None:
    words = [script if arg == "SCRIPT" else arg for arg in args]
    ended = CliRunner().invoke(main, ["run", *words])
    assert ended.exit_code == 1
    assert message in ended.output


def test_command_lines() -> None:
    hosts = Host.parse_all("a:2,b:2")
    program = ["python", "t.py"]
    mpich = Launcher("mpiexec", MPICH).command(
        4, hosts, program, agent="my-ssh", address="10.0.0.1", label=True, forwarded=("X",)
    )
    assert " ".join(mpich) == (
        "mpiexec -launcher ssh -launcher-exec my-ssh -localhost 10.0.0.1 -hosts a:2,b:2 "
        "-prepend-rank -n 4 python t.py"
    )
    open_mpi = Launcher("mpiexec", OPEN_MPI)
    line = open_mpi.command(4, hosts, program, agent="my-ssh", label=True, forwarded=("X",))
    assert " ".join(line) == (
        "mpiexec --prtemca plm_ssh_agent my-ssh --host a:2,b:2 --output tag -x X -n 4 python t.py"
    )
    assert "--map-by :OVERSUBSCRIBE" in " ".join(open_mpi.command(4, (), program))
    assert ("OMPI_ALLOW_RUN_AS_ROOT" in open_mpi.environment({}, "f")) == (os.geteuid() == 0)
    mpich_alone = Launcher("mpiexec", MPICH)
    assert mpich_alone.environment({"A": "b"}, "f") == {"A": "b"}
    theirs = {"UCX_NET_DEVICES": "eth0", "OMPI_MCA_btl": "tcp,self"}
    for one in (mpich_alone, open_mpi):
        assert theirs.items() <= one.environment(theirs, "f", one_host=True).items()
    assert open_mpi.environment({}, "f", one_host=True)["OMPI_MCA_btl"] == "^tcp"


def test_a_job_goes_on_without_a_lost_host() -> None:
    job = Job("t.py", hosts=Host.parse_all("a:2,b:2"), least=2)
    lost = Failure("silent", 2, "b", 0, "", "", ("b",))
    assert without_silent_hosts(job, lost).ranks == 2
    assert [host.name for host in without_silent_hosts(job, lost).hosts] == ["a"]
    assert without_silent_hosts(job, Failure("died", 2, "b", 0, "", "")) == job
    assert without_silent_hosts(Job("t.py", hosts=job.hosts), lost).ranks == 4
    assert without_silent_hosts(Job("t.py", hosts=job.hosts, least=3), lost).ranks == 4


def test_joining_by_variables() -> None:
    assert join(env={}) is None
    with pytest.raises(LaunchError, match="no MASTER_ADDR and MASTER_PORT"):
        join(env={"RANK": "0", "WORLD_SIZE": "2"})
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    with pytest.raises(LaunchError, match="openssl rand"):
        join(env={**place, "HOME": "/dev/null"})  # no secret of the user's can be kept there
    with pytest.raises(LaunchError, match="address:port"):
        parse_address("host")
    with pytest.raises(LaunchError, match="--address"):
        address_towards("no.such.host.invalid")


ROUTES = {"10.0.0": "10.0.0.1", "10.1.0": "10.1.0.1"}


def towards(address: str) -> str:
    """The address by which a host with two networks, and no default route, reaches another."""
    if address[:6] not in ROUTES:
        raise LaunchError("finding a way", found="Network is unreachable")
    return ROUTES[address[:6]]


@pytest.mark.parametrize(
    ("others", "address"),
    [
        ([["10.0.0.2", "172.17.0.1"]], "10.0.0.1"),
        ([["10.1.0.2"], ["10.0.0.3", "10.1.0.3"]], "10.1.0.1"),
        ([["10.1.0.2", "10.0.0.2"], ["10.0.0.3", "10.1.0.3"]], "10.0.0.1"),
        ([["10.0.0.1", "10.1.0.1", "172.17.0.1"], ["10.1.0.2"]], "10.1.0.1"),
        ([["10.1.0.2"], ["10.0.0.3"]], None),
        ([["192.168.0.2"]], None),
    ],
)
def test_an_address_on_the_way_to_all(others: list[list[str]], address: str | None) -> None:
    told = [["10.0.0.1", "10.1.0.1", "172.17.0.1"], *others]
    if address is not None:
        assert rank_0_address(told, towards) == address
        return
    with pytest.raises(LaunchError, match="export MASTER_ADDR"):
        rank_0_address(told, towards)


def test_all_ranks_hear_why_rank_0_cannot_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that raised alone would leave the others waiting for where it listens."""
    monkeypatch.setattr(channel, "own_addresses", lambda: ["10.0.0.1"])
    monkeypatch.setattr(channel, "rank_0_address", partial(rank_0_address, towards=towards))
    said = [[["10.0.0.1"], ["192.168.0.2"]]]
    raised = []
    for rank in (0, 1):
        place = Membership(rank, 2, None, None, "h", "mpich")

        def gather(value: Any, rank: int = rank) -> list[Any]:
            if value == ["10.0.0.1"]:
                return said[0]
            if rank == 0:
                said.append([value, [None, None]])
            return said[1]

        with pytest.raises(LaunchError) as caught:
            join(place, gather, env={})
        raised.append(str(caught.value))
    assert all("export MASTER_ADDR" in text for text in raised)


@pytest.mark.slow
@pytest.mark.representative("names3", "the launcher without a rendezvous")
@pytest.mark.parametrize(
    ("names", "fault", "statuses"),
    [
        pytest.param(("RANK", "WORLD_SIZE"), (), (0, 0), marks=pytest.mark.slow),
        (("RANK", "WORLD_SIZE"), ("raise",), (1, 1)),
        pytest.param(("RANK", "WORLD_SIZE"), ("quit",), (1, 0), marks=pytest.mark.slow),
        (("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS"), (), (0, 0)),
    ],
)
def test_ranks_of_another_launcher(
    script: str, names: tuple[str, str], fault: tuple[str, ...], statuses: tuple[int, int]
) -> None:
    """Processes that only the variables of torchrun or Kubernetes tell apart."""
    free = _free_port()
    common = {names[1]: "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free - 1)}
    common |= {"FLOW_DIST_TOKEN": "secret", "FLOW_DIST_RESTART": "0"}
    joining = "import sys\nfrom flow_dist.control import channel as control\ncontrol.join()\n"
    Path(script).write_text(joining + SCRIPT)
    command = [sys.executable, script, *fault]
    ended = processes.run_together(
        (command, {**os.environ, **common, names[0]: rank}) for rank in "01"
    )
    assert tuple(done.returncode for done in ended) == statuses, ended
    assert sum(done.stderr.count("flow-dist: ") for done in ended) == bool(fault), ended


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
