"""Buckets of gradients: settings, place in the plan, and the same bits with and without."""

import subprocess
import sys
from pathlib import Path

import pytest

import oneflow as flow
from flow_core.errors import ConfigError

PROGRAM = """
import numpy as np
import oneflow as flow
import oneflow.typing as tp

INIT = flow.random_normal_initializer(stddev=0.3)


def train(config):
    flow.clear_default_session()

    @flow.global_function(type="train", function_config=config)
    def job(
        x: tp.Numpy.Placeholder((18, 12)), y: tp.Numpy.Placeholder((18,), dtype=flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement("gpu", "0:0-3"):
            for i in range(4):
                x = flow.layers.dense(x, 15, kernel_initializer=INIT, name=f"h{i}")
                x = flow.nn.relu(x)
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, x)
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.05])
            flow.optimizer.Adam(rate).minimize(loss)
        return loss

    rng = np.random.RandomState(0)
    losses = [job(rng.rand(18, 12).astype("f4"), rng.randint(0, 5, 18).astype("i4"))
              for _ in range(5)]
    plan = job.plan()
    reduced = [t for t in plan.tasks if t.kernel == "all_reduce"]
    ready = [max(i for i, t in enumerate(plan.tasks) if set(t.outputs) & set(task.inputs)
                 and i < plan.tasks.index(task)) for task in reduced]
    assert ready == sorted(ready)
    for task, following in zip(reduced, ready[1:]):
        assert plan.tasks.index(task) < following, "goes while the backward pass goes on"
    return np.array(losses), [len(t.attrs["members"]) or 1 for t in reduced], plan.bytes_per_step


alone = flow.function_config()
alone.enable_all_reduce_group(False)
small = flow.function_config()
small.all_reduce_group_min_mbyte(15 * 16 * 4 / 2**20)
losses, counts, nbytes = train(None)
assert counts == [8], counts
for config in (alone, small):
    others, counts, same = train(config)
    np.testing.assert_array_equal(others, losses)
    assert same == nbytes
    assert sum(counts) == 8 and len(counts) == (8 if config is alone else 4), counts
"""


def test_buckets_change_when_gradients_travel_and_nothing_else(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={"ONEFLOW_EMULATE_GPUS": "4", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("nccl_fusion_threshold_mb", -1), ("nccl_fusion_max_ops", 0), ("enable_fusion", 1)],
)
def test_wrong_settings_are_refused(name: str, wrong: int) -> None:
    with pytest.raises(ConfigError, match=name):
        getattr(flow.config.collective_boxing, name)(wrong)
    with pytest.raises(ConfigError, match="at least 0"):
        flow.function_config().all_reduce_group_min_mbyte(-1)


def test_settings_of_the_session_reach_the_pass() -> None:
    from flow_core.frontend.compile import bucket_options
    from flow_core.frontend.session import default_session

    class Build:
        session, config = default_session(), flow.function_config()

    options = flow.config.collective_boxing
    assert bucket_options(Build) == {"bucket_mb": 16, "bucket_ops": 64}
    options.nccl_fusion_threshold_mb(4)
    options.nccl_fusion_max_ops(3)
    assert bucket_options(Build) == {"bucket_mb": 4, "bucket_ops": 3}
    options.nccl_fusion_all_reduce(False)
    assert bucket_options(Build) == {"bucket_mb": 0, "bucket_ops": 0}
