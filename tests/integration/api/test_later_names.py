"""Names that releases before and after OneFlow 0.3.4 have, against numpy in float64."""

from __future__ import annotations

import importlib
import itertools
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from mistakes import FIXED

import oneflow as flow
import oneflow.compatible.single_client as single_client
import oneflow.typing as tp
from flow_core.api.compat.counterparts import COUNTERPARTS
from flow_core.base.errors import ConfigError, DataError, InferenceError
from flow_core.frontend.session.session import default_session
from flow_core.frontend.trace.foreign_attributes import BLOB, JOB, OPTIMIZER

MATRIX = np.arange(6.0).reshape(2, 3)
IMAGES = np.arange(24.0).reshape(1, 2, 3, 4)
Array = np.ndarray


def run(body: Callable[..., Any], *arrays: Array, kind: str = "predict") -> Any:
    """Return the result of a job of a body, with float64 and int32 arguments."""

    def job(*blobs: Any) -> Any:
        return body(*blobs)

    names = [f"x{i}" for i in range(len(arrays))]
    dtypes = [flow.int32 if x.dtype.kind == "i" else flow.double for x in arrays]
    scope: dict[str, Any] = {"job": job, "tp": tp}
    scope |= {f"t{i}": tp.Numpy.Placeholder(x.shape, dtype=d)
              for i, (x, d) in enumerate(zip(arrays, dtypes, strict=True))}  # fmt: skip
    typed = ", ".join(f"{n}: t{i}" for i, n in enumerate(names))
    exec(f"def traced({typed}): return job({', '.join(names)})", scope)
    fed = [x.astype(np.int32 if x.dtype.kind == "i" else np.float64) for x in arrays]
    return flow.global_function(type=kind)(scope["traced"])(*fed).get()


def gradient(body: Callable[[Any], Any], x: Array) -> tuple[Array, Array]:
    """Return a result, and the gradient of its sum."""
    found: list[Array] = []

    def train(blob: Any) -> Any:
        zero = flow.get_variable("v", x.shape, flow.double, flow.zeros_initializer())
        blob = blob + zero
        flow.watch_diff(blob, lambda g: found.append(g.numpy()))
        y = body(blob)
        rate = flow.optimizer.PiecewiseConstantScheduler([], [0.0])
        flow.optimizer.SGD(rate, momentum=0).minimize(flow.math.reduce_sum(y))
        return y

    return run(train, x, kind="train").numpy(), found[0]


def numeric_gradient(f: Callable[[Array], Array], x: Array, step: float = 1e-5) -> Array:
    slopes = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        shift = np.zeros_like(x)
        shift[i] = step
        slopes[i] = (f(x + shift).sum() - f(x - shift).sum()) / (2 * step)
    return slopes


def edge(x: Array, left: int, right: int, top: int, bottom: int) -> Array:
    return np.pad(x, [(0, 0), (0, 0), (top, bottom), (left, right)], mode="edge")


