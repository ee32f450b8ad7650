"""Jobs with oneDNN's kernels and passes, beside the same jobs with numpy's."""

from __future__ import annotations

import functools
import json
import os
import sys
from typing import Any

import numpy as np
import processes
import pytest

pytestmark = pytest.mark.arithmetic

library = pytest.importorskip("flow_onednn.library")
if not library.available():
    pytest.skip(f"no oneDNN: {library.state().reason}", allow_module_level=True)

LENET = """
import json, sys
import numpy as np
import oneflow as flow
import oneflow.typing as tp

BATCH, FORMAT, PLACE = 8, *sys.argv[1:]
if PLACE.startswith("gpu"):
    flow.config.gpu_device_num(2)

def conv(name, x, filters):
    return flow.layers.conv2d(
        x, filters, 5, padding="SAME", data_format=FORMAT, activation=flow.nn.relu, name=name,
        kernel_initializer=flow.truncated_normal_initializer(stddev=0.1),
    )

@flow.global_function(type="train")
def train(
    x: tp.Numpy.Placeholder((BATCH, 1, 28, 28)), y: tp.Numpy.Placeholder((BATCH,), flow.int32)
) -> tp.Numpy:
    with flow.scope.placement(*PLACE.split("/")):
        return network(x, y)

def network(x, y):
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
    command = [sys.executable, "-c", code, *arguments]
    done = processes.run(command, env={**kept, **settings}, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.representative("NHWC", "the others differ in the layout")
@pytest.mark.parametrize("form", ["NCHW", "NHWC"])
def test_fifty_steps_of_a_convolutional_network_lose_the_same(form: str) -> None:
    """On some processors a relu is a rounding away from zero at some step, and moves the rest."""
    numpy = run(LENET, form, "cpu/0:0", FLOW_DISABLE_PLUGINS="flow-onednn")
    onednn = run(LENET, form, "cpu/0:0")
    for steps, close in ((25, 1e-5), (50, 5e-5)):
        found, wanted = (run_["losses"][:steps] for run_ in (onednn, numpy))
        np.testing.assert_allclose(found, wanted, rtol=close, atol=close / 10)
    assert not any(k.startswith("onednn") for k in numpy["kernels"])
    taken = {k for k in onednn["kernels"] if k.startswith("onednn")}
    assert {"onednn.onednn_matmul", "onednn.onednn_norm_relu"} <= taken
    if form == "NCHW":
        assert {"onednn.onednn_conv", "onednn.onednn_reorder"} <= taken
        assert "c.onednn_max_pool" in onednn["kernels"]


def test_activations_are_reordered_once_per_border() -> None:
    kernels = run(LENET, "NCHW", "cpu/0:0")["kernels"]
    assert kernels.count("onednn.onednn_reorder") == 2  # the flattening, and its gradient
    assert "numpy.transpose" not in kernels


MASKED = """
import json
import numpy as np
import oneflow as flow
import oneflow.typing as tp

def conv(name, x):
    return flow.layers.conv2d(x, 8, 3, padding="SAME", name=name)

@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((2, 3, 6, 5))) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
    x = flow.nn.dropout(flow.nn.leaky_relu(conv("conv1", x), 0.3), 0.5)
    x = conv("conv2", flow.where(x > 0.01, x, flow.math.tanh(x)))
    loss = flow.math.reduce_mean(flow.math.square(x))
    schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.5])
    flow.optimizer.SGD(schedule, momentum=0).minimize(loss)
    return loss, x > 0.01, flow.cast(x, flow.double)

rng = np.random.default_rng(0)
found = [train(rng.uniform(-1, 1, (2, 3, 6, 5)).astype("f")) for _ in range(3)]
kernels = [task.kernel for task in train.plan().tasks]
print(json.dumps({"found": [[x.tolist() for x in step] for step in found], "kernels": kernels}))
"""


@pytest.mark.slow
def test_masks_and_other_element_types_change_layouts_too() -> None:
    numpy = run(MASKED, FLOW_DISABLE_PLUGINS="flow-onednn")
    onednn = run(MASKED)
    for got, want in zip(onednn["found"], numpy["found"], strict=True):
        for x, y in zip(got, want, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    assert {"onednn.onednn_conv", "onednn.onednn_reorder", "numpy.transpose"} <= {
        *onednn["kernels"]
    }


EMBEDDING = """
import json, sys
import numpy as np
import oneflow as flow
import oneflow.typing as tp

TIED, RULE = sys.argv[1] == "tied", sys.argv[2]

