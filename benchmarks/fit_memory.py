"""Predicted beside measured memory of the steps of twelve training jobs.

Run it without arguments; each job is measured by ``flow fit --measure`` in a process of its own.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import flow_zoo
import oneflow as flow
import oneflow.typing as tp

GPT = flow_zoo.GPT2Config(vocabulary=2000, positions=128, width=256, layers=4, heads=4)
BERT = flow_zoo.BertConfig(
    vocabulary=2000, positions=128, width=256, layers=4, heads=4, hidden=1024
)
RANDOM = flow.glorot_uniform_initializer()


def minimized(scores: Any, labels: Any, adam: bool) -> Any:
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
    optimizer = flow.optimizer.Adam(1e-3, do_bias_correction=True)
    (optimizer if adam else flow.optimizer.SGD(0.1, momentum=0.9)).minimize(loss)
    return flow.math.reduce_mean(loss)


def image_job(
    name: str,
    network: Callable[..., Any],
    batch: int,
    side: int = 96,
    micro_batches: int = 1,
    **options: Any,
) -> Any:

    def job(
        images: tp.Numpy.Placeholder((batch, 3, side, side)),
        labels: tp.Numpy.Placeholder((batch,), flow.int32),
    ) -> tp.Numpy:
        return minimized(network(images, **options), labels, adam=False)

    return named(name, job, micro_batches)


def token_job(
    name: str, network: Callable[..., Any], batch: int, length: int, devices: str = "0:0"
) -> Any:
    def job(
        tokens: tp.Numpy.Placeholder((batch, length), flow.int32),
        labels: tp.Numpy.Placeholder((batch, length), flow.int32),
    ) -> tp.Numpy:
        with flow.scope.placement("gpu", devices):
            return minimized(network(tokens), labels, adam=True)

    return named(name, job)


def named(name: str, job: Callable[..., Any], micro_batches: int = 1) -> Any:
    job.__name__, config = name, flow.function_config()
    config.train.num_gradient_accumulation_steps(micro_batches)
    return flow.global_function(type="train", function_config=config)(job)


def encoded(tokens: Any) -> Any:
    rows = flow.reshape(flow_zoo.bert(tokens, BERT), (-1, BERT.width))
    scores = flow.layers.dense(rows, BERT.vocabulary, kernel_initializer=RANDOM, name="words")
    return flow.reshape(scores, (*tokens.shape, BERT.vocabulary))


def perceptron(images: Any) -> Any:
    x = flow.reshape(images, (images.shape[0], -1))
    for i in range(4):
        x = flow.layers.dense(x, 1024, flow.nn.relu, kernel_initializer=RANDOM, name=f"layer{i}")
    return flow.layers.dense(x, 10, kernel_initializer=RANDOM, name="scores")


def uneven_stages(images: Any) -> Any:
    """Two pipeline stages, of one layer and of four."""
    x = flow.reshape(images, (images.shape[0], -1))
    for i in range(5):
        with flow.scope.placement("gpu", f"0:{min(i, 1)}"):
            x = flow.layers.dense(
                x, 1024, flow.nn.relu, kernel_initializer=RANDOM, name=f"layer{i}"
            )
    with flow.scope.placement("gpu", "0:1"):
        return flow.layers.dense(x, 10, kernel_initializer=RANDOM, name="scores")


def digits(images: Any) -> Any:
    """The network of ``examples/digits.py``, with more filters."""
    x = images
    for i, filters in enumerate((32, 64)):
        x = flow.layers.conv2d(
            x, filters, 3, padding="SAME", activation=flow.nn.relu, kernel_initializer=RANDOM,
            name=f"conv{i}",
        )  # fmt: skip
        x = flow.nn.max_pool2d(x, ksize=2, strides=2, padding="VALID")
    x = flow.nn.dropout(flow.reshape(x, (x.shape[0], -1)), rate=0.3)
    return flow.layers.dense(x, 10, kernel_initializer=RANDOM, name="scores")


def gpt(tokens: Any) -> Any:
    return flow_zoo.gpt2(tokens, GPT)


JOBS: dict[str, Callable[[str], Any]] = {
    "resnet18": lambda name: image_job(name, flow_zoo.resnet18, 4, classes=10),
    "resnet50": lambda name: image_job(name, flow_zoo.resnet50, 4, classes=10),
    "mobilenet": lambda name: image_job(name, flow_zoo.mobilenet_v2, 4, classes=10),
    "vision_transformer": lambda name: image_job(name, flow_zoo.vit, 1, classes=10, side=224),
    "gpt": lambda name: token_job(name, gpt, 4, 128),
    "gpt_short": lambda name: token_job(name, gpt, 16, 64),
    "gpt_on_4_devices": lambda name: token_job(name, gpt, 8, 128, "0:0-3"),
    "bert": lambda name: token_job(name, encoded, 4, 128),
    "bert_on_2_devices": lambda name: token_job(name, encoded, 4, 128, "0:0-1"),
    "perceptron": lambda name: image_job(name, perceptron, 256, side=32),
    "uneven_stages": lambda name: image_job(name, uneven_stages, 256, side=32, micro_batches=4),
    "digits": lambda name: image_job(name, digits, 128, side=32),
}

if len(sys.argv) > 1 and sys.argv[1] in JOBS:
    job = JOBS[sys.argv[1]](sys.argv[1])


def measured(name: str) -> dict[str, Any]:
    """Return what ``flow fit --measure`` says about a job."""
    command = [sys.executable, "-m", "flow_core.cli", "fit", "--memory", "1TiB", "--measure"]
    command += ["--json", __file__, "--", name]
    env = {**os.environ, "ONEFLOW_EMULATE_GPUS": "4"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=env)
    found: dict[str, Any] = json.loads(done.stdout)["measured"]
    return found


def main() -> None:
    """Print the table."""
    print(f"{'job':22}{'predicted':>12}{'arena':>8}{'resident':>10}")
    for name in JOBS:
        found = measured(name)
        arena = found["allocated"] / found["arenas"]
        resident = found["resident"] / found["predicted"]
        size = f"{found['predicted'] / 2**20:.1f} MiB"
        print(f"{name:22}{size:>12}{arena:8.2f}{resident:10.3f}", flush=True)


if __name__ == "__main__":
    main()