ARRAYS: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Array], Array]] = {
    **{
        f"diag of a matrix, {k}": (
            lambda x, k=k: flow.diag(x, k), lambda x, k=k: np.diag(x, k), MATRIX,
        )
        for k in (-1, 0, 1, 2)
    },
    **{
        f"diag of a vector, {k}": (
            lambda x, k=k: flow.diag(x, k), lambda x, k=k: np.diag(x, k), np.arange(1.0, 4),
        )
        for k in (-2, -1, 0, 1, 2)
    },
    "diag of one number": (flow.diag, np.diag, np.ones(1)),
    "expand": (
        lambda x: flow.expand(x, [4, 2, -1, 5]),
        lambda x: np.broadcast_to(x, (4, 2, 3, 5)),
        np.arange(3.0).reshape(3, 1),
    ),
    "constant_pad2d": (
        lambda x: flow.constant_pad2d(x, [1, 2, 3, 0], 2.5),
        lambda x: np.pad(x, [(0, 0), (0, 0), (3, 0), (1, 2)], constant_values=2.5),
        IMAGES,
    ),
    "zero_pad2d": (
        lambda x: flow.zero_pad2d(x, 2), lambda x: np.pad(x, [(0, 0), (0, 0), (2, 2), (2, 2)]),
        IMAGES,
    ),
    "replication_pad2d": (
        lambda x: flow.replication_pad2d(x, (1, 0, 2, 3)), lambda x: edge(x, 1, 0, 2, 3), IMAGES,
    ),
    "replication_pad2d of one pixel": (
        lambda x: flow.replication_pad2d(x, 5), lambda x: edge(x, 5, 5, 5, 5), IMAGES[:, :, :1, :1],
    ),
    "math.logistic": (flow.math.logistic, lambda x: 1 / (1 + np.exp(-x)), MATRIX),
    "keras.activations.relu": (
        lambda x: flow.keras.activations.relu(x), lambda x: np.maximum(x, 0), MATRIX - 2.5
    ),
    "profiler": (
        lambda x: flow.profiler.nvtx_end(flow.profiler.nvtx_start(x, "a"), "a"), np.array, MATRIX
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ARRAYS)
def test_values_and_gradients(case: str) -> None:
    body, expected, x = ARRAYS[case]
    found, slope = gradient(body, x)
    np.testing.assert_allclose(found, expected(x), rtol=1e-12)
    np.testing.assert_allclose(slope, numeric_gradient(expected, x), atol=1e-8)


def test_special_values_are_moved_not_computed_with() -> None:
    x = np.array([np.nan, np.inf, -np.inf, -0.0])
    found = run(lambda x: (flow.diag(x), flow.diag(flow.diag(x))), x)
    np.testing.assert_array_equal(found[0].numpy(), np.diag(x))
    np.testing.assert_array_equal(found[1].numpy(), x)
    padded = run(lambda x: flow.replication_pad2d(x, 1), x.reshape(1, 1, 2, 2)).numpy()
    np.testing.assert_array_equal(padded, edge(x.reshape(1, 1, 2, 2), 1, 1, 1, 1))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (lambda x: flow.diag(x, 3), "-1 to 2"),
        (lambda x: flow.expand(x, (3,)), "a size for each axis"),
        (lambda x: flow.expand(x, (-1, 2, 3)), "a size for each axis"),
        (lambda x: flow.expand(x, (2, 4)), "a size for each axis"),
        (lambda x: flow.zero_pad2d(x, 1), r"\(N, C, H, W\)"),
    ],
)
def test_wrong_arguments(body: Callable[[Any], Any], text: str) -> None:
    with pytest.raises(InferenceError, match=text) as caught:
        run(body, MATRIX)
    assert caught.value.at is not None
    assert caught.value.at.file == __file__


# ------------------------------------------------------------------------------------- CTC


def log_softmax(x: Array) -> Array:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def collapsed(path: tuple[int, ...], blank: int) -> tuple[int, ...]:
    return tuple(c for c, _ in itertools.groupby(path) if c != blank)


def ctc_by_paths(log_probs: Array, target: tuple[int, ...], blank: int) -> float:
    """Return the loss as a sum over all paths, which takes exponential time."""
    steps, classes = log_probs.shape
    total = sum(
        np.exp(sum(log_probs[t, c] for t, c in enumerate(path)))
        for path in itertools.product(range(classes), repeat=steps)
        if collapsed(path, blank) == target
    )
    with np.errstate(divide="ignore"):
        return float(-np.log(total))


TARGETS = np.array([[1, 2], [1, 1], [2, 0], [2, 1]])
LENGTHS = np.array([4, 2, 3, 1]), np.array([2, 2, 1, 0])