@flow.global_function(type="train")
def train(
    ids: tp.Numpy.Placeholder((4, 6), flow.int32), y: tp.Numpy.Placeholder((24,), flow.int32)
) -> tp.Numpy:
    table = flow.get_variable("table", (50, 16), initializer=flow.random_normal_initializer())
    x = flow.reshape(flow.gather(table, ids), (24, 16))
    if sys.argv[1] == "twice":
        x = x + flow.gather(table, y) * 2.0
    other = table if TIED else flow.get_variable(
        "other", (50, 16), initializer=flow.random_normal_initializer()
    )
    x = flow.layers.layer_norm(flow.math.gelu(x), name="norm")
    logits = flow.matmul(x, other, transpose_b=True)
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
    schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.05])
    make = {"sgd": lambda: flow.optimizer.SGD(schedule, momentum=0),
            "adam": lambda: flow.optimizer.Adam(schedule)}[RULE]
    make().minimize(loss)
    return loss

rng = np.random.default_rng(0)
ids, y = (rng.integers(0, 50, shape).astype("i") for shape in ((4, 6), (24,)))
losses = [train(ids, y).tolist() for _ in range(12)]
print(json.dumps({"losses": losses, "kernels": [t.kernel for t in train.plan().tasks]}))
"""


@pytest.mark.slow
@pytest.mark.representative("tied", "the others differ in the optimizer")
@pytest.mark.parametrize(
    ("form", "rule", "kernel"),
    [
        ("tied", "adam", "c.onednn_add_to_rows"),
        ("apart", "sgd", "c.onednn_sparse_sgd"),
        ("apart", "adam", "c.onednn_sparse_adam"),
    ],
)
def test_gradients_of_embeddings_stay_sparse(form: str, rule: str, kernel: str) -> None:
    compiler = pytest.importorskip("flow_onednn.native.compiler")
    if not compiler.available():
        pytest.skip(f"no C compiler: {compiler.state()}")
    numpy = run(EMBEDDING, form, rule, FLOW_DISABLE_PLUGINS="flow-onednn")
    onednn = run(EMBEDDING, form, rule)
    np.testing.assert_allclose(onednn["losses"], numpy["losses"], rtol=1e-4, atol=1e-5)  # Adam
    assert kernel in onednn["kernels"]
    assert "c.unsorted_segment_sum" not in onednn["kernels"]


@pytest.mark.slow
def test_two_lookups_in_one_table_train_it() -> None:
    """One of the two sums of rows goes into the other, which stays."""
    compiler = pytest.importorskip("flow_onednn.native.compiler")
    if not compiler.available():
        pytest.skip(f"no C compiler: {compiler.state()}")
    numpy = run(EMBEDDING, "twice", "sgd", FLOW_DISABLE_PLUGINS="flow-onednn")
    onednn = run(EMBEDDING, "twice", "sgd")
    np.testing.assert_allclose(onednn["losses"], numpy["losses"], rtol=1e-4, atol=1e-5)
    assert "c.onednn_add_to_rows" in onednn["kernels"]


RESIDUAL = """
import json, sys
import numpy as np
import oneflow as flow
import oneflow.typing as tp

def conv(name, x, filters, size, stride, pad):
    shape = (filters, x.shape[1], size, size)
    weight = flow.get_variable(name, shape, initializer=flow.random_normal_initializer(stddev=0.2))
    pads = [[0, 0], [0, 0], [pad, pad], [pad, pad]]
    return flow.nn.conv2d(x, weight, stride, pads, name=name)

def norm(name, x):
    return flow.layers.batch_normalization(x, axis=1, name=name)

@flow.global_function(type="train")
def train(
    x: tp.Numpy.Placeholder((4, 3, 20, 20)), y: tp.Numpy.Placeholder((4,), flow.int32)
) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
    x = flow.nn.relu(norm("bn0", conv("c0", x, 8, 7, 2, 3)))
    x = flow.nn.max_pool2d(x, 3, 2, [[0, 0], [0, 0], [1, 1], [1, 1]])
    r = flow.nn.relu(norm("bn1", conv("c1", x, 8, 1, 1, 0)))
    r = norm("bn2", conv("c2", r, 16, 3, 2, 1))
    s = norm("bn3", conv("c3", x, 16, 1, 2, 0))
    seen = flow.nn.relu(r + s) * 0.5
    pooled = flow.nn.avg_pool2d(seen, 2, 1, "VALID")
    channels = flow.math.reduce_sum(seen, axis=1)
    z = flow.concat([flow.math.reduce_mean(pooled, axis=[2, 3]),
                     flow.reshape(channels, (4, -1))], axis=1)
    z = flow.layers.dense(z, 10, kernel_initializer=flow.random_normal_initializer(stddev=0.2),
                          name="fc")
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, z)
    schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.01])
    flow.optimizer.SGD(schedule, momentum=0.9).minimize(loss)
    return loss, seen, flow.transpose(seen, (0, 2, 3, 1))

