"""One logical program on several emulated devices equals one device."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
import numpy as np
import oneflow as flow
import oneflow.typing as tp

form, count = sys.argv[1], int(sys.argv[2])
DISTRIBUTE = {"data": {}, "rows": {"model_distribute": flow.distribute.split(0)}}


def mlp(x, **hint):
    h = flow.layers.dense(x, 16, activation=flow.nn.relu, kernel_initializer=INIT, name="h", **hint)
    h = flow.nn.dropout(h, rate=0.3, name="drop")
    return flow.layers.dense(h, 5, kernel_initializer=INIT, name="o")


def conv(x):
    x = flow.reshape(x, (20, 3, 2, 2))
    x = flow.layers.conv2d(x, 4, 3, padding="SAME", kernel_initializer=INIT, name="c")
    x = flow.nn.relu(flow.layers.batch_normalization(x, axis=1, name="bn"))
    x = flow.reshape(flow.nn.max_pool2d(x, 2, 2, "VALID"), (20, -1))
    return flow.layers.dense(x, 5, kernel_initializer=INIT, name="o")


INIT = flow.random_normal_initializer(stddev=0.3)


def losses(devices, body, **hint):
    flow.clear_default_session()

    @flow.global_function(type="train")
    def job(
        x: tp.Numpy.Placeholder((20, 12)), y: tp.Numpy.Placeholder((20,), dtype=flow.int32)
    ) -> tp.Numpy:
        with flow.scope.placement("gpu", devices):
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, body(x, **hint))
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.05])
            flow.optimizer.Adam(rate).minimize(loss)
        return loss

    rng = np.random.RandomState(0)
    steps = [(rng.rand(20, 12).astype("f4"), rng.randint(0, 5, 20).astype("i4")) for _ in range(5)]
    return np.array([job(*step) for step in steps])


body = conv if form == "conv" else mlp
one = losses("0:0", body)
many = losses(f"0:0-{count - 1}", body, **DISTRIBUTE.get(form, {}))
again = losses(f"0:0-{count - 1}", body, **DISTRIBUTE.get(form, {}))
np.testing.assert_allclose(many, one, rtol=2e-5, atol=2e-6)
np.testing.assert_array_equal(many, again)
print("equal")
"""


@pytest.mark.arithmetic
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("form", ["data", "rows", "conv"])
def test_training_on_many_devices_equals_one(form: str, count: int, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(script), form, str(count)],
        env={"ONEFLOW_EMULATE_GPUS": "4", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "equal\n"