def losses_by_paths(logits: Array, blank: int) -> Array:
    log_probs = log_softmax(logits)
    rows = zip(*LENGTHS, TARGETS, strict=True)
    found = [
        ctc_by_paths(log_probs[:t, i], tuple(y[:n]), blank) for i, (t, n, y) in enumerate(rows)
    ]
    return np.array(found)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_ctc_loss(reduction: str) -> None:
    logits = np.random.default_rng(1).normal(0, 1, (4, 4, 3))
    finite = [0, 2, 3]  # in two steps, class 1 cannot occur twice

    def expected(x: Array) -> Array:
        losses = losses_by_paths(x, 0)[finite]
        assert np.isfinite(losses).all()
        if reduction == "mean":
            return (losses / np.maximum(LENGTHS[1][finite], 1)).mean()
        return losses.sum() if reduction == "sum" else losses

    def body(x: Any, *data: Any) -> Any:
        data = [flow.concat([flow.slice(d, *part) for part in parts(d)], 0) for d in data]
        x = flow.concat(
            [flow.slice(x, [0, 0, 0], [4, 1, 3]), flow.slice(x, [0, 2, 0], [4, 2, 3])], 1
        )
        return flow.ctc_loss(flow.nn.logsoftmax(x), *data, reduction=reduction)

    def parts(d: Any) -> Any:
        rest = [0] * (len(d.shape) - 1), list(d.shape[1:])
        return (([0, *rest[0]], [1, *rest[1]]), ([2, *rest[0]], [2, *rest[1]]))

    constants = [TARGETS, *LENGTHS]
    found: list[Array] = []

    def train(x: Any, *data: Any) -> Any:
        x = x + flow.get_variable("v", logits.shape, flow.double, flow.zeros_initializer())
        flow.watch_diff(x, lambda g: found.append(g.numpy()))
        y = body(x, *data)
        rate = flow.optimizer.PiecewiseConstantScheduler([], [0.0])
        flow.optimizer.SGD(rate, momentum=0).minimize(flow.math.reduce_sum(y))
        return y

    losses = run(train, logits, *constants, kind="train").numpy()
    np.testing.assert_allclose(losses, np.reshape(expected(logits), losses.shape), rtol=1e-10)
    np.testing.assert_allclose(found[0], numeric_gradient(expected, logits), atol=1e-7)


def test_infinite_ctc_losses() -> None:
    logits = np.random.default_rng(1).normal(0, 1, (4, 4, 3))

    def body(x: Any, *data: Any) -> Any:
        x = flow.nn.logsoftmax(x)
        kept = flow.ctc_loss(x, *data, reduction="none")
        return kept, flow.ctc_loss(x, *data, reduction="none", zero_infinity=True)

    kept, zeros = (y.numpy() for y in run(body, logits, TARGETS, *LENGTHS))
    expected = losses_by_paths(logits, 0)
    assert np.isinf(expected).tolist() == [False, True, False, False]
    np.testing.assert_allclose(kept, expected, rtol=1e-10)
    np.testing.assert_allclose(zeros, np.where(np.isinf(expected), 0, expected), rtol=1e-10)


@pytest.mark.parametrize("devices", [1, 3])
def test_ctc_loss_of_a_split_batch(devices: int) -> None:
    flow.config.cpu_device_num(devices)
    logits = np.random.default_rng(1).normal(0, 1, (4, 4, 3))
    found: list[Array] = []

    def train(x: Any, *data: Any) -> Any:
        with flow.scope.placement("cpu", f"0:0-{devices - 1}"):
            x = x + flow.get_variable("v", logits.shape, flow.double, flow.zeros_initializer())
            flow.watch_diff(x, lambda g: found.append(g.numpy()))
            x = flow.nn.logsoftmax(x).with_distribute(flow.distribute.split(1))
            y = flow.ctc_loss(x, *data, reduction="none", zero_infinity=True)
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.0])
            flow.optimizer.SGD(rate, momentum=0).minimize(flow.math.reduce_sum(y))
        return y

    def expected(x: Array) -> Array:
        losses = losses_by_paths(x, 0)
        return np.where(np.isinf(losses), 0, losses)

    losses = run(train, logits, TARGETS, *LENGTHS, kind="train").numpy()
    np.testing.assert_allclose(losses, expected(logits), rtol=1e-10)
    np.testing.assert_allclose(found[0], numeric_gradient(expected, logits), atol=1e-7)


@pytest.mark.parametrize(
    ("which", "value", "text"),
    [(0, 3, "< 3, the number of classes"), (1, 5, "1 to 4"), (1, 0, "1 to 4"), (2, 3, "0 to 2")],
)
def test_ctc_data_out_of_range(which: int, value: int, text: str) -> None:
    data = [TARGETS.copy(), *(x.copy() for x in LENGTHS)]
    data[which].flat[0] = value
    with pytest.raises(DataError, match=text):
        run(lambda *xs: flow.ctc_loss(*xs), np.zeros((4, 4, 3)), *data)


# ------------------------------------------------------------------------------- attention