rng = np.random.default_rng(0)
found = []
for _ in range(4):
    x = rng.normal(0, 1, (4, 3, 20, 20)).astype("f")
    loss, seen, turned = train(x, rng.integers(0, 10, 4).astype("i"))
    assert (turned == seen.transpose(0, 2, 3, 1)).all() and seen.shape == (4, 16, 3, 3)
    found.append([*loss.tolist(), *seen.reshape(-1).tolist()])
print(json.dumps({"losses": found, "kernels": [t.kernel for t in train.plan().tasks]}))
"""


@pytest.mark.slow
def test_residual_blocks_and_results_in_the_layout_of_the_program() -> None:
    numpy = run(RESIDUAL, FLOW_DISABLE_PLUGINS="flow-onednn")
    onednn = run(RESIDUAL)
    np.testing.assert_allclose(onednn["losses"], numpy["losses"], rtol=2e-4, atol=2e-5)
    taken = onednn["kernels"]
    assert taken.count("onednn.onednn_norm_relu") == taken.count("onednn.onednn_norm_relu_grad") + 1
    assert taken.count("onednn.normalization") == taken.count("c.onednn_norm_add_relu") == 1
    assert taken.count("onednn.onednn_conv") == 4


@pytest.mark.slow
def test_emulated_gpus_run_on_the_same_kernels() -> None:
    two = run(LENET, "NCHW", "gpu/0:0-1", ONEFLOW_EMULATE_GPUS="2")
    one = run(LENET, "NCHW", "cpu/0:0", FLOW_DISABLE_PLUGINS="flow-onednn")
    assert two["kernels"].count("onednn.onednn_conv") in (2, 4)
    np.testing.assert_allclose(two["losses"][:5], one["losses"][:5], rtol=1e-4, atol=1e-5)


SHARED = """
import json, sys
import numpy as np
import oneflow as flow
import oneflow.typing as tp

DEVICES, SHARE, SPLIT = sys.argv[1:]
flow.config.gpu_device_num(4)
config = flow.function_config()
config.share_replicas(SHARE == "yes")
hint = {"model_distribute": flow.distribute.split(0)} if SPLIT == "yes" else {}

def network(x):
    init = flow.random_normal_initializer(stddev=0.05)
    h = flow.layers.dense(
        x, 300, activation=flow.nn.relu, kernel_initializer=init, name="wide", **hint
    )
    return flow.layers.dense(h, 10, kernel_initializer=init, name="last")

@flow.global_function(type="train", function_config=config)
def train(
    x: tp.Numpy.Placeholder((40, 400)), y: tp.Numpy.Placeholder((40,), flow.int32)
) -> tp.Numpy:
    with flow.scope.placement("gpu", DEVICES):
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, network(x))
        schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.05])
        flow.optimizer.SGD(schedule, momentum=0.9).minimize(loss)
    return loss

@flow.global_function(function_config=config)
def predict(x: tp.Numpy.Placeholder((40, 400))) -> tp.Numpy:
    with flow.scope.placement("gpu", DEVICES):
        return network(x)

rng, losses = np.random.default_rng(0), []
for _ in range(4):
    x = rng.uniform(-0.5, 0.5, (40, 400)).astype("f")
    losses.append(train(x, rng.integers(0, 10, 40).astype("i")).tolist())
