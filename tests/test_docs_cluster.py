"""The commands of the page "From one process to a cluster" print the quoted output."""

import importlib.util
import os
import re
import shlex
import sys
from pathlib import Path

import processes
import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "cluster.md").read_text()
(PROGRAM,) = re.findall(r"```python\n(# train\.py\n.*?)```", PAGE, re.DOTALL)
SESSIONS = re.findall(r"```console\n(\$ .*?)```", PAGE, re.DOTALL)
COMMANDS = {
    "python": [sys.executable],
    "flow-dist": [sys.executable, "-c", "from flow_dist.cli import main; main()"],
    "rm": ["rm"],
}


def run(line: str, folder: Path) -> processes.Completed[str]:
    """Run a command line in a folder."""
    words = shlex.split(line)
    settings = dict(word.split("=") for word in words if re.fullmatch(r"[A-Z_]+=\w+", word))
    name, *rest = words[len(settings) :]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **settings}
    return processes.run([*COMMANDS[name], *rest], cwd=folder, env=env)


def quoted(session: str) -> list[tuple[str, str]]:
    """Return command lines and their quoted output."""
    parts = re.split(r"^\$ (.*)\n", session, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def test_the_page_has_a_session_per_part() -> None:
    assert [quoted(session)[-1][0].split()[-2:] for session in SESSIONS] == [
        ["python", "train.py"],
        ["2", "train.py"],
        ["1", "train.py"],
    ]


@pytest.mark.slow
def test_the_page_runs_as_written(tmp_path: Path) -> None:
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")
    (tmp_path / "train.py").write_text(PROGRAM)
    for session in SESSIONS:
        for line, printed in quoted(session):
            done = run(line, tmp_path)
            assert (done.returncode, done.stdout) == (0, printed), done.stderr
            if "FAIL_AT" in line:
                assert re.search(r"flow-dist: rank 1 of 2 .* died without an error", done.stderr)
                (waits,) = re.findall(r"rank 0 waits for it at step 45 in '.*?' \(.*?\)", PAGE)
                assert waits in done.stderr.replace(f"{tmp_path}/", "")
                assert re.search(r"resuming at step 40 from .*checkpoints", done.stderr)
