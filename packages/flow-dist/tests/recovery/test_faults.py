"""Faults of each kind: detected, named, restarted, with the right weights at the end."""

import re
import sys
from pathlib import Path

import fault_table
import processes
import pytest
from launching import HELPERS, launcher
from two_hosts import why_not


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    fault_table.undisturbed(folder)
    return folder


@pytest.mark.slow
@pytest.mark.representative("kill", "the most frequent fault; nox -s exhaustive has the others")
@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("damage", 5),
        *(
            pytest.param(kind, step, marks=pytest.mark.slow)
            for kind, step in (
                *(("kill", 1), ("stop", 3), ("raise", 7), ("link", 4), ("host", 6)),
                *(("feeds", 5), ("extra", 2), ("extra", 3), ("loop", 4)),
            )
        ),
    ],
)
def test_a_fault_costs_no_result(kind: str, step: int, tmp_path: Path, right: Path) -> None:
    reason = why_not() if kind in fault_table.OUTSIDE else None
    if reason is not None:
        pytest.skip(reason)
    with fault_table.place(kind) as hosts:
        found = fault_table.strike(kind, step, tmp_path, right, hosts)
    assert found.seconds is not None, found.output
    assert found.restarted, found.output
    assert found.passed_over, found.output
    assert found.right, found.output
    assert "rank 0: on " in found.output
    assert kind in fault_table.BY_SILENCE or "has not responded" not in found.output


DIVERGING = """
import numpy as np
import oneflow as flow
import oneflow.typing as tp
from flow_dist.bootstrap.membership import Membership


def job(name):
    def body(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-1"):
            w = flow.get_variable(name, (3, 2), initializer=flow.random_normal_initializer())
            return flow.matmul(x, w)
    body.__name__ = name
    return flow.global_function()(body)


jobs = [job("first"), job("second")]
for step in range(4):
    other = step == 2 and Membership.from_env().rank == 1
    for one in reversed(jobs) if other else jobs:
        one(np.ones((4, 3), np.float32))
"""


@pytest.mark.representative(
    "1:data", "a rank that crashes while it writes data, and again while it writes the list"
)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("crashes", "steps"),
    [
        ("1:data,1:list", ("2", "2")),
        ("0:mark,0:name", ("2", "2")),
        ("0:old,1:list", ("4", "4")),  # the second one does not come to that save any more
    ],
)
def test_crashes_while_saving_one_after_the_other(
    crashes: str, steps: tuple[str, str], tmp_path: Path, right: Path
) -> None:
    launcher()
    folder = tmp_path / "checkpoints"
    command = [sys.executable, "-c", "from flow_dist.cli import main; main()", "run", "-n", "2"]
    program = [str(HELPERS / "crash_saving.py"), str(folder), str(fault_table.STEPS)]
    done = processes.run(
        [*command, "--silence", "60", "--max-restarts", "2", *program],
        env={**fault_table.ENV, "CRASHES": crashes},
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    found = re.findall(r"resuming at step (\d+) from", done.stderr)
    assert found == list(steps[: len(found)]), done.stderr
    assert len(found) == (1 if "old" in crashes else 2)
    assert fault_table.same(folder, right)
    assert not list(folder.glob(".step-*")), "what was half written is gone"


@pytest.mark.slow
def test_ranks_that_call_jobs_in_another_order(tmp_path: Path) -> None:
    """In the first step that differs, and not where one of them has to wait at last."""
    script = tmp_path / "diverging.py"
    script.write_text(DIVERGING)
    command = [sys.executable, "-c", "from flow_dist.cli import main; main()", "run", "-n", "2"]
    done = processes.run([*command, str(script)])
    assert done.returncode == 1
    assert re.search(r"flow-dist: rank [01] of 2 on .* raised ProcessesDifferError", done.stderr)
    places = rf"\(at {script}:\d+\)"
    found = f"rank 0 in step 2 of job 'first' {places}; rank 1 in step 2 of job 'second' {places}"
    assert len(re.findall(found, done.stderr)) >= 2, done.stderr


@pytest.mark.exhaustive
@pytest.mark.timeout(100 * fault_table.PATIENCE)
def test_a_hundred_faults() -> None:
    outcomes = fault_table.run(100, seed=0)
    sys.stdout.write(fault_table.table(outcomes) + "\n")
    bad = [f"{o.kind} at step {o.step}:\n{o.output}" for o in outcomes if not o.good]
    assert not bad, "\n".join(bad)