kinds = [task.type for task in train.plan().tasks]
seen = [task.type for task in predict.plan().tasks]
sent = sum(train.executable().sent().values())
print(json.dumps({
    "losses": losses, "predicted": predict(x).tolist(), "kinds": kinds, "seen": seen, "sent": sent,
}))
"""


@pytest.mark.slow
def test_devices_that_share_weights_pack_them_once_and_sum_their_gradients() -> None:
    """The bits are those of devices apart, each with its own product and an all-reduce."""
    settings = {"ONEFLOW_EMULATE_GPUS": "4", "OMP_NUM_THREADS": "1"}
    shared, apart = (run(SHARED, "0:0-3", share, "no", **settings) for share in ("yes", "no"))
    for key in ("losses", "predicted", "sent"):
        assert shared[key] == apart[key]
    assert shared["kinds"].count("summed_momentum_update") == 1
    assert not {"summed_momentum_update", "onednn_pack"} & {*apart["kinds"], *apart["seen"]}
    for kinds in (shared["kinds"], shared["seen"]):
        assert kinds.count("onednn_packed_matmul") in (0, 4)  # 0: the library packs otherwise
        assert kinds.count("onednn_pack") == kinds.count("onednn_packed_matmul") // 4


@pytest.mark.slow
@pytest.mark.representative("yes|1-no", "weights in parts, and whole ones on two devices")
@pytest.mark.parametrize(("devices", "split"), [("0:0-3", "yes"), ("0:0-1", "no"), ("0:0", "no")])
def test_weights_that_are_not_the_same_on_many_devices_are_not_packed(
    devices: str, split: str
) -> None:
    settings = {"ONEFLOW_EMULATE_GPUS": "4", "OMP_NUM_THREADS": "1"}
    found = run(SHARED, devices, "yes", split, **settings)
    assert "onednn_pack" not in {*found["kinds"], *found["seen"]}


CUBES = """
import json
import numpy as np
import oneflow as flow
import oneflow.typing as tp

def same(shape):
    flow.clear_default_session()

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(shape)) -> tp.Numpy:
        return flow.nn.max_pool2d(flow.math.relu(x), 2, 2, "VALID")

    x = np.random.default_rng(0).standard_normal(shape).astype("f")
    n, c, h, w = shape
    windows = np.maximum(x, 0).reshape(n, c, h // 2, 2, w // 2, 2).max((3, 5))
    return np.array_equal(job(x), windows), {task.kernel for task in job.plan().tasks}

shapes = (2, 3, 6, 6), (2, 4, 4, 4), (1, 2, 8, 4), (2, 1, 4, 4), (3, 3, 2, 2)
results = [same(shape) for shape in shapes]
kernels = sorted(set.union(*(kernels for _, kernels in results)))
print(json.dumps({"right": [right for right, _ in results], "kernels": kernels}))
"""


@pytest.mark.slow
def test_sides_of_equal_size_are_not_mixed_up() -> None:
    """Where channels are as many as pixels, both layouts have one shape."""
    found = run(CUBES)
    assert found["right"] == [True] * 5
    assert "c.max_pool_2d" in found["kernels"]


CUBIC_FILTERS = """
import json
import numpy as np
import oneflow as flow
import oneflow.typing as tp

rng = np.random.default_rng(0)

@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((2, 3, 5, 5))) -> tp.Numpy:
    l2 = flow.regularizers.l2(0.1)
    w, v = (flow.get_variable(n, (3, 3, 3, 3), regularizer=l2) for n in ("w", "v"))
    y = flow.nn.conv2d(x, w, 1, "VALID")
    y = flow.layers.batch_normalization_relu(y, axis=1, name="bn")
    y = flow.nn.conv2d_transpose(y, v, output_shape=[2, 3, 5, 5], strides=1, padding="VALID")
    y = flow.nn.avg_pool2d(y, 3, 1, "VALID")
    limit = flow.optimizer.grad_clipping.by_global_norm(1.0)
    schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
    flow.optimizer.SGD(schedule, momentum=0.5, grad_clipping=limit).minimize(y)
    return y

flow.train.CheckPoint().init()
flow.load_variables({n: rng.standard_normal((3, 3, 3, 3)).astype("f") for n in "wv"})
results = [train(rng.standard_normal((2, 3, 5, 5)).astype("f")).tolist() for _ in range(3)]
weights = {n: flow.get_all_variables()[n].numpy().tolist() for n in "wv"}
kernels = [task.kernel for task in train.plan().tasks]
print(json.dumps({"results": results, **weights, "kernels": kernels}))
"""


@pytest.mark.slow
def test_filters_with_as_many_channels_as_pixels() -> None:
    """Their gradients have one shape in both layouts, and stay in the program's."""
    numpy = run(CUBIC_FILTERS, FLOW_DISABLE_PLUGINS="flow-onednn")
    onednn = run(CUBIC_FILTERS)
    assert "onednn.onednn_conv_filter_grad" in onednn["kernels"]
    for part in ("results", "w", "v"):
        np.testing.assert_allclose(onednn[part], numpy[part], rtol=1e-4, atol=1e-5)
