"""Ranks of one host divide its cores."""

from pathlib import Path

import pytest
from launching import lines_of, mpich, run_script

from flow_core.base.thread_budget import usable_cores

SHARES = """
from flow_core.frontend.session.session import default_session
from flow_core.base.thread_pools import blas, process_budget
session = default_session()
assert process_budget() == session.budget and blas().get() == session.budget.count
print(session.world.gather(str(session.budget).encode(), "a test"))
"""


@pytest.mark.slow
def test_two_processes_divide_the_cores_that_both_may_use(tmp_path: Path) -> None:
    mpich()  # which binds no process to cores
    script = tmp_path / "shares.py"
    script.write_text(SHARES)
    cores = len(usable_cores())
    settings = {"OMP_NUM_THREADS": "", "OPENBLAS_NUM_THREADS": "", "FLOW_DIST_OUTPUT": "all"}
    share = f"{max(1, cores // 2)} by {cores} cores for 2 processes".encode()
    assert lines_of(run_script(2, script, **settings)) == [str((share, share))] * 2


@pytest.mark.slow
def test_a_wish_goes_before_the_share(tmp_path: Path) -> None:
    script = tmp_path / "shares.py"
    script.write_text(SHARES)
    settings = {"ONEFLOW_CPU_THREADS": "3", "OPENBLAS_NUM_THREADS": "", "FLOW_DIST_OUTPUT": "all"}
    wish = b"3 by ONEFLOW_CPU_THREADS"
    assert lines_of(run_script(2, script, **settings)) == [str((wish, wish))] * 2
