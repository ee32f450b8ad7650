"""Engines that restart ranks: simulated by their variables, and torchrun if it is installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import fault_table
import processes
import pytest
from launching import HELPERS, mpich

from flow_dist.bootstrap.engines import ENGINES, MPI_VARIABLES, tell_engine

PROGRAM = HELPERS / "restart_program.py"
STEPS = "8"
RESUMED = re.compile(r"resuming at step 4 ")
DIED = re.compile(r"flow-dist: rank 1 of 2 on .* died without an error")


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run without a fault."""
    folder = tmp_path_factory.mktemp("undisturbed")
    fault_table.undisturbed(folder)
    return folder


class SimulatedEngine:
    """An engine that starts two ranks, and restarts them after a failure.

    Args:
        name: "torchrun" terminates and restarts both ranks; "kubernetes" restarts each rank that
            fails, as a Job with a ``backoffLimit`` does, and tells them no number of restarts.
        folder: for the files with the output of the ranks.
    """

    def __init__(self, name: str, folder: Path) -> None:
        (self.engine,) = (engine for engine in ENGINES if engine.name == name)
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1] - 1
        self.env = {
            key: value for key, value in fault_table.ENV.items() if key not in MPI_VARIABLES
        }
        self.env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        self.env |= {"FLOW_DIST_TOKEN": "secret", self.engine.size: "2"}
        self.output = [folder / f"{rank}.txt" for rank in range(2)]

    def run(self, *program: str) -> str:
        """Run a program to its successful end, with at most one restart per rank."""
        self.folder.mkdir()
        with ExitStack() as stack:
            starts = [0, 0]
            ranks = [self._start(stack, program, rank, 0) for rank in range(2)]
            until = time.monotonic() + processes.scaled(processes.LIMIT)
            while any(process.poll() != 0 for process in ranks) and time.monotonic() < until:
                failed = [n for n, process in enumerate(ranks) if process.poll() not in (None, 0)]
                if failed and self.engine.restarts:
                    for process in ranks:
                        process.terminate()
                        process.status()
                    failed = [0, 1]
                for n in failed:
                    starts[n] += 1
                    assert starts[n] < 3, self._text()
                    ranks[n] = self._start(stack, program, n, starts[n])
                time.sleep(0.05)
            assert [process.poll() for process in ranks] == [0, 0], self._text()
        return self._text()

    def _start(
        self, stack: ExitStack, program: tuple[str, ...], rank: int, restarts: int
    ) -> processes.Program:
        env = {**self.env, self.engine.rank: str(rank)}
        if self.engine.restarts:
            env[self.engine.restarts] = str(restarts)
        file = stack.enter_context(self.output[rank].open("a"))
        command = [sys.executable, *program]
        return stack.enter_context(processes.Program(command, env=env, stdout=file, stderr=file))

    def _text(self) -> str:
        return "".join(path.read_text() for path in self.output)


@pytest.mark.slow
@pytest.mark.representative("torchrun", "the engine that tells ranks of the restart")
@pytest.mark.parametrize("name", ["torchrun", "kubernetes"])
def test_a_simulated_engine_restarts(name: str, tmp_path: Path, right: Path) -> None:
    """The final weights are those of an undisturbed run, and the failure was explained."""
    mpich()
    folder = tmp_path / "checkpoints"
    told = SimulatedEngine(name, tmp_path / "ranks").run(
        str(PROGRAM), str(folder), STEPS, "kill", "5"
    )
    assert DIED.search(told), told
    assert RESUMED.search(told), told
    assert fault_table.same(folder, right), told


@pytest.fixture
def torchrun() -> str:
    """The command of torchrun; skips the test where it is not installed."""
    found = shutil.which("torchrun", path=os.path.dirname(sys.executable)) or shutil.which(
        "torchrun"
    )
    if found is None:
        pytest.skip('torchrun is not installed: nox -s "peer(torchrun)"')
    mpich()
    return found


def under_torchrun(
    torchrun: str, restarts: int, folder: Path, fault: str
) -> processes.Completed[str]:
    """Run the program by two ranks of torchrun, which may be installed elsewhere."""
    command = [torchrun, "--nproc-per-node=2", f"--max-restarts={restarts}", "--no-python"]
    command[1:1] = [f"--log-dir={folder / 'logs'}"]
    command += [sys.executable, str(PROGRAM), str(folder / "checkpoints"), STEPS]
    env = {key: value for key, value in fault_table.ENV.items() if key not in MPI_VARIABLES}
    return processes.run([*command, fault, "5"], env=env)


@pytest.mark.slow
def test_torchrun_restarts(torchrun: str, tmp_path: Path, right: Path) -> None:
    done = under_torchrun(torchrun, 1, tmp_path, "kill")
    assert done.returncode == 0, done.stderr
    assert DIED.search(done.stderr), done.stderr
    assert RESUMED.search(done.stderr), done.stderr
    assert fault_table.same(tmp_path / "checkpoints", right), done.stderr


@pytest.mark.slow
def test_torchrun_shows_the_exception_of_a_rank(torchrun: str, tmp_path: Path) -> None:
    done = under_torchrun(torchrun, 0, tmp_path, "raise")
    assert done.returncode == 1
    said = r"traceback : KeyError: 'nothing' \(at .*restart_program.py:\d+\)"
    assert re.search(said, done.stderr), done.stderr


def test_errors_are_left_where_torchrun_looks_for_them(tmp_path: Path) -> None:
    file = tmp_path / "error.json"
    env = {"TORCHELASTIC_ERROR_FILE": str(file)}
    for message in ("the first error", "an error that it caused"):
        tell_engine("torchrun", message, env)
    assert json.loads(file.read_text())["message"]["message"] == "the first error"
    for source, others in (("torchrun", {}), ("slurm", env), ("alone", env)):
        tell_engine(source, "nothing is written", others)
    tell_engine("torchrun", "no folder", {"TORCHELASTIC_ERROR_FILE": str(tmp_path / "no" / "file")})
    assert [path.name for path in tmp_path.iterdir()] == ["error.json"]
