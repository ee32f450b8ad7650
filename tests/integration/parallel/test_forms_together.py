"""Forms of parallel training at once: stages of replicas, micro-batches, shards, recomputation."""

from collections.abc import Iterator
from typing import Any

import pytest
from parallel_forms import BATCH, assert_close, assert_same, dense, emulated, optimizer, train

import oneflow as flow
import oneflow.typing as tp
from flow_core.plan import Plan


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"], autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    with emulated(4, request.param):
        yield request.param


def job(stages: tuple[str, str], steps: int, mode: str | None) -> Any:
    config = flow.function_config()
    config.train.num_gradient_accumulation_steps(steps)
    if mode:
        config.train.optimizer_placement_optimization_mode(mode)
        config.train.optimizer_placement_optimization_threshold(1)

    @flow.global_function(type="train", function_config=config)
    def job(
        x: tp.Numpy.Placeholder((BATCH, 12)), y: tp.Numpy.Placeholder((BATCH,), dtype=flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement("gpu", stages[0]):
            h = dense(x, 12, "in")
            with flow.experimental.scope.config(checkpointing=True):
                h = h + flow.math.tanh(dense(flow.math.gelu(dense(h, 24, "a")), 12, "b"))
        with flow.scope.placement("gpu", stages[1]):
            with flow.experimental.scope.config(checkpointing=True):
                h = h + flow.math.tanh(dense(flow.math.gelu(dense(h, 24, "c")), 12, "d"))
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, dense(h, 5, "o"))
            optimizer("clipped").minimize(flow.math.reduce_mean(loss))
        return loss

    return job


@pytest.mark.slow
@pytest.mark.representative(
    "three threads-distributed_split", "streams on threads of their own, and states in parts"
)
@pytest.mark.arithmetic
@pytest.mark.parametrize("mode", ["distributed_split", "non_distributed"])
def test_two_stages_of_two_replicas_equal_one_device(mode: str) -> None:
    many = train(job(("0:0-1", "0:2-3"), 3, mode), steps=3)
    flow.clear_default_session()
    assert_same(train(job(("0:0-1", "0:2-3"), 3, mode), steps=3), many)
    flow.clear_default_session()
    assert_close(many, train(job(("0:0", "0:0"), 1, None), steps=3))


@pytest.mark.slow
@pytest.mark.representative(
    r"\[three threads\]", "streams that wait for each other; one thread has no waits"
)
def test_its_plan_goes_through_json() -> None:
    plan = job(("0:0-1", "0:2-3"), 2, "distributed_split").plan()
    assert len(plan.streams) > 4
    assert any(task.waits for task in plan.tasks)
    assert Plan.from_json(plan.to_json()) == plan
