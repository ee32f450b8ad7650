"""Small networks, each written once, whose parallel form is a parameter.

A network is a list of stages; a `Form` says on which devices each of them runs and how the
weights lie there.  All numbers are float64, so that another order of summation changes them by
1e-13 or so, and a mistake by a lot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

import oneflow as flow
import oneflow.typing as tp

BATCH = 12
STEPS = 3


@dataclass(frozen=True)
class Form:
    """How a network is spread over devices; this one is not.

    Attributes:
        devices: how many there are.
        weights: the axis on which weight matrices (out, in) are split, None for no request.
        hybrid: whether only the weights of the last two stages are split.
        stages: over how many stages of a pipeline the devices are divided.
        hierarchy: shape of the grid of devices, None for one dimension.
        optimizer: ``optimizer_placement_optimization_mode``, None for none.
        ahead: ``optimizer_placement_optimization_ahead``, None for none.
        micro: into how many micro-batches a step is divided.
        mirrored: whether each device has a network of its own, with a part of the batch.
        scale: factor of the loss; gradients of the mirrored view are that of the mean, times
            the number of devices.
        kinds: device types of the stages of the pipeline, in turn.
    """

    devices: int = 1
    weights: int | None = None
    hybrid: bool = False
    stages: int = 1
    hierarchy: tuple[int, ...] | None = None
    optimizer: str | None = None
    ahead: int | None = None
    micro: int = 1
    mirrored: bool = False
    scale: float = 1.0
    kinds: tuple[str, ...] = ("cpu",)

    def alone(self) -> Form:
        """What one device computes of the same program."""
        scale = float(self.devices) if self.mirrored else 1.0
        return Form(scale=scale)

    def at(self, stage: int, count: int) -> AbstractContextManager[Any]:
        """The placement of a stage of ``count``."""
        here = self.devices // self.stages
        part = stage * self.stages // count
        first = here * part
        ids = f"0:{first}-{first + here - 1}"
        return flow.scope.placement(self.kinds[part % len(self.kinds)], ids, self.hierarchy)

    def weight(self, name: str, shape: Sequence[int], late: bool = False) -> Any:
        """A weight matrix (out, in, ...)."""
        wanted = None if self.weights is None or (self.hybrid and not late) else self.weights
        if wanted is None:
            hint: dict[str, Any] = {}
        elif self.hierarchy:
            hint = {"parallel_distribution": ["B", f"S({wanted})"]}
        else:
            hint = {"distribute": flow.distribute.split(wanted)}
        initializer = flow.random_normal_initializer(stddev=0.4)
        return flow.get_variable(
            name, shape=shape, dtype=flow.double, initializer=initializer, **hint
        )

    def config(self) -> Any:
        """The settings of the job."""
        config = flow.function_config()
        config.default_data_type(flow.double)
        config.sbp_selector_seconds(60.0)  # more than any of them takes
        if self.mirrored:
            config.default_logical_view(flow.scope.mirrored_view())
            config.default_placement_scope(self.at(0, 1))
        if self.optimizer:
            config.optimizer_placement_optimization_mode(self.optimizer)
            config.optimizer_placement_optimization_threshold(1)  # these weights are small
        if self.ahead:
            config.optimizer_placement_optimization_ahead(self.ahead)
        if self.micro > 1:
            config.train.num_gradient_accumulation_steps(self.micro)
        return config


def bias(name: str, count: int) -> Any:
    initializer = flow.random_normal_initializer(stddev=0.4)
    return flow.get_variable(name, shape=(count,), dtype=flow.double, initializer=initializer)


def dense(form: Form, x: Any, units: int, name: str, late: bool = False) -> Any:
    """x (rows, in) times a weight (units, in), and a bias."""
    weight = form.weight(f"{name}-weight", (units, x.shape[-1]), late)
    y = flow.matmul(x, weight, transpose_b=True, name=name)
    return flow.nn.bias_add(y, bias(f"{name}-bias", units), name=f"{name}-add")


Stage = Callable[[Form, Any], Any]


@dataclass(frozen=True)
class Network:
    """Stages from inputs to logits; inputs by (shape, type), then the labels.

    Attributes:
        inputs: of the first stage.
        stages: each takes what the one before gives.
        labels: type of the labels: int32 for classes, double for yes or no.
        highest: integer inputs are below it.
    """

    inputs: tuple[tuple[tuple[int, ...], Any], ...]
    stages: tuple[Stage, ...]
    labels: tuple[tuple[int, ...], Any] = ((BATCH,), flow.int32)
    highest: int = 4


# -------------------------------------------------------------------------------------- networks


def _hidden(units: int, name: str, late: bool = False) -> Stage:
    return lambda form, x: flow.math.tanh(dense(form, x, units, name, late))


def _dropped(form: Form, x: Any) -> Any:
    x = flow.nn.relu(dense(form, x, 8, "second"))
    if form.mirrored or form.scale != 1:  # each device would draw numbers of its own
        return x
    return flow.nn.dropout(x, rate=0.25, name="drop")


MLP = Network(
    inputs=(((BATCH, 6), flow.double),),
    stages=(
        _hidden(12, "first"),
        _dropped,
        _hidden(8, "third", late=True),
        lambda form, x: dense(form, x, 4, "logits", late=True),
    ),
)


def _convolution(channels: int, name: str) -> Stage:
    def stage(form: Form, x: Any) -> Any:
        weight = form.weight(f"{name}-weight", (channels, x.shape[1], 3, 3))
        x = flow.nn.conv2d(x, weight, 1, "SAME", "NCHW", name=name)
        x = flow.nn.bias_add(x, bias(f"{name}-bias", channels), "NCHW", name=f"{name}-add")
        return flow.nn.max_pool2d(flow.nn.relu(x), 2, 2, "VALID", "NCHW", name=f"{name}-pool")

    return stage


def _flat(form: Form, x: Any) -> Any:
    x = flow.reshape(x, [x.shape[0], -1])
    return flow.nn.relu(dense(form, x, 12, "dense", late=True))


LENET = Network(
    inputs=(((BATCH, 4, 8, 8), flow.double),),
    stages=(
        _convolution(4, "conv1"),
        _convolution(8, "conv2"),
        _flat,
        lambda form, x: dense(form, x, 4, "logits", late=True),
    ),
)

LENGTH, WIDTH, HEADS = 3, 8, 4


def _embedded(form: Form, tokens: Any) -> Any:
    table = form.weight("table", (8, WIDTH))
    return flow.reshape(flow.gather(table, tokens), (-1, WIDTH))


def _split_heads(x: Any) -> Any:
    x = flow.reshape(x, (-1, LENGTH, HEADS, WIDTH // HEADS))
    return flow.transpose(x, perm=[0, 2, 1, 3])


def _attention(form: Form, x: Any) -> Any:
    q, k, v = (_split_heads(dense(form, x, WIDTH, name)) for name in "qkv")
    scores = flow.matmul(q, k, transpose_b=True) * ((WIDTH // HEADS) ** -0.5)
    y = flow.matmul(flow.nn.softmax(scores, axis=-1), v)
    y = flow.reshape(flow.transpose(y, perm=[0, 2, 1, 3]), (-1, WIDTH))
    return flow.layers.layer_norm(x + dense(form, y, WIDTH, "out"), name="norm1")


def _feed_forward(form: Form, x: Any) -> Any:
    y = dense(form, flow.math.gelu(dense(form, x, 2 * WIDTH, "up", True)), WIDTH, "down", True)
    return flow.layers.layer_norm(x + y, name="norm2")


def _pooled(form: Form, x: Any) -> Any:
    x = flow.math.reduce_mean(flow.reshape(x, (-1, LENGTH, WIDTH)), axis=1)
    return dense(form, x, 4, "logits", late=True)


TRANSFORMER = Network(
    inputs=(((BATCH, LENGTH), flow.int32),),
    stages=(_embedded, _attention, _feed_forward, _pooled),
)


def _looked_up(form: Form, x: Any) -> Any:
    dense_part, wide, deep = x
    wide = flow.gather(form.weight("wide-table", (8, 4)), wide)
    deep = flow.gather(form.weight("deep-table", (8, 4)), deep)
    deep = flow.reshape(deep, (deep.shape[0], -1))
    return flow.math.reduce_sum(wide, axis=[1, 2]), flow.concat([dense_part, deep], axis=1)


def _deep(units: int, name: str, late: bool = False) -> Stage:
    def stage(form: Form, x: Any) -> Any:
        return x[0], flow.nn.relu(dense(form, x[1], units, name, late))

    return stage


def _joined(form: Form, x: Any) -> Any:
    deep = dense(form, x[1], 1, "score") if form.weights == 1 else _score(x[1])
    return flow.reshape(x[0], (-1, 1)) + deep


def _score(x: Any) -> Any:
    """One row cannot be split over devices."""
    return dense(Form(), x, 1, "score")


WIDE_DEEP = Network(
    inputs=(
        ((BATCH, 5), flow.double),
        ((BATCH, 3), flow.int32),
        ((BATCH, 2), flow.int32),
    ),
    stages=(_looked_up, _deep(8, "deep1"), _deep(4, "deep2", late=True), _joined),
    labels=((BATCH, 1), flow.double),
    highest=8,
)

NETWORKS = {
    "mlp": MLP, "lenet": LENET, "transformer": TRANSFORMER, "wide_deep": WIDE_DEEP
}  # fmt: skip


# --------------------------------------------------------------------------------------- training


def train_job(network: Network, form: Form) -> Any:
    """A train job of a network in some parallel form; gives the loss of each example."""

    def placeholder(shape: tuple[int, ...], dtype: Any) -> Any:
        if form.mirrored:
            shape = (shape[0] // form.devices, *shape[1:])
            return tp.ListNumpy.Placeholder(shape, dtype)
        return tp.Numpy.Placeholder(shape, dtype)

    def network_job(inputs, labels):
        return _training(network, form, inputs, labels)

    network_job.__annotations__ = {
        "inputs": tuple[tuple(placeholder(*one) for one in network.inputs)],
        "labels": placeholder(*network.labels),
        "return": tp.ListNumpy if form.mirrored else tp.Numpy,
    }
    return flow.global_function(type="train", function_config=form.config())(network_job)


def step_of(form: Form, batch: list[Any]) -> list[Any]:
    """A batch as a job in some form takes it."""
    inputs, labels = batch
    if not form.mirrored:
        return [inputs, labels]
    return [tuple(np.split(x, form.devices) for x in inputs), np.split(labels, form.devices)]


def _training(network: Network, form: Form, inputs: Any, labels: Any) -> Any:
    count = len(network.stages)
    x = inputs if len(inputs) > 1 else inputs[0]
    for number, stage in enumerate(network.stages):
        with form.at(number, count):
            x = stage(form, x)
    with form.at(count - 1, count):
        if network.labels[1] is flow.int32:
            loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, x, name="loss")
        else:
            loss = flow.nn.sigmoid_cross_entropy_with_logits(labels, x, name="loss")
        rate = flow.optimizer.PiecewiseConstantScheduler([], [0.05])
        scaled = loss if form.scale == 1 else loss * form.scale
        flow.optimizer.Adam(rate, epsilon=1e-3).minimize(scaled)
    return loss


def batches(network: Network, seed: int = 0) -> list[list[Any]]:
    """Inputs and labels of each step."""
    rng = np.random.default_rng(seed)

    def array(shape: tuple[int, ...], dtype: Any, highest: int) -> Any:
        if dtype is flow.int32:
            return rng.integers(0, highest, shape).astype(np.int32)
        return rng.normal(size=shape)

    found = []
    for _ in range(STEPS):
        inputs = tuple(array(*one, network.highest) for one in network.inputs)
        shape, dtype = network.labels
        labels = array(shape, dtype, 4) if dtype is flow.int32 else rng.integers(0, 2, shape) * 1.0
        found.append([inputs, labels])
    return found


def train(network: Network, form: Form) -> tuple[Any, dict[str, Any]]:
    """The losses of all steps and the final weights, in a session of their own."""
    flow.clear_default_session()
    found = train_here(network, form, train_job(network, form))
    flow.clear_default_session()
    return found


def train_here(network: Network, form: Form, job: Any) -> tuple[Any, dict[str, Any]]:
    """The losses and the final weights of a job in the default session."""
    steps = [job(*step_of(form, batch)) for batch in batches(network)]
    losses = np.array([np.concatenate(x) if form.mirrored else x for x in steps])
    return losses, {name: v.numpy() for name, v in flow.get_all_variables().items()}


TOLERANCE = 1e-10
"""Sums of float64 in another order differ by about 1e-13."""


def assert_near(found: Any, wanted: Any, what: str) -> None:
    scale = max(1.0, float(np.abs(wanted).max(initial=0.0)))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE * scale, err_msg=what)