def test_fused_self_attention() -> None:
    x = np.random.default_rng(2).normal(0, 1, (5, 2, 18))

    def expected(x: Array) -> tuple[Array, Array]:
        query, key, value = np.moveaxis(x.reshape(5, 2, 2, 3, 3), 3, 0).transpose(0, 2, 3, 1, 4)
        return 0.5 * query @ key.swapaxes(-1, -2), value

    def body(x: Any) -> Any:
        scores, values = flow.nn.fused_self_attention_query_mul_key_and_value(x, 3, 0.5)
        return flow.matmul(scores, values)

    def product(x: Array) -> Array:
        scores, values = expected(x)
        return scores @ values

    found, slope = gradient(body, x)
    np.testing.assert_allclose(found, product(x), rtol=1e-10)
    np.testing.assert_allclose(slope, numeric_gradient(product, x), atol=1e-6)


# -------------------------------------------------------------------------- names and paths


def test_size() -> None:
    size = flow.Size([2, 3, 4])
    assert size == (2, 3, 4)
    assert size.numel() == 24
    assert isinstance(size[1:], flow.Size)
    assert size[-1] == 4
    assert size.index(4, start=1, end=20) == 2
    with pytest.raises(ValueError, match="not in"):
        size.index(2, start=1)
    assert repr(size) == "flow.Size([2, 3, 4])"


def test_processes_and_build() -> None:
    assert (flow.distributed.get_rank(), flow.distributed.get_world_size()) == (0, 1)
    assert not flow.sysconfig.has_rpc_backend_grpc()
    assert flow.sysconfig.has_rpc_backend_local()
    assert not flow.sysconfig.with_xla()
    flow.env.init_bootstrap_confs(["10.0.0.1", "10.0.0.2"], 9000, 4)
    assert default_session().resources.others["env.machine"] == ("10.0.0.1", "10.0.0.2")
    with pytest.raises(ConfigError, match="multiple"):
        flow.env.init_bootstrap_confs(["10.0.0.1", "10.0.0.2"], 9000, 3)
    flow.env.machine("127.0.0.1")  # outlives the session


def test_the_type_of_blobs_in_annotations() -> None:
    assert flow._oneflow_internal.BlobDesc is importlib.import_module("oneflow_api").BlobDesc


def test_the_type_of_initializers_in_annotations() -> None:
    module = importlib.import_module("oneflow.core.job.initializer_conf_pb2")
    assert isinstance(flow.zeros_initializer(), module.InitializerConf)


def test_ranges_of_the_host() -> None:
    flow.profiler.range_push("a")
    flow.profiler.range_pop()
    with pytest.raises(ConfigError, match="range_push"):
        flow.profiler.range_pop()


@pytest.mark.parametrize(
    "name", ["Tensor", "nn.Linear", "nn.Parameter", "experimental.nn", "experimental.add", "optim"]
)
def test_eager_names_say_which_release_has_them(name: str) -> None:
    module, _, last = f"oneflow.{name}".rpartition(".")
    assert not hasattr(importlib.import_module(module), last)
    with pytest.raises(AttributeError, match=r"eager mode of OneFlow 0\.4"):
        getattr(importlib.import_module(module), last)


@pytest.mark.parametrize("module", [flow.nn, flow.experimental, flow.layers, flow.keras])
def test_unknown_names_get_a_hint(module: Any) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nme_scope'"):
        module.nme_scope  # noqa: B018


def assert_named_objects_exist(text: str) -> None:
    for path in re.findall(r"\bflow\.([\w.]*\w)", text):
        assert operator.attrgetter(path)(flow) is not None
    for package, name in re.findall(r"\b(flow_\w+)\.(\w+)", text):
        assert hasattr(importlib.import_module(package), name)


@pytest.mark.parametrize("module", COUNTERPARTS)
def test_names_of_other_frameworks_have_counterparts_that_exist(module: str) -> None:
    for name, counterpart in COUNTERPARTS[module].items():
        assert not hasattr(importlib.import_module(module), name)
        with pytest.raises(AttributeError) as caught:
            getattr(importlib.import_module(module), name)
        assert f"; use {counterpart}" in str(caught.value)
        assert_named_objects_exist(counterpart)


