"""Buckets of gradients: settings, place in the plan, and the same bits with and without."""

from typing import Any

import numpy as np
import pytest
from parallel_forms import assert_same, batches, dense, emulated, make_job, train

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import ConfigError
from flow_core.observe.text import link_bytes


def ready(plan: Any, reduction: Any) -> int:
    """When the last gradient of a reduction is there."""
    until = plan.tasks.index(reduction)
    makers = [i for i, t in enumerate(plan.tasks[:until]) if set(t.outputs) & set(reduction.inputs)]
    return max(makers)


def reduced(apart: bool, **changes: Any) -> tuple[Any, list[int], int]:
    """Losses, how many gradients each reduction has, and the bytes that travel in a step.

    Devices that share a memory sum gradients before they would travel.
    """
    flow.clear_default_session()
    config = flow.function_config()
    config.share_replicas(not apart)
    for name, value in changes.items():
        getattr(config, name)(value)

    @flow.global_function(type="train", function_config=config)
    def job(
        x: tp.Numpy.Placeholder((18, 12)), y: tp.Numpy.Placeholder((18,), dtype=flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement("gpu", "0:0-3"):
            for i in range(4):
                x = flow.nn.relu(dense(x, 15, f"h{i}"))
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, x)
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.05])
            flow.optimizer.Adam(rate).minimize(loss)
        return loss

    losses = np.array([job(*feeds) for feeds in batches(5, 18)])
    plan = job.plan()
    reductions = [t for t in plan.tasks if t.kernel == "all_reduce"]
    for first, later in zip(reductions, reductions[2:-1], strict=False) if apart else ():
        # one of these transfers lasts longer than the ops between two gradients
        assert plan.tasks.index(first) < ready(plan, later), "goes while the backward pass goes on"
    return losses, [len(t.attrs["members"]) or 1 for t in reductions], plan.bytes_per_step


@pytest.mark.slow
def test_buckets_change_when_gradients_travel_and_nothing_else() -> None:
    with emulated(4, without=()):
        losses, counts, nbytes = reduced(True)
        assert counts == [8]
        small = 15 * 16 * 4 / 2**20
        for apart, changes, tasks in (
            (True, {"enable_all_reduce_group": False}, 8),
            (True, {"all_reduce_group_min_mbyte": small}, 4),
            (False, {}, None),
            (False, {"enable_all_reduce_group": False}, None),
            (False, {"all_reduce_group_min_mbyte": 1e-3}, None),
        ):
            others, counts, same = reduced(apart, **changes)
            np.testing.assert_array_equal(others, losses)
            assert same == nbytes
            assert sum(counts) == 8
            assert tasks in (None, len(counts))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("nccl_fusion_threshold_mb", -1),
        ("nccl_fusion_max_ops", 0),
        ("enable_fusion", 1),
        ("nccl_fusion_reduce", "yes"),
    ],
)
def test_wrong_settings_are_refused(name: str, wrong: int) -> None:
    with pytest.raises(ConfigError, match=name):
        getattr(flow.config.collective_boxing, name)(wrong)
    with pytest.raises(ConfigError, match="at least 0"):
        flow.function_config().all_reduce_group_min_mbyte(-1)


def test_settings_of_the_session_reach_the_pass() -> None:
    from flow_core.frontend.job.compile_request import bucketing
    from flow_core.frontend.session.session import default_session

    class Build:
        session, config = default_session(), flow.function_config()

    def asked() -> tuple[Any, ...]:
        found = bucketing(Build)
        return found.threshold_mb, found.max_ops, found.collectives

    options = flow.config.collective_boxing
    assert asked() == (16, 64, ("all_reduce",))
    options.nccl_fusion_threshold_mb(4)
    options.nccl_fusion_max_ops(3)
    assert asked() == (4, 3, ("all_reduce",))
    options.nccl_fusion_all_reduce(False)
    assert asked() == (4, 3, ())
    options.nccl_fusion_all_gather(True)
    options.nccl_fusion_reduce()
    assert asked() == (4, 3, ("reduce", "all_gather"))
    options.enable_fusion(False)
    assert asked() == (4, 3, ())


@pytest.mark.representative("distributed_split", "states in parts; the other mode has whole ones")
@pytest.mark.parametrize("mode", ["distributed_split", "non_distributed"])
@pytest.mark.parametrize(
    "collective", ["reduce", "reduce_scatter", "all_gather", "broadcast", "all_reduce"]
)
def test_other_collectives_go_together_where_asked(collective: str, mode: str) -> None:
    """Divided optimizer states: gradients are reduced to their owners, weights are gathered."""

    def run(fused: bool) -> tuple[Any, Any]:
        with emulated(4):
            getattr(flow.config.collective_boxing, f"nccl_fusion_{collective}")(fused)
            config = flow.function_config()
            config.optimizer_placement_optimization_mode(mode)
            config.optimizer_placement_optimization_threshold(1)
            job = make_job("0:0-3", deep, "momentum", config)
            found = train(job)
            predicted = {k: v for k, v in link_bytes(job.plan().ledger).items() if v}
            sent = {f"{a}->{b}": n for (a, b), n in job.executable().sent().items()}
            assert sent == {link: 4 * nbytes for link, nbytes in predicted.items()}
            return found, job.plan()

    (alone, before), (together, after) = run(False), run(True)
    assert_same(together, alone)
    assert after.bytes_per_step == before.bytes_per_step
    per_entry = lambda plan: [(e.value, e.steps, e.links) for e in plan.ledger]  # noqa: E731
    assert per_entry(after) == per_entry(before)
    counts = [sum(t.kernel == collective for t in plan.tasks) for plan in (before, after)]
    assert counts[1] < counts[0] or counts[0] <= 1
    members = [len(t.attrs["members"]) for t in after.tasks if t.kernel == collective]
    assert counts[0] <= 1 or max(members) > 1


def deep(x: Any) -> Any:
    for i in range(3):
        x = flow.nn.relu(dense(x, 16, f"h{i}"))
    return dense(x, 5, "o")
