"""Seeded parameters and batches of the benchmark networks, equal for every framework."""

import math

import numpy as np
from networks import BERT, RESNET_STAGES

SEQUENCE, VOCABULARY, PREDICTIONS = 128, 30522, 20
IMAGE, ROWS = 224, 1_000_000
"""The image width of `resnet50`, and the number of rows of the tables of `wide_deep`."""


def dense(name, inputs, outputs, init="glorot"):
    return [(f"{name}.w", (inputs, outputs), init), (f"{name}.b", (outputs,), "zeros")]


def norm(name, size):
    return [(f"{name}.g", (size,), "ones"), (f"{name}.b", (size,), "zeros")]


def convolution(name, inputs, outputs, size):
    return [(f"{name}.w", (outputs, inputs, size, size), "he_out")]


def lenet():
    return [
        ("conv1.w", (32, 1, 5, 5), "he_in"), ("conv1.b", (32,), "zeros"),
        ("conv2.w", (64, 32, 5, 5), "he_in"), ("conv2.b", (64,), "zeros"),
        *dense("fc1", 3136, 512), *dense("fc2", 512, 10),
    ]  # fmt: skip


def resnet50():
    spec = convolution("stem", 3, 64, 7) + norm("stem_bn", 64)
    inputs = 64
    for stage, (blocks, width, _) in enumerate(RESNET_STAGES):
        for block in range(blocks):
            name = f"s{stage}.{block}"
            shapes = ((inputs, width, 1), (width, width, 3), (width, 4 * width, 1))
            for j, (i, o, size) in enumerate(shapes):
                spec += convolution(f"{name}.c{j}", i, o, size) + norm(f"{name}.bn{j}", o)
            if block == 0:
                spec += convolution(f"{name}.down", inputs, 4 * width, 1)
                spec += norm(f"{name}.down_bn", 4 * width)
            inputs = 4 * width
    return spec + dense("fc", 2048, 1000, "normal0.01")


def bert(config):
    hidden, init = config["hidden"], "normal0.02"
    spec = [("tok", (VOCABULARY, hidden), init), ("pos", (SEQUENCE, hidden), init),
            ("seg", (2, hidden), init), *norm("emb_ln", hidden)]  # fmt: skip
    for i in range(config["layers"]):
        for name in "qkvo":
            spec += dense(f"{i}.{name}", hidden, hidden, init)
        spec += norm(f"{i}.ln1", hidden) + dense(f"{i}.ff1", hidden, config["ffn"], init)
        spec += dense(f"{i}.ff2", config["ffn"], hidden, init) + norm(f"{i}.ln2", hidden)
    return [*spec, *dense("mlm", hidden, hidden, init), *norm("mlm_ln", hidden),
            ("mlm_bias", (VOCABULARY,), "zeros")]  # fmt: skip


def wide_deep():
    sizes = (429, 1024, 512, 256, 1)
    spec = [("deep", (ROWS, 16), "normal0.01"), ("wide", (ROWS, 1), "normal0.01")]
    for i in range(4):
        spec += dense(f"fc{i + 1}", sizes[i], sizes[i + 1])
    return spec


def spec_of(workload):
    """Return (name, shape, initial value) of each parameter, in the order of the random draws."""
    if workload == "mlp":
        return dense("fc1", 784, 512) + dense("fc2", 512, 10)
    if workload in BERT:
        return bert(BERT[workload])
    if workload.startswith("wide_deep"):
        return wide_deep()
    return {"lenet": lenet, "resnet50": resnet50}[workload]()


def deviation(shape, init):
    if init.startswith("normal"):
        return float(init[6:])
    fan = {
        "glorot": lambda: shape[0] + shape[1],
        "he_in": lambda: shape[1] * shape[2] * shape[3],
        "he_out": lambda: shape[0] * shape[2] * shape[3],
    }[init]()
    return math.sqrt(2.0 / fan)


def draw(rng, shape, init):
    if init in ("zeros", "ones"):
        return np.full(shape, init == "ones", np.float32)
    out = np.empty(math.prod(shape), np.float32)
    for start in range(0, out.size, 1 << 20):
        stop = min(out.size, start + (1 << 20))
        out[start:stop] = rng.standard_normal(stop - start)
    out *= np.float32(deviation(shape, init))
    return out.reshape(shape)


def parameters(workload):
    """Return the initial values of all variables, including moving statistics, keyed by name."""
    rng = np.random.RandomState(1234)
    values = {name: draw(rng, shape, init) for name, shape, init in spec_of(workload)}
    for name in [n for n in values if workload == "resnet50" and n.endswith(".g")]:
        values[name[:-2] + ".mean"] = np.zeros_like(values[name])
        values[name[:-2] + ".variance"] = np.ones_like(values[name])
    return values


def bert_batch(rng, size):
    ids = rng.randint(0, VOCABULARY, (size, SEQUENCE)).astype("i4")
    cut = rng.randint(SEQUENCE // 4, SEQUENCE - SEQUENCE // 4, (size, 1))
    segments = (np.arange(SEQUENCE)[None] >= cut).astype("i4")
    length = rng.randint(SEQUENCE * 3 // 4, SEQUENCE + 1, (size, 1))
    mask = (np.arange(SEQUENCE)[None] < length).astype("i4")
    picks = [rng.choice(SEQUENCE * 3 // 4, PREDICTIONS, replace=False) for _ in range(size)]
    positions = np.sort(np.stack(picks), 1).astype("i4")
    labels = rng.randint(0, VOCABULARY, (size, PREDICTIONS)).astype("i4")
    return ids, segments, mask, positions, labels


def wide_deep_batch(rng, size=512):
    deep = (rng.rand(size, 26) ** 3 * ROWS).astype("i4")
    wide = (rng.rand(size, 2) ** 3 * ROWS).astype("i4")
    features = rng.rand(size, 13).astype("f4")
    return features, wide, deep, (rng.rand(size, 1) < 0.3).astype("f4")


def batch(rng, workload):
    if workload in ("mlp", "lenet"):
        shape = (100, 784) if workload == "mlp" else (100, 1, 28, 28)
        return (rng.rand(*shape) - 0.5).astype("f4"), rng.randint(0, 10, 100).astype("i4")
    if workload == "resnet50":
        x = rng.standard_normal((8, 3, IMAGE, IMAGE)).astype("f4")
        return x, rng.randint(0, 1000, 8).astype("i4")
    if workload in BERT:
        return bert_batch(rng, BERT[workload]["batch"])
    if workload.startswith("wide_deep"):
        return wide_deep_batch(rng)
    if workload == "overhead":
        return (rng.rand(8, 8).astype("f4"),)
    return tuple((rng.rand(16, 16) - 0.5).astype("f4") for _ in range(2))


def batches(workload):
    """Return the pool of batches, which the steps use in turn."""
    rng = np.random.RandomState(99)
    count = {"resnet50": 2, "bert_mini": 4, "bert_base": 2, "overhead": 8}.get(workload, 8)
    return [batch(rng, workload) for _ in range(count)]