@pytest.mark.parametrize(
    ("statement", "counterpart"),
    [
        ("from oneflow import optim", "use flow.optimizer"),
        ("from oneflow.keras import layers", "use flow.layers and flow.nn"),
        ("from oneflow.nn import functional", "use the functions of flow.nn itself"),
        ("import oneflow.nn.functional as F", "use the functions of flow.nn itself"),
        ("import oneflow.optim as optim", "use flow.optimizer"),
        ("from oneflow.utils.data import DataLoader", "use flow.data.batches"),
    ],
)
def test_imports_of_other_frameworks_have_counterparts(statement: str, counterpart: str) -> None:
    with pytest.raises(ImportError, match=re.escape(counterpart)):
        exec(statement, {})


@pytest.mark.parametrize("statement", ["import oneflow.nme", "from oneflow import nme"])
def test_imports_of_unknown_names_are_errors_of_python(statement: str) -> None:
    with pytest.raises(ImportError, match="nme"):
        exec(statement, {})


def blob() -> Any:
    """A blob, of a job that is traced."""
    kept = []

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 2))) -> tp.Numpy:
        kept.append(x)
        return x

    job.prepare()
    return kept[0]


def plain() -> Any:
    """A job."""
    return flow.global_function()(lambda x=FIXED: x)


@pytest.mark.parametrize(
    ("make", "table"),
    [(blob, BLOB), (plain, JOB), (lambda: flow.optimizer.SGD(0.1), OPTIMIZER)],
    ids=["blob", "job", "optimizer"],
)
def test_attributes_of_other_frameworks_have_counterparts_that_exist(
    make: Callable[[], Any], table: Mapping[str, str]
) -> None:
    owner = make()
    for name, counterpart in table.items():
        with pytest.raises(AttributeError, match=f" has no '{name}'; (use|leave) ") as caught:
            getattr(owner, name)
        assert counterpart in str(caught.value)
        assert_named_objects_exist(counterpart)


def test_functions_of_older_releases() -> None:
    config = flow.FunctionConfig()
    config.train.primary_lr(0.1)

    @flow.function(flow.FunctionConfig())
    def predict(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        return x

    assert flow.function(config)(lambda: None).kind == "train"
    assert predict(np.ones(2, np.float32)).tolist() == [1, 1]


# ------------------------------------------------------------------------------ single_client


def test_modules_of_the_single_client() -> None:
    nn = importlib.import_module("oneflow.compatible.single_client.nn")
    assert nn is single_client.nn
    assert nn.relu is flow.nn.relu
    assert single_client.layers.dense is flow.layers.dense
    assert single_client.optimizer is flow.optimizer


def test_the_bias_of_a_convolution() -> None:
    x, w, b = IMAGES, np.arange(12.0).reshape(3, 2, 1, 2), np.array([1.0, -1, 0.5])
    found = run(lambda x, w, b: single_client.nn.conv2d(x, w, 1, "VALID", b), x, w, b).numpy()
    plain = run(lambda x, w: flow.nn.conv2d(x, w, 1, "VALID"), x, w).numpy()
    np.testing.assert_array_equal(found, plain + b[:, None, None])


def test_the_order_of_another_release_is_named() -> None:
    w = np.ones((3, 2, 1, 1))
    with pytest.raises(InferenceError, match=r"0\.3\.4(.|\n)*import oneflow as flow"):
        run(lambda x, w: single_client.nn.conv2d(x, w, 1, "SAME", "NCHW"), IMAGES, w)
    with pytest.raises(InferenceError, match="single_client"):
        run(lambda x, w, b: flow.nn.conv2d(x, w, 1, "SAME", b), IMAGES, w, np.ones(3))
    with pytest.raises(InferenceError, match="align_corners"):
        run(lambda x: single_client.layers.upsample_2d(x, 2, "NCHW"), IMAGES)


def test_other_orders_of_the_single_client() -> None:
    found = run(lambda x: single_client.matmul(x, x, False, True, 2.0), MATRIX).numpy()
    np.testing.assert_allclose(found, 2 * MATRIX @ MATRIX.T)
    scale, _ = run(
        lambda x: single_client.quantization.min_max_observer(x, 8, "symmetric", "google"), MATRIX
    )
    np.testing.assert_allclose(scale.numpy(), 5 / 127)
