"""Jobs with oneDNN's kernels and passes, beside the same jobs with numpy's."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

library = pytest.importorskip("flow_onednn.library")
if not library.available():
    pytest.skip(f"no oneDNN: {library.state().reason}", allow_module_level=True)

LENET = """
import json, sys
import numpy as np
import oneflow as flow
import oneflow.typing as tp

BATCH, FORMAT = 8, sys.argv[1]

def conv(name, x, filters):
    return flow.layers.conv2d(
        x, filters, 5, padding="SAME", data_format=FORMAT, activation=flow.nn.relu, name=name,
        kernel_initializer=flow.truncated_normal_initializer(stddev=0.1),
    )

@flow.global_function(type="train")
def train(
    x: tp.Numpy.Placeholder((BATCH, 1, 28, 28)), y: tp.Numpy.Placeholder((BATCH,), flow.int32)
) -> tp.Numpy:
    x = x if FORMAT == "NCHW" else flow.transpose(x, (0, 2, 3, 1))
    x = flow.nn.max_pool2d(conv("conv1", x, 8), 2, 2, "VALID", FORMAT)
    x = flow.nn.max_pool2d(conv("conv2", x, 16), 2, 2, "SAME", FORMAT)
    x = flow.layers.batch_normalization(x, axis=1 if FORMAT == "NCHW" else 3, name="bn")
    x = flow.reshape(flow.nn.relu(x), (BATCH, -1))
    x = flow.layers.dense(
        x, 32, activation=flow.nn.relu, name="fc1",
        kernel_initializer=flow.truncated_normal_initializer(stddev=0.1),
    )
    x = flow.nn.dropout(x, 0.5)
    x = flow.layers.dense(
        x, 10, name="fc2", kernel_initializer=flow.truncated_normal_initializer(stddev=0.1)
    )
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, x)
    schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.005])
    flow.optimizer.SGD(schedule, momentum=0.5).minimize(loss)
    return loss

rng = np.random.default_rng(0)
losses = []
for _ in range(50):
    x = rng.uniform(-0.5, 0.5, (BATCH, 1, 28, 28)).astype("f")
    losses.append(train(x, rng.integers(0, 10, BATCH).astype("i")).tolist())
kernels = [task.kernel for task in train.plan().tasks]
print(json.dumps({"losses": losses, "kernels": kernels}))
"""


@functools.cache
def run(code: str, *arguments: str, **settings: str) -> Any:
    """What a program prints, in a process of its own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FLOW_", "ONEFLOW_"))}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**kept, **settings}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("form", ["NCHW", "NHWC"])
def test_fifty_steps_of_a_convolutional_network_lose_the_same(form: str) -> None:
    numpy = run(LENET, form, FLOW_DISABLE_PLUGINS="flow-onednn")
    onednn = run(LENET, form, FLOW_VERIFY_PASSES="1")
    np.testing.assert_allclose(onednn["losses"], numpy["losses"], rtol=1e-5, atol=1e-6)
    assert not any(k.startswith("onednn") for k in numpy["kernels"])
    taken = {k for k in onednn["kernels"] if k.startswith("onednn")}
    assert {"onednn.onednn_matmul", "onednn.onednn_norm_relu"} <= taken
    if form == "NCHW":
        assert {"onednn.onednn_conv", "onednn.onednn_max_pool", "onednn.onednn_reorder"} <= taken


def test_activations_are_reordered_once_per_border() -> None:
    kernels = run(LENET, "NCHW", FLOW_VERIFY_PASSES="1")["kernels"]
    assert kernels.count("onednn.onednn_reorder") == 2  # the flattening, and its gradient
    assert "numpy.transpose" not in kernels
