"""Layers for sequences give what their papers' formulas give in numpy, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import plain_device
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import FlowError, InferenceError

RNG = np.random.default_rng(0)
BATCH, QUERIES, KEYS, WIDTH = 4, 5, 6, 8
X = RNG.normal(size=(BATCH, QUERIES, WIDTH))
MEMORY = RNG.normal(size=(BATCH, KEYS, 6))
SEEN = np.int8(RNG.uniform(size=(BATCH, QUERIES)) < 0.7)
SEEN[0], SEEN[1] = 1, 0


@pytest.fixture(autouse=True)
def devices() -> None:
    flow.config.cpu_device_num(4)


def run(function: Callable[..., Any], *arrays: Any, devices: str = "0:0", results: int = 1) -> Any:
    """Return the results of a predict job, and its variables."""

    def job(xs: Any) -> Any:
        with flow.scope.placement("cpu", devices):
            found = function(*xs)
            return found if isinstance(found, tuple) else (found,)

    kinds = {"f": flow.double, "i": flow.int32}
    places = [
        tp.Numpy.Placeholder(x.shape, flow.int8 if x.dtype == np.int8 else kinds[x.dtype.kind])
        for x in arrays
    ]
    job.__annotations__ = {"xs": tuple[*places], "return": tuple[*[tp.Numpy] * results]}
    found = flow.global_function()(job)(tuple(arrays))
    weights = {name: w.numpy() for name, w in flow.get_all_variables().items()}
    return (*found, weights)


def close(found: Any, wanted: Any, tolerance: float = 1e-10) -> None:
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def softmax(x: Any) -> Any:
    parts = np.exp(x - x.max(-1, keepdims=True))
    return parts / parts.sum(-1, keepdims=True)


def rotated(x: Any, base: float = 10000.0) -> Any:
    """Rotate by complex numbers: features i and i + d / 2 are the real and imaginary parts."""
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[-2])[:, None] * base ** (-np.arange(half) / half)
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], -1)


def attended(q: Any, k: Any, v: Any, mask: Any = 0.0) -> Any:
    groups = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, groups, 1) for x in (k, v))
    return softmax(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]) + mask) @ v


def hidden(seen: Any) -> Any:
    return np.where(seen, 0, -1e9)


def earlier(queries: int, keys: int) -> Any:
    return hidden(np.tri(queries, keys, keys - queries))


# ------------------------------------------------------------------------------------ attention


def heads_of(*shape: int) -> Any:
    return np.random.default_rng(shape[1]).normal(size=shape)


ATTENTION: dict[str, tuple[tuple[Any, ...], dict[str, Any], Any]] = {
    "plain": ((heads_of(2, 4, 5, 8), heads_of(2, 4, 6, 8), heads_of(2, 4, 6, 3)), {}, 0.0),
    "causal": (
        (heads_of(2, 4, 5, 8), heads_of(2, 4, 5, 8), heads_of(2, 4, 5, 8)),
        {"causal": True},
        earlier(5, 5),
    ),
    "causal, more keys": (
        (heads_of(2, 4, 3, 8), heads_of(2, 4, 5, 8), heads_of(2, 4, 5, 8)),
        {"causal": True},
        earlier(3, 5),
    ),
    "groups": ((heads_of(2, 6, 5, 8), heads_of(2, 2, 6, 8), heads_of(2, 2, 6, 3)), {}, 0.0),
    "groups, causal": (
        (heads_of(2, 6, 5, 8), heads_of(2, 2, 5, 8), heads_of(2, 2, 5, 3)),
        {"causal": True},
        earlier(5, 5),
    ),
    "one group": (
        (heads_of(2, 4, 5, 8), heads_of(2, 1, 5, 8), heads_of(2, 1, 5, 8)),
        {"causal": True},
        earlier(5, 5),
    ),
}
MASKS = {
    "padding": SEEN[:2, :5],
    "added to all heads": RNG.normal(size=(5, 5)),
    "added by head": RNG.normal(size=(6, 1, 5)),
    "added to all": RNG.normal(size=(2, 6, 5, 5)),
}


@pytest.mark.parametrize("devices", ["0:0", "0:0-3"])
@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name: str, devices: str) -> None:
    given, how, mask = ATTENTION[name]
    found, _ = run(lambda *xs: flow.nn.attention(*xs, **how), *given, devices=devices)
    close(found, attended(*given, mask))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [6, 2])
@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str, heads: int, causal: bool) -> None:
    mask = MASKS[name]
    given = heads_of(2, 6, 5, 4), heads_of(2, heads, 5, 4), heads_of(2, heads, 5, 4)
    found, _ = run(lambda *xs: flow.nn.attention(*xs, causal=causal), *given, mask)
    added = hidden(mask)[:, None, None] if name == "padding" else mask
    close(found, attended(*given, added + (earlier(5, 5) if causal else 0)), 1e-6)


def test_a_query_that_sees_no_key_gets_an_average() -> None:
    q, k, v = heads_of(1, 1, 2, 4), heads_of(1, 1, 3, 4), heads_of(1, 1, 3, 4)
    found, _ = run(lambda *xs: flow.nn.attention(*xs), q, k, v, np.zeros((1, 3), np.int8))
    low, high = v.min(2, keepdims=True), v.max(2, keepdims=True)
    assert ((low < found) & (found < high)).all()


def test_rotary_positions() -> None:
    x = heads_of(2, 3, 7, 8)
    close(run(flow.nn.rotary_embedding, x)[0], rotated(x))
    close(run(lambda x: flow.nn.rotary_embedding(x, 100), x)[0], rotated(x, 100.0))


def test_products_of_rotated_vectors_depend_on_the_difference_of_positions() -> None:
    x = np.broadcast_to(heads_of(2, 1, 1, 8), (2, 1, 6, 8))
    found, _ = run(flow.nn.rotary_embedding, np.ascontiguousarray(x))
    products = found[0, 0] @ found[1, 0].T
    close(products[1:, 1:], products[:-1, :-1])


@pytest.mark.parametrize("devices", ["0:0", "0:0-3"])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"causal": True, "rotary_base": 10000},
        {"num_key_value_heads": 2, "units": 3, "use_bias": False},
    ],
    ids=["plain", "causal and rotary", "grouped"],
)
def test_multi_head_attention(how: dict[str, Any], devices: str) -> None:
    layer = flow.layers.multi_head_attention
    found, w = run(lambda x: layer(x, 4, name="mha", **how), X, devices=devices)

    def dense(x: Any, name: str) -> Any:
        return x @ w[f"mha-{name}-weight"].T + w.get(f"mha-{name}-bias", 0)

    def split(x: Any, heads: int) -> Any:
        return x.reshape(BATCH, -1, heads, 2).swapaxes(1, 2)

    few = how.get("num_key_value_heads", 4)
    q, k, v = (
        split(dense(X, "query"), 4),
        split(dense(X, "key"), few),
        split(dense(X, "value"), few),
    )
    if "rotary_base" in how:
        q, k = rotated(q), rotated(k)
    y = attended(q, k, v, earlier(QUERIES, QUERIES) if "causal" in how else 0.0)
    close(found, dense(y.swapaxes(1, 2).reshape(BATCH, QUERIES, 8), "out"))
    assert np.ptp(found) > 0.1
    assert len(w) == (4 if "units" in how else 8)


def test_attention_to_another_sequence() -> None:
    layer = flow.layers.multi_head_attention
    found, w = run(lambda x, m: layer(x, 2, m, head_size=3, name="mha"), X, MEMORY)

    def dense(x: Any, name: str) -> Any:
        return x @ w[f"mha-{name}-weight"].T

    q, k, v = (
        dense(x, name).reshape(BATCH, -1, 2, 3).swapaxes(1, 2)
        for x, name in ((X, "query"), (MEMORY, "key"), (MEMORY, "value"))
    )
    close(found, dense(attended(q, k, v).swapaxes(1, 2).reshape(BATCH, QUERIES, 6), "out"))


# ----------------------------------------------------------------------- the other layers


def test_embedding() -> None:
    ids = np.int32([[3, 0], [9, 3]])
    found, w = run(lambda i: flow.layers.embedding(i, 10, 4, dtype=flow.double), ids)
    close(found, w["Embedding-weight"][ids])
    assert 0.005 < w["Embedding-weight"].std() < 0.05


@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_norm(axis: int) -> None:
    gamma = RNG.uniform(0.5, 2, X.shape[axis])

    def layer(x: Any) -> Any:
        return flow.layers.rms_norm(x, axis=axis, epsilon=1e-3, name="norm")

    run(layer, X)
    flow.load_variables({"norm-gamma": gamma})
    found, _ = run(lambda x: flow.math.add(layer(x), 0), X)
    shape = [-1 if i == axis % 3 else 1 for i in range(3)]
    wanted = X / np.sqrt((X**2).mean(axis, keepdims=True) + 1e-3) * gamma.reshape(shape)
    close(found, wanted)


def test_rms_norm_of_float16_does_not_overflow() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 4), dtype=flow.float16)) -> tp.Numpy:
        return flow.nn.rms_norm(x)

    np.testing.assert_array_equal(job(np.full((2, 4), 6e4, np.float16)), np.ones((2, 4)))


def test_swiglu() -> None:
    found, _ = run(lambda x: flow.nn.swiglu(x, axis=-1), X)
    close(found, X[..., :4] * sigmoid(X[..., :4]) * X[..., 4:])
    found, w = run(lambda x: flow.layers.swiglu(x, 12, name="glu"), X)
    gate, up = (X @ w[f"glu-{name}-weight"].T for name in ("gate", "up"))
    close(found, gate * sigmoid(gate) * up @ w["glu-down-weight"].T)


def lstm(x: Any, w: Any, h: Any, c: Any) -> Any:
    outputs = []
    for t in range(x.shape[1]):
        parts = x[:, t] @ w["r-weight"].T + h @ w["r-recurrent-weight"].T + w["r-bias"]
        i, f, g, o = np.split(parts, 4, 1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return np.stack(outputs, 1), h, c


def gru(x: Any, w: Any, h: Any) -> Any:
    outputs = []
    for t in range(x.shape[1]):
        r, z, n = np.split(x[:, t] @ w["r-weight"].T + w["r-bias"], 3, 1)
        own = np.split(h @ w["r-recurrent-weight"].T + w["r-recurrent-bias"], 3, 1)
        z = sigmoid(z + own[1])
        h = (1 - z) * np.tanh(n + sigmoid(r + own[0]) * own[2]) + z * h
        outputs.append(h)
    return np.stack(outputs, 1), h


@pytest.mark.parametrize("devices", ["0:0", "0:0-3"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_lstm(given: bool, reverse: bool, devices: str) -> None:
    state = RNG.normal(size=(2, BATCH, 3))

    def layer(x: Any, *states: Any) -> Any:
        outputs, (h, c) = flow.layers.lstm(x, 3, states or None, reverse, name="r")
        return outputs, h, c

    arrays = (X, *state) if given else (X,)
    run(layer, *arrays, results=3)
    flow.load_variables({"r-bias": RNG.normal(size=12)})
    *found, w = run(lambda *xs: layer(*xs), *arrays, devices=devices, results=3)
    outputs, h, c = lstm(X[:, ::-1] if reverse else X, w, *(state if given else (0 * state)))
    for own, wanted in zip(found, (outputs[:, ::-1] if reverse else outputs, h, c), strict=True):
        close(own, wanted)


@pytest.mark.parametrize("devices", ["0:0", "0:0-3"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_gru(given: bool, reverse: bool, devices: str) -> None:
    state = RNG.normal(size=(BATCH, 3))

    def layer(x: Any, h: Any = None) -> Any:
        return flow.layers.gru(x, 3, h, reverse, name="r")

    arrays = (X, state) if given else (X,)
    run(layer, *arrays, results=2)
    biases = RNG.normal(size=(2, 9))
    flow.load_variables({"r-bias": biases[0], "r-recurrent-bias": biases[1]})
    *found, w = run(lambda *xs: layer(*xs), *arrays, devices=devices, results=2)
    outputs, h = gru(X[:, ::-1] if reverse else X, w, state if given else 0 * state)
    for own, wanted in zip(found, (outputs[:, ::-1] if reverse else outputs, h), strict=True):
        close(own, wanted)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("reverse", [False, True])
def test_one_op_is_what_the_ops_of_all_positions_are(reverse: bool, kind: str) -> None:
    """Layers are unrolled for devices without a kernel for them; both forms train alike."""

    def train() -> tuple[Any, Any, set[str]]:
        @flow.global_function("train")
        def job(x: tp.Numpy.Placeholder(X.shape)) -> tp.Numpy:
            with flow.scope.placement("plain", "0:0-1"):
                outputs, state = getattr(flow.layers, kind)(x, 3, reverse=reverse, name="r")
                last = state[1] if kind == "lstm" else state
                loss = flow.math.reduce_sum(flow.math.square(outputs)) + flow.math.reduce_sum(last)
                flow.optimizer.SGD(0.01).minimize(loss)
                return loss

        losses = [job(X.astype(np.float32)) for _ in range(3)]
        weights = {name: w.numpy() for name, w in flow.get_all_variables().items()}
        return losses, weights, {task.type for task in job.compile().plan.tasks}

    def trained(*without: str) -> tuple[Any, Any, set[str]]:
        with plain_device.session(plain_device.registry((*plain_device.COMBINED, *without))):
            return train()

    layer = {kind, f"{kind}_grad"}
    losses, weights, types = trained()
    assert layer <= types
    wanted, others, unrolled = trained(*layer)
    assert not layer & unrolled
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    for name, w in others.items():
        np.testing.assert_allclose(weights[name], w, rtol=1e-4, atol=1e-6)


# ------------------------------------------------------------------- gradients, sizes, errors

LAYERS: dict[str, Callable[[Any], Any]] = {
    "multi_head_attention": lambda x: flow.layers.multi_head_attention(
        x, 4, num_key_value_heads=2, causal=True, rotary_base=10000
    ),
    "rms_norm": flow.layers.rms_norm,
    "swiglu": lambda x: flow.layers.swiglu(x, 6),
    "lstm": lambda x: flow.layers.lstm(x, 3)[0],
    "gru": lambda x: flow.layers.gru(x, 3)[0],
}


@pytest.mark.parametrize("name", LAYERS)
def test_gradients(name: str) -> None:
    """Gradients of the input and of each variable match difference quotients along a direction."""
    gradients: dict[str, Any] = {}

    def layer(x: Any) -> Any:
        return flow.math.reduce_sum(flow.math.sin(3.0 * LAYERS[name](x)))

    @flow.global_function("train")
    def train() -> tp.Numpy:
        x = flow.get_variable("x", X.shape, flow.double, flow.zeros_initializer())
        flow.watch_diff(x, lambda blob: gradients.update(x=blob.numpy()))
        loss = layer(x)
        flow.optimizer.SGD(1.0, momentum=0).minimize(loss)
        return loss

    @flow.global_function()
    def loss() -> tp.Numpy:
        return layer(flow.get_variable("x", X.shape, flow.double, flow.zeros_initializer()))

    loss()
    arrays = {name: w.numpy() for name, w in flow.get_all_variables().items()}
    before = {name: w for name, w in arrays.items() if w.dtype.kind == "f"} | {"x": X}
    flow.load_variables(before)
    train()
    after = {name: w.numpy() for name, w in flow.get_all_variables().items() if name in before}
    np.testing.assert_allclose(before["x"] - after["x"], gradients["x"], rtol=1e-9, atol=1e-12)
    for changed, start in before.items():
        direction = np.random.default_rng(1).normal(size=start.shape)
        values = []
        for sign in (1, -1):
            flow.load_variables({**before, changed: start + sign * 1e-6 * direction})
            values.append(loss()[0])
        wanted = (values[0] - values[1]) / 2e-6
        found = ((start - after[changed]) * direction).sum()
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7, err_msg=changed)


@pytest.mark.parametrize("name", LAYERS)
def test_the_batch_may_be_of_any_size(name: str) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((None, QUERIES, WIDTH))) -> tp.Numpy:
        return LAYERS[name](x)

    x = X.astype(np.float32)
    whole = job(x)
    np.testing.assert_allclose(job(x[:3]), whole[:3], rtol=1e-5, atol=1e-6)


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "embedding of floats": (lambda x: flow.layers.embedding(x, 3, 4), "integers"),
    "heads": (lambda x: flow.layers.multi_head_attention(x, 3), "3 heads for width 8"),
    "groups": (
        lambda x: flow.layers.multi_head_attention(x, 4, num_key_value_heads=3),
        "num_key_value_heads=3",
    ),
    "mask": (
        lambda x: flow.layers.multi_head_attention(x, 4, mask=flow.ones((4, 3), flow.int8)),
        "truth values of shape (4, 5)",
    ),
    "no key heads": (
        lambda x: flow.nn.attention(x[:, None], *[flow.zeros((4, 0, 5, 8))] * 2),
        "a number of key heads that divides the heads",
    ),
    "rank": (lambda x: flow.nn.attention(x, x, x), "(batch, heads, queries, features)"),
    "odd": (lambda x: flow.nn.swiglu(x, 1), "an axis of even size"),
    "rotary": (lambda x: flow.nn.rotary_embedding(x[..., :3]), "an even number of features"),
    "rms_norm": (lambda x: flow.layers.rms_norm(x, axis=3), "-3 to 2"),
    "lstm": (lambda x: flow.layers.lstm(x[0], 3)[0], "(batch, positions, width)"),
    "state": (lambda x: flow.layers.lstm(x, 3, (x, x))[0], "2 blobs of shape (4, 3)"),
    "one state": (lambda x: flow.layers.lstm(x, 3, x)[0], "2 blobs of shape (4, 3)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_are_refused_at_the_user_s_line(name: str) -> None:
    function, text = WRONG[name]

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(X.shape)) -> tp.Numpy:
        return function(x)

    with pytest.raises(InferenceError) as error:
        job(X)
    assert text in str(error.value)
    assert "test_sequence_layers.py" in str(error.value)
    assert isinstance(error.value, FlowError)
