"""Train jobs have the losses of the CPU's kernels, on one device and on two."""

import subprocess
import sys

import numpy as np
import pytest
from flow_torch.plugin import cuda_devices

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import DataError, KernelNotFoundError
from flow_core.testing import assert_like_one_device

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(20, 1, 28, 28)).astype(np.float32)
LABELS = RNG.integers(0, 10, 20).astype(np.int32)
INIT = flow.random_normal_initializer(stddev=0.1)
RATE = flow.optimizer.PiecewiseConstantScheduler([3], [0.05, 0.02])


def lenet(x):
    """Return the logits of LeNet."""
    for number, filters in enumerate((8, 16)):
        name = f"conv{number}"
        x = flow.layers.conv2d(
            x, filters, 5, padding="SAME", activation=flow.nn.relu,
            kernel_initializer=INIT, name=name,
        )  # fmt: skip
        x = flow.nn.max_pool2d(x, 2, 2, "SAME")
    x = flow.reshape(x, (x.shape[0], -1))
    return head(flow.layers.dense(x, 64, flow.nn.relu, kernel_initializer=INIT, name="dense"))


def head(x):
    """Return the logits of the last layer."""
    return flow.layers.dense(x, 10, kernel_initializer=INIT, name="logits")


def perceptron(x):
    """Return the logits of a perceptron with other activations."""
    x = flow.reshape(x, (x.shape[0], -1))
    x = flow.layers.dense(x, 48, flow.math.tanh, kernel_initializer=INIT, name="first")
    x = flow.layers.dense(x, 32, flow.math.sigmoid, kernel_initializer=INIT, name="second")
    return head(x)


def sgd():
    """Return plain gradient descent."""
    return flow.optimizer.SGD(RATE, momentum=0)


def momentum():
    """Return gradient descent with momentum."""
    return flow.optimizer.SGD(RATE, momentum=0.9)


def adam():
    """Return Adam with its correction of the learning rate."""
    rate = flow.optimizer.PiecewiseConstantScheduler([], [0.001])
    return flow.optimizer.Adam(rate, do_bias_correction=True)


def job(device, ids, model, optimizer, fallback="off"):
    """Return a train job in a new session."""
    flow.clear_default_session()
    config = flow.function_config()
    config.host_fallback(fallback)

    @flow.global_function(type="train", function_config=config)
    def train(
        images: tp.Numpy.Placeholder(IMAGES.shape),
        labels: tp.Numpy.Placeholder(LABELS.shape, dtype=flow.int32),
    ) -> tp.Numpy:
        with flow.scope.placement(device, ids):
            logits = model(images)
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            optimizer().minimize(loss)
        return loss

    return train


def losses(*settings, steps=5):
    """Return the losses of the first steps, per image."""
    train = job(*settings)
    return np.array([train(IMAGES, LABELS) for _ in range(steps)])


@pytest.mark.parametrize("ids", ["0:0", "0:0-1"])
@pytest.mark.parametrize(
    ("model", "optimizer"),
    [(lenet, sgd), (lenet, momentum), (perceptron, momentum), (perceptron, adam)],
)
def test_losses_equal_those_of_the_cpu_to_six_digits(model, optimizer, ids):
    found = losses("torch", ids, model, optimizer).mean(1)
    expected = losses("cpu", "0:0", model, optimizer).mean(1)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found[-1] < found[0]


def normalized(x):
    """Return logits through an op that has no kernel here."""
    x = flow.layers.dense(flow.reshape(x, (x.shape[0], -1)), 16, kernel_initializer=INIT, name="fc")
    return head(flow.layers.layer_norm(x, name="norm"))


@pytest.mark.parametrize("ids", ["0:0", "0:0-1"])
def test_ops_without_a_kernel_run_on_the_host_if_allowed(ids):
    with pytest.raises(KernelNotFoundError, match=r"(?s)test_training.py.*layer_norm"):
        job("torch", ids, normalized, sgd).compile()
    found = losses("torch", ids, normalized, sgd, "silent").mean(1)
    expected = losses("cpu", "0:0", normalized, sgd).mean(1)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("model", [lenet, perceptron])
def test_all_ops_agree_with_one_device(model):
    assert_like_one_device(job("torch", "0:0-1", model, momentum))


def test_passes_replace_what_they_should():
    compiled = job("torch", "0:0", lenet, sgd).compile()
    types = [task.type for task in compiled.plan.tasks]
    assert types.count("torch_conv2d") == 2
    assert types.count("torch_max_pool_2d") == types.count("torch_max_pool_2d_grad") == 2
    assert not {"conv2d", "max_pool_2d", "max_pool_2d_grad"} & set(types)


def test_all_tasks_run_on_torch():
    plan = job("torch", "0:0", lenet, sgd).compile().plan
    assert {t.device.type for t in plan.tasks if t.type != "boxing"} == {"torch"}


def test_jobs_of_the_cpu_stay_unchanged():
    plan = job("cpu", "0:0", lenet, sgd).compile().plan
    assert not any(task.type.startswith("torch_") for task in plan.tasks)


def test_wrong_labels_are_an_error_with_the_line_of_the_program():
    train = job("torch", "0:0", perceptron, sgd)
    with pytest.raises(DataError, match=r"(?s)test_training.py.*labels from 10"):
        train(IMAGES, np.full_like(LABELS, 10))


def test_probe_does_not_import_torch_without_a_driver_of_cuda():
    program = (
        "import sys; from flow_torch.plugin import probe; probe(); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == f"{bool(cuda_devices())}\n", done.stderr
