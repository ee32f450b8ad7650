"""The comm kit on several processes, with the installed MPI."""

import pytest
from launching import HELPERS, lines_of, run_script
from two_hosts import two_hosts, why_not

pytestmark = pytest.mark.usefixtures("forked_programs")

KIT = HELPERS / "run_comm_kit.py"


@pytest.mark.slow
def test_kit_on_three_processes() -> None:
    """Four devices on three processes: one of them has two."""
    lines = lines_of(run_script(3, KIT, "mpi", "float32", "bool"))
    assert lines == 3 * ["167 checks"]


@pytest.mark.representative(r"\[2\]", "the others differ in the number of processes")
@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_kit_with_devices_that_the_host_cannot_read(processes: int) -> None:
    helpers = str(HELPERS.parents[3] / "tests" / "helpers")
    lines = lines_of(run_script(processes, KIT, "staged", "float32", "bool", PYTHONPATH=helpers))
    assert lines == processes * ["167 checks"]


@pytest.mark.representative(r"\[2-0\]", "the others differ in the number of processes")
@pytest.mark.slow
@pytest.mark.parametrize("shared", ["0", "1"])
@pytest.mark.parametrize("processes", [2, 3, 4])
def test_kit_with_all_element_types(processes: int, shared: str) -> None:
    """Large boxes are sent, or read where they lie."""
    done = run_script(processes, KIT, "mpi", timeout=300, FLOW_DIST_SHARED_MEMORY=shared)
    lines = lines_of(done)
    assert lines == processes * ["440 checks"]


@pytest.mark.slow
def test_kit_with_collectives_of_mpi() -> None:
    """All-reduces as between many processes; groups of two are not all processes."""
    settings = {"FLOW_DIST_SHARED_MEMORY": "0", "OMP_NUM_THREADS": "1"}
    done = run_script(4, KIT, "collectives", "float32", "bool", timeout=300, **settings)
    assert lines_of(done) == 4 * ["167 checks"]


@pytest.mark.representative(r"\[2\]", "the others differ in the number of processes")
@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3, 4])
def test_kit_over_two_hosts(processes: int) -> None:
    """Hosts without a default route: the processes find each other by what network they share."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with two_hosts() as hosts:
        done = run_script(processes, KIT, "mpi", timeout=300, hosts=hosts)
    assert lines_of(done) == processes * ["440 checks"]
