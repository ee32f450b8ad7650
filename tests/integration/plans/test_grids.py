"""The selector `grids`: grids of the same devices, and the signatures on them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.compiler.select import Problem, optimal
from flow_core.compiler.select import grids as searching
from flow_core.compiler.select.grids import grids, on_grid, over_grids
from flow_core.frontend.job.plan_agreement import SharedSelection, _selection
from flow_core.ir.graph import Graph
from flow_core.sharding.sbp import S

pytestmark = pytest.mark.arithmetic

HIDDEN, ROWS, CLASSES = 256, 256, 2048
INIT = flow.random_normal_initializer(stddev=0.05)
TWO_MACHINES = ["0:0-3", "1:0-3"]


def job_on(
    kind: str,
    devices: Any,
    hierarchy: Any = None,
    selector: str = "grids",
    sizes: tuple[int, int, int] = (ROWS, HIDDEN, CLASSES),
) -> Any:
    """A train job of two layers and a large classifier."""
    rows, hidden, classes = sizes
    config = flow.function_config()
    config.sbp_selector(selector)

    @flow.global_function(type="train", function_config=config)
    def job(
        x: tp.Numpy.Placeholder((rows, hidden)), y: tp.Numpy.Placeholder((rows,), flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement(kind, devices, hierarchy):
            up = flow.layers.dense(x, 4 * hidden, flow.math.tanh, kernel_initializer=INIT, name="u")
            x = x + flow.layers.dense(up, hidden, kernel_initializer=INIT, name="d")
            scores = flow.layers.dense(x, classes, kernel_initializer=INIT, name="scores")
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, scores, name="loss")
            flow.optimizer.Adam(1e-3, do_bias_correction=True).minimize(loss)
        return loss

    return job


def compiled(hierarchy: Any = None, selector: str = "grids") -> Any:
    """The job for two machines of four devices, in a session of its own."""
    flow.clear_default_session()
    flow.config.machine_num(2)
    return job_on("null", TWO_MACHINES, hierarchy, selector).compile()


def problem_of(job: Any) -> Problem:
    return job.compile().physical.problem


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_session")
def test_a_grid_over_machines_is_found_and_has_the_plan_of_the_typed_one() -> None:
    listed, searched, typed = (
        compiled(*how) for how in ((None, "optimal"), (None, "grids"), ((2, 4), "optimal"))
    )
    costs = [found.physical.report.cost.total for found in (listed, searched, typed)]
    assert costs[1] == costs[2] < 0.8 * costs[0]
    hierarchies = {op.placement.hierarchy for op in searched.optimized_logical.ops.values()}
    assert (2, 4) in hierarchies
    assert (8,) not in hierarchies
    tasks = [
        [(task.op, task.type, task.device, dict(task.attrs)) for task in found.plan.tasks]
        for found in (searched, typed)
    ]
    assert tasks[0] == tasks[1]
    rows = dict(searched.physical.report.rows())
    assert rows["grid"] == "2 x 4"
    assert rows["gap"].endswith("among one dimension and 2 x 4, 4 x 2")


@pytest.mark.usefixtures("fresh_session")
@pytest.mark.parametrize(("hierarchy", "expected"), [(None, 2), ((2, 2), 1), ((4,), 2)])
def test_a_hierarchy_of_the_program_is_kept(hierarchy: Any, expected: int) -> None:
    problem = problem_of(job_on("null", "0:0-3", hierarchy, "greedy"))
    assert len(grids(problem.graph)) == expected
    if hierarchy == (2, 2):
        assert over_grids(problem).hierarchy is None


@pytest.mark.usefixtures("fresh_session")
def test_a_request_holds_in_each_dimension() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((8, 8))) -> tp.Numpy:
        with flow.scope.placement("null", "0:0-3"):
            x = flow.math.tanh(x).with_distribute(flow.distribute.split(1))
            return flow.math.exp(x)

    problem = on_grid(problem_of(job), (2, 2))
    wanted = {op.sbp for op in problem.graph.ops.values() if op.sbp}
    assert wanted == {((S(1), S(1)),)}
    found = {layout.sbp for layout in optimal(problem).layouts.values()}
    assert (S(1), S(1)) in found


def grid_only(graph: Graph) -> list[tuple[int, ...] | None]:
    return [(2, 2)]


@pytest.mark.usefixtures("fresh_session")
def test_a_step_on_a_grid_has_the_losses_of_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "grids", grid_only)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 6), np.float32)
    y = rng.integers(0, 12, 8).astype(np.int32)
    losses = []
    for devices in ("0:0", "0:0-3"):
        flow.clear_default_session()
        job = job_on("cpu", devices, sizes=(8, 6, 12))
        losses.append([job(x, y) for _ in range(3)])
        hierarchies = {
            op.placement.hierarchy for op in job.compile().optimized_logical.ops.values()
        }
        assert ((2, 2) in hierarchies) == (devices == "0:0-3")
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


@pytest.mark.usefixtures("fresh_session")
def test_a_job_reads_the_variables_of_another_jobs_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "grids", grid_only)
    job = job_on("cpu", "0:0-3", sizes=(8, 6, 12))
    x, y = np.ones((8, 6), np.float32), np.zeros(8, np.int32)
    job(x, y)

    @flow.global_function()
    def read() -> tp.Numpy:
        with flow.scope.placement("cpu", "0:0-3"):
            return flow.get_variable("scores-weight", (12, 6), initializer=INIT) * 2.0

    np.testing.assert_array_equal(read(), 2 * flow.get_all_variables()["scores-weight"].numpy())


class Rank:
    """One of two processes; rank 0 tells the other one its selection."""

    def __init__(self, rank: int, told: list[bytes]) -> None:
        self.rank, self._told = rank, told

    def gather(self, data: bytes, what: str) -> list[bytes]:
        if self.rank == 0:
            self._told.append(data)
        return self._told[:1]


@pytest.mark.usefixtures("fresh_session")
def test_other_processes_take_the_grid_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "grids", grid_only)
    job, told = job_on("cpu", "0:0-3", selector="greedy"), list[bytes]()
    problem = problem_of(job)
    ours, theirs = (SharedSelection(Rank(rank, told), "job", "grids")(problem) for rank in (0, 1))  # type: ignore[arg-type]
    assert theirs.hierarchy == ours.hierarchy == (2, 2)
    assert theirs.signatures == ours.signatures
    assert theirs.layouts == ours.layouts
    assert _selection(problem, {"signatures": {}, "hierarchy": None}) is None
    assert json.loads(told[0])["hierarchy"] == [2, 2]
