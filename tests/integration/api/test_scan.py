"""``flow.scan`` traces its function once, and gives what a Python loop gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import plain_device
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import FlowError, JobError, UnsupportedError

STEPS, BATCH, WIDTH = 5, 4, 3
X = np.random.default_rng(0).normal(size=(STEPS, BATCH, WIDTH)).astype(np.float32)
H = np.random.default_rng(1).normal(size=(BATCH, WIDTH)).astype(np.float32)
W = np.random.default_rng(2).normal(size=(WIDTH, WIDTH)).astype(np.float32)


@pytest.fixture(autouse=True)
def devices() -> None:
    flow.config.cpu_device_num(4)


def weight() -> Any:
    return flow.get_variable("w", W.shape, initializer=flow.zeros_initializer())


def cell(h: Any, x: Any) -> Any:
    h = flow.math.tanh(flow.matmul(h, weight()) + x)
    return h, (h * 2.0, flow.math.reduce_sum(h, 1))


def numpy_cell(h: Any, x: Any) -> Any:
    h = np.tanh(h @ W + x)
    return h, (h * 2, h.sum(1))


def numpy_scan(xs: Any) -> tuple[Any, Any]:
    h, ys = H, []
    for x in xs:
        h, y = numpy_cell(h, x)
        ys.append(y)
    return h, [np.stack(parts) for parts in zip(*ys, strict=True)]


def recurrent(reverse: bool, devices: str = "0:0") -> Any:
    @flow.global_function()
    def job(
        h: tp.Numpy.Placeholder(H.shape), x: tp.Numpy.Placeholder(X.shape)
    ) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        with flow.scope.placement("cpu", devices):
            last, (first, second) = flow.scan(cell, h, x, reverse=reverse)
            return last, first, second

    return job


@pytest.mark.parametrize("devices", ["0:0", "0:0-3"])
@pytest.mark.parametrize("reverse", [False, True])
def test_scans_are_those_of_a_loop(reverse: bool, devices: str) -> None:
    job = recurrent(reverse, devices)
    flow.load_variables({"w": W})
    last, *ys = job(H, X)
    wanted, others = numpy_scan(X[::-1] if reverse else X)
    np.testing.assert_allclose(last, wanted, rtol=1e-5, atol=1e-6)
    for found, other in zip(ys, others, strict=True):
        np.testing.assert_allclose(found, other[::-1] if reverse else other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 40])
def test_the_function_is_traced_once(length: int) -> None:
    calls = []

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((length, 2))) -> tp.Numpy:
        def body(state: Any, element: Any) -> Any:
            calls.append(element.shape)
            return state + element, None

        return flow.scan(body, flow.zeros((2,)), x)[0]

    np.testing.assert_array_equal(job(np.ones((length, 2), np.float32)), np.full(2, length))
    assert calls == [(2,)]


def trained(loop: Callable[..., Any], devices: str) -> Any:
    """Return the loss and the weight after three steps of a job that trains through a loop."""

    @flow.global_function("train")
    def job(h: tp.Numpy.Placeholder(H.shape), x: tp.Numpy.Placeholder(X.shape)) -> tp.Numpy:
        with flow.scope.placement("cpu", devices):
            last, ys = loop(cell, h, x)
            loss = flow.math.reduce_mean(flow.math.square(last)) + flow.math.reduce_mean(ys[1])
            flow.optimizer.SGD(0.1).minimize(loss)
            return loss

    flow.load_variables({"w": W})
    losses = [job(H, X)[0] for _ in range(3)]
    return losses, flow.get_all_variables()["w"].numpy()


def python_loop(body: Any, state: Any, xs: Any) -> Any:
    ys = []
    for x in flow.unbind(xs):
        state, y = body(state, x)
        ys.append(y)
    return state, [flow.stack(parts) for parts in zip(*ys, strict=True)]


@pytest.mark.parametrize("devices", ["0:0", "0:0-3"])
def test_gradients_are_those_of_a_loop(devices: str) -> None:
    losses, w = trained(flow.scan, devices)
    flow.clear_default_session()
    flow.config.cpu_device_num(4)
    wanted, other = trained(python_loop, devices)
    np.testing.assert_allclose(losses, wanted, rtol=1e-6)
    np.testing.assert_allclose(w, other, rtol=1e-5, atol=1e-6)
    assert losses[2] < losses[0]


def trained_with(setting: str, loop: Callable[..., Any]) -> Any:
    """Return the losses of two steps, and the weight, of a job with a setting."""
    flow.clear_default_session()
    config = flow.function_config()
    config.train.num_gradient_accumulation_steps(2 if setting == "micro-batches" else 1)
    config.enable_auto_mixed_precision(setting == "mixed precision")

    @flow.global_function("train", config)
    def job(x: tp.Numpy.Placeholder((BATCH, STEPS, WIDTH))) -> tp.Numpy:
        with flow.experimental.scope.config(checkpointing=setting == "checkpointing"):
            _, ys = loop(cell, flow.zeros_like(x[:, 0]), flow.transpose(x, (1, 0, 2)))
        loss = flow.math.reduce_mean(flow.math.square(ys[0]))
        flow.optimizer.SGD(0.1).minimize(loss)
        return loss

    flow.load_variables({"w": W})
    x = np.ascontiguousarray(X.transpose(1, 0, 2))
    losses = [job(x).mean() for _ in range(2)]
    return losses, flow.get_all_variables()["w"].numpy()


@pytest.mark.parametrize("setting", ["checkpointing", "micro-batches", "mixed precision"])
def test_settings_apply_to_all_positions(setting: str) -> None:
    losses, w = trained_with(setting, flow.scan)
    wanted, other = trained_with(setting, python_loop)
    rtol = 1e-3 if setting == "mixed precision" else 1e-6  # gradients are summed in float32
    np.testing.assert_allclose(losses, wanted, rtol=rtol)
    np.testing.assert_allclose(w, other, rtol=rtol)


def test_the_batch_may_be_of_any_size() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((None, 3))) -> tp.Numpy:
        steps = flow.transpose(x, (1, 0))
        return flow.scan(lambda s, e: (s + e, s), flow.zeros_like(x[:, 0]), steps)[1]

    for rows in (4, 2, 3):
        x = np.arange(3.0 * rows, dtype=np.float32).reshape(rows, 3)
        np.testing.assert_array_equal(job(x), np.cumsum(x, 1).T - x.T)


def test_ops_that_do_not_vary_are_shared() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((6, 3))) -> tp.Numpy:
        def body(state: Any, element: Any) -> Any:
            doubled = flow.matmul(weight(), weight())
            return state + element * flow.math.reduce_sum(doubled), None

        return flow.scan(body, flow.zeros((3,)), x)[0]

    types = [op.type for op in job.prepare().build.builder.ops.values()]
    assert types.count("matmul") == 1


def test_the_first_state_may_also_be_read_from_outside() -> None:
    @flow.global_function()
    def job(h: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        return flow.scan(lambda s, _: (s + h, None), h, length=3)[0]

    np.testing.assert_array_equal(job(np.ones(2, np.float32)), [4, 4])


def test_several_states_keep_their_form() -> None:
    @flow.global_function()
    def job() -> tuple[tp.Numpy, tp.Numpy]:
        def body(state: Any, _: None) -> Any:
            a, b = state
            return (b, a + b), None

        one = flow.ones((1,), flow.int64)
        (a, b), none = flow.scan(body, (one, one), length=10)
        assert none is None
        return a, b

    assert [x.item() for x in job()] == [89, 144]


def test_random_numbers_differ_by_position() -> None:
    @flow.global_function("train")
    def job() -> tp.Numpy:
        w = flow.get_variable("w", (64,), initializer=flow.ones_initializer())
        _, ys = flow.scan(lambda s, _: (s, flow.nn.dropout(s, 0.5)), w, length=4)
        flow.optimizer.SGD(0.0).minimize(flow.math.reduce_sum(ys))
        return ys

    found = job()
    assert len({row.tobytes() for row in found}) == 4
    assert set(np.unique(found)) == {0, 2}


def counted() -> Any:
    count = flow.get_variable("count", (2,), initializer=flow.zeros_initializer())
    flow.assign(count, count + 1.0)
    return count


def watched(state: Any) -> Any:
    flow.watch(state, print)
    return state


WRONG: dict[str, tuple[Callable[[Any], Any], type[FlowError], str]] = {
    "another shape": (
        lambda x: flow.scan(lambda s, e: (flow.stack([s, e]), None), x[0], x),
        JobError,
        "as the state before",
    ),
    "no pair": (lambda x: flow.scan(lambda s, e: s + e, x[0], x), JobError, "(state, result)"),
    "no length": (lambda x: flow.scan(lambda s, e: (s, s), x[0]), JobError, "length=None"),
    "a truth value": (
        lambda x: flow.scan(lambda s, e: (s, s), x[0], length=True),
        JobError,
        "length=True",
    ),
    "no function": (lambda x: flow.scan(3, x[0], x), JobError, "a function of blobs"),
    "two lengths": (
        lambda x: flow.scan(lambda s, e: (s, s), x[0], (x, x[1:])),
        JobError,
        "one size of axis 0",
    ),
    "another length": (
        lambda x: flow.scan(lambda s, e: (s, s), x[0], x, length=2),
        JobError,
        "length=2",
    ),
    "assignment": (
        lambda x: flow.scan(lambda s, e: (s + counted(), None), x[0], x),
        UnsupportedError,
        "assign",
    ),
    "watch": (
        lambda x: flow.scan(lambda s, e: (watched(s), None), x[0], x),
        UnsupportedError,
        "watch",
    ),
    "a number": (lambda x: flow.scan(lambda s, e: (s, None), 0.0, x), FlowError, "0.0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_are_refused_at_the_user_s_line(name: str) -> None:
    function, kind, text = WRONG[name]

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((3, 2))) -> tp.Numpy:
        return function(x)[0]

    with pytest.raises(kind) as error:
        job(np.ones((3, 2), np.float32))
    assert text in str(error.value)
    assert "test_scan.py" in str(error.value)


def test_the_mirrored_view_is_refused() -> None:
    config = flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view())

    @flow.global_function(function_config=config)
    def job(x: tp.Numpy.Placeholder((4, 2))) -> tp.Numpy:
        return flow.scan(lambda s, e: (s + e, None), x[0], x)[0]

    with pytest.raises(UnsupportedError, match="consistent view"):
        job(np.ones((4, 2), np.float32))


@pytest.mark.parametrize("device", ["0:0", "0:0-1"])
def test_the_size_of_the_plan_does_not_depend_on_the_length(device: str) -> None:
    def sizes(length: int) -> tuple[int, ...]:
        flow.clear_default_session()
        flow.config.cpu_device_num(2)

        @flow.global_function("train")
        def job(x: tp.Numpy.Placeholder((length, BATCH, WIDTH))) -> tp.Numpy:
            with flow.scope.placement("cpu", device):
                last, ys = flow.scan(cell, flow.zeros((BATCH, WIDTH)), x)
                loss = flow.math.reduce_mean(last) + flow.math.reduce_mean(ys[0])
                flow.optimizer.SGD(0.1).minimize(loss)
                return loss

        made = job.compile()
        graphs = made.graph, made.physical.graph, made.plan.tasks, made.plan.buffers
        return tuple(map(len, graphs))

    assert sizes(10) == sizes(10_000)


@pytest.mark.parametrize("devices", ["0:0", "0:0-1"])
def test_the_gradient_of_a_weight_is_one_product_after_the_loop(devices: str) -> None:
    """The backward loop reads the results of the forward loop instead of recomputing them."""
    rng = np.random.default_rng(3)
    w, x = rng.normal(size=(6, 6)).astype("f4"), rng.normal(size=(5, 2, 6)).astype("f4")

    def body(h: Any, x: Any) -> Any:
        h = flow.math.tanh(flow.matmul(h, flow.get_variable("w", w.shape, initializer=w)) + x)
        return h, (h,)

    def job_of(loop: Callable[..., Any]) -> Any:
        flow.clear_default_session()
        flow.config.cpu_device_num(2)

        @flow.global_function("train")
        def job(x: tp.Numpy.Placeholder(x.shape)) -> tp.Numpy:
            with flow.scope.placement("cpu", devices):
                _, (ys,) = loop(body, flow.zeros(x.shape[1:]), x)
                loss = flow.math.reduce_mean(flow.math.square(ys))
                flow.optimizer.SGD(0.1, momentum=0).minimize(loss)
                return loss

        return job

    found = []
    for loop in (flow.scan, python_loop):
        job = job_of(loop)
        losses = [job(x)[0] for _ in range(3)]
        found.append((losses, flow.get_all_variables()["w"].numpy()))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    loops = [op for op in job_of(flow.scan).compile().graph.ops.values() if op.type == "scan"]
    assert len(loops) == (2 if devices == "0:0" else 4)
    assert {op.attrs["carries"] for op in loops} == {1}
    products = [[row[1] for row in op.attrs["body"][0]].count("matmul") for op in loops]
    assert set(products) == {1}


def test_one_op_per_scan_runs_in_parts_on_several_devices() -> None:
    plan = recurrent(False, "0:0-3").compile().plan
    scans = [task for task in plan.tasks if task.type == "scan"]
    assert [plan.buffers[task.outputs[0]].type.shape for task in scans] == [(1, WIDTH)] * 4
    plan.assert_budget(no=("all_to_all", "reduce_scatter"))


def sums(state: Any, x: Any) -> Any:
    """Add up tanh(w * column) over the columns of an element, by an inner loop."""

    def column(total: Any, part: Any) -> Any:
        total = total + flow.math.tanh(flow.matmul(flow.expand_dims(part, 0), weight()))
        return total, total

    total, all_totals = flow.scan(column, flow.expand_dims(state, 0), x)
    return flow.squeeze(total, [0]), all_totals * 0.5


def python_sums(state: Any, x: Any) -> Any:
    total, totals = flow.expand_dims(state, 0), []
    for part in flow.unbind(x):
        total = total + flow.math.tanh(flow.matmul(flow.expand_dims(part, 0), weight()))
        totals.append(total)
    return flow.squeeze(total, [0]), flow.stack(totals) * 0.5


def chosen(state: Any, x: Any) -> Any:
    """Take a root where it is not NaN."""
    total = flow.math.reduce_sum(x) + 0.1
    root = lambda: flow.math.sqrt(total) * flow.matmul(state, weight())  # noqa: E731
    state = flow.cond(total > 0, root, lambda: state * 0.5)
    return state, flow.math.reduce_sum(state)


def python_chosen(state: Any, x: Any) -> Any:
    total = flow.math.reduce_sum(x) + 0.1
    is_positive = flow.reshape(total > 0, (1,))
    root = flow.math.sqrt(flow.math.abs(total)) * flow.matmul(state, weight())
    state = flow.where(is_positive, root, state * 0.5)
    return state, flow.math.reduce_sum(state)


def losses_and_weight(loop: Callable[..., Any], body: Any, first: Any) -> Any:
    flow.clear_default_session()
    flow.config.cpu_device_num(4)

    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder(X.shape)) -> tp.Numpy:
        h = flow.get_variable("h", first.shape, initializer=flow.ones_initializer())
        last, ys = loop(body, h, x)
        ys = ys[0] if isinstance(ys, list) else ys
        loss = flow.math.reduce_sum(last) + flow.math.reduce_mean(flow.math.square(ys))
        flow.optimizer.SGD(0.01).minimize(loss)
        return loss

    flow.load_variables({"w": W, "h": first})
    losses = [job(X).item() for _ in range(3)]
    after = flow.get_all_variables()
    return losses, after["w"].numpy(), after["h"].numpy()


@pytest.mark.parametrize(
    ("body", "other", "first"),
    [
        pytest.param(sums, python_sums, H[0], id="scan"),
        pytest.param(chosen, python_chosen, H, id="cond"),
    ],
)
def test_bodies_may_contain_loops_and_branches(body: Any, other: Any, first: Any) -> None:
    def one_y(loop_body: Any) -> Any:
        def wrapped(state: Any, x: Any) -> Any:
            state, y = loop_body(state, x)
            return state, (y,)

        return wrapped

    found = losses_and_weight(flow.scan, body, first)
    wanted = losses_and_weight(python_loop, one_y(other), first)
    assert np.isfinite(found[0]).all()
    for one, two in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, two, rtol=2e-5, atol=1e-6)


def dropout_job(nested: bool, device: str) -> Any:
    @flow.global_function("train")
    def job() -> tp.Numpy:
        with flow.scope.placement(device, "0:0"):
            w = flow.get_variable("w", (64,), initializer=flow.ones_initializer())

            def draw(s: Any, _: None) -> Any:
                return s, flow.nn.dropout(s * 1.0, 0.5)

            def outer(s: Any, _: None) -> Any:
                return flow.scan(draw, s, length=2)

            def maybe(s: Any, _: None) -> Any:
                return s, flow.cond(flow.math.reduce_sum(s) > 0, lambda: draw(s, _)[1], lambda: s)

            if nested:
                both = lambda s, _: (s, (outer(s, _)[1], maybe(s, _)[1]))  # noqa: E731
                _, (first, second) = flow.scan(both, w, length=3)
                ys = flow.concat([flow.reshape(x, (-1, 64)) for x in (first, second)], 0)
            else:
                _, ys = flow.scan(draw, w, length=3)
            flow.optimizer.SGD(1.0, momentum=0.0).minimize(flow.math.reduce_sum(ys))
            return ys

    return job


WITHOUT = ("scan", "random_scan", "cond", "random_cond", *plain_device.COMBINED)


@pytest.mark.parametrize("device", ["cpu", plain_device.TYPE])
@pytest.mark.parametrize("nested", [False, True])
def test_the_gradient_draws_the_numbers_of_the_forward_pass(nested: bool, device: str) -> None:
    """With w = 1, the gradient of the sum of dropout(w) is the sum of its results.

    The plain device has no kernels for loops and branches.
    """
    with plain_device.session(plain_device.registry(WITHOUT)):
        job = dropout_job(nested, device)
        types = {task.type for task in job.compile().plan.tasks}
        assert ("random_scan" in types) == (device == "cpu")
        for _ in range(2):
            flow.load_variables({"w": np.ones(64, np.float32)})
            drawn = job()
            assert len({row.tobytes() for row in drawn}) == len(drawn) == (9 if nested else 3)
            after = flow.get_all_variables()["w"].numpy()
            np.testing.assert_array_equal(1 - after, drawn.sum(0))


@pytest.mark.parametrize("kind", ["predict", "train"])
def test_without_positions_the_state_stays(kind: Any) -> None:
    @flow.global_function(kind)
    def job() -> tuple[tp.Numpy, tp.Numpy]:
        h = flow.get_variable("h", (2,), initializer=flow.ones_initializer())
        last, ys = flow.scan(lambda s, _: (s * 2.0, s), h, length=0)
        if kind == "train":
            flow.optimizer.SGD(0.5, momentum=0.0).minimize(flow.math.reduce_sum(last))
        return last, ys

    last, ys = job()
    np.testing.assert_array_equal(last, [1, 1])
    assert ys.shape == (0, 2)
    after = flow.get_all_variables()["h"].numpy()
    np.testing.assert_array_equal(after, [0.5, 0.5] if kind == "train" else [1, 1])


def test_saved_models_run_loops_with_other_batch_sizes(tmp_path: Path) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((BATCH, STEPS, WIDTH))) -> tp.Numpy:
        _, ys = flow.scan(cell, flow.zeros((x.shape[0], WIDTH)), flow.transpose(x, (1, 0, 2)))
        return flow.transpose(ys[0], (1, 0, 2))

    flow.load_variables({"w": W})
    x = np.concatenate([X.transpose(1, 0, 2)] * 2)
    wanted = np.concatenate([job(x[:BATCH]), job(x[BATCH:])])
    builder = flow.saved_model.ModelBuilder(str(tmp_path)).ModelName("m").Version(1)
    builder.AddFunction(job)
    builder.Save()
    flow.clear_default_session()
    option = flow.serving.SessionOption()
    option.device_tag = "cpu"
    with flow.serving.InferenceSession(option) as session:
        session.set_job_batch_size("job", 2 * BATCH)
        session.load_saved_model(str(tmp_path))
        session.launch()
        (found,) = session.run("job", x=x)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_minimize_in_a_body_is_refused() -> None:
    @flow.global_function("train")
    def job() -> None:
        def body(state: Any, _: None) -> Any:
            flow.optimizer.SGD(0.1).minimize(flow.math.reduce_sum(state))
            return state, None

        flow.scan(body, weight(), length=2)

    with pytest.raises(UnsupportedError, match="minimize") as error:
        job()
    assert "test_scan.py" in str(error.value)


def test_blobs_of_a_body_are_refused_elsewhere() -> None:
    kept = []

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((3, 2))) -> tp.Numpy:
        def body(state: Any, element: Any) -> Any:
            kept.append(state + element)
            return kept[0], None

        flow.scan(body, flow.zeros((2,)), x)
        return kept[0] * 2.0

    with pytest.raises(JobError, match=r"(?s)flow\.scan.*return the blob") as error:
        job(np.ones((3, 2), np.float32))
    assert "test_scan.py" in str(error.value)


def test_bodies_run_on_the_devices_of_the_scan() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((3, 2))) -> tp.Numpy:
        def body(state: Any, element: Any) -> Any:
            with flow.scope.placement("cpu", "0:1"):
                return state + element, None

        return flow.scan(body, flow.zeros((2,)), x)[0]

    with pytest.raises(UnsupportedError, match="cpu"):
        job(np.ones((3, 2), np.float32))
