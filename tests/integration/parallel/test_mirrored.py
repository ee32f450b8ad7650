"""The mirrored view of several devices: lists in, lists out, gradients added up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import AnnotationError, FeedError, JobError
from flow_core.frontend.job.function import PLANS_KEPT
from flow_core.frontend.session.session import default_session
from flow_core.observe.oracle import verify

LISTS, FIXED = flow.MirroredTensorDef((4, 2)), flow.FixedTensorDef((4, 2))
INIT = flow.random_normal_initializer(stddev=0.3)


pytestmark = pytest.mark.usefixtures("four_gpus")


def config(devices: int | str = 2) -> Any:
    found = flow.function_config()
    found.default_logical_view(flow.scope.mirrored_view())
    ids = devices if isinstance(devices, str) else f"0:0-{devices - 1}"
    found.default_placement_scope(flow.scope.placement("gpu", ids))
    return found


def mlp(x: Any) -> Any:
    h = flow.layers.dense(
        flow.reshape(x, (x.shape[0], -1)), 16, activation=flow.nn.relu, name="h",
        kernel_initializer=INIT, kernel_regularizer=flow.regularizers.l2(0.01),
    )  # fmt: skip
    return flow.layers.dense(h, 5, name="o", kernel_initializer=INIT)


OPTIMIZERS: dict[str, Callable[[float], Any]] = {
    "sgd": lambda rate: flow.optimizer.SGD(constant(rate), momentum=0),
    "momentum": lambda rate: flow.optimizer.SGD(constant(rate), momentum=0.9),
    "adam": lambda rate: flow.optimizer.Adam(constant(rate)),
}


def constant(rate: float) -> Any:
    return flow.optimizer.PiecewiseConstantScheduler([], [rate])


def batches(sizes: Sequence[int], seed: int = 0) -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(seed)
    x = [rng.normal(size=(n, 3, 4)).astype("f4") for n in sizes]
    return x, [rng.integers(0, 5, n).astype("i4") for n in sizes]


def mirrored_job(devices: int, minimize: Any, settings: Any = None) -> Any:
    @flow.global_function(type="train", function_config=settings or config(devices))
    def job(
        x: tp.ListNumpy.Placeholder((8, 3, 4)),
        y: tp.ListNumpy.Placeholder((8,), dtype=flow.int32),
    ) -> tp.ListNumpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, mlp(x))
        minimize(loss)
        return loss

    return job


def one_job(size: int, minimize: Any) -> Any:
    @flow.global_function(type="train")
    def job(
        x: tp.Numpy.Placeholder((size, 3, 4)), y: tp.Numpy.Placeholder((size,), dtype=flow.int32)
    ) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, mlp(x))
        minimize(loss)
        return loss

    return job


@pytest.mark.representative(
    r"\[(sizes1-sgd|sizes2-adam|sizes3-momentum)\]",
    "each optimizer; batches of unequal sizes, one of a single row, and four devices",
)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("sizes", [(6, 6), (8, 3), (1, 2, 3), (4, 4, 4, 4)])
def test_equals_one_device(name: str, sizes: tuple[int, ...]) -> None:
    """The gradient is OneFlow's: of the mean, times the number of devices."""
    devices, rate, steps = len(sizes), 0.05, 4
    data = [batches(sizes, seed) for seed in range(steps)]
    many = mirrored_job(devices, lambda loss: OPTIMIZERS[name](rate).minimize(loss))
    found = [np.concatenate(many(*step)) for step in data]
    weights = {k: v.numpy() for k, v in flow.get_all_variables().items()}
    flow.clear_default_session()

    def minimize(loss: Any) -> None:
        OPTIMIZERS[name](rate).minimize(loss * float(devices))

    one = one_job(sum(sizes), minimize)
    wanted = [one(*map(np.concatenate, step)) for step in data]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    for key, value in flow.get_all_variables().items():
        np.testing.assert_allclose(weights[key], value.numpy(), rtol=1e-3, atol=1e-5)


def test_gradients_are_all_reduced_and_nothing_else_moves() -> None:
    job = mirrored_job(2, OPTIMIZERS["sgd"](0.1).minimize)
    ledger = job.plan().ledger
    assert {step for entry in ledger for step in entry.steps} == {"all_reduce"}
    elements = 12 * 16 + 16 + 16 * 5 + 5
    job.plan().assert_budget(bytes_per_step=2 * 4 * elements)


def test_the_oracle_knows_the_view() -> None:
    """One device can play all of them."""
    verdict = verify(mirrored_job(3, OPTIMIZERS["momentum"](0.1).minimize))
    assert verdict.ok
    assert sum(op.type == "cast_from_mirrored" for op in verdict.ops) == 4


def test_shapes_can_be_made_static() -> None:
    @flow.global_function(function_config=config(2))
    def job(x: tp.ListNumpy.Placeholder((4, 2))) -> tp.Numpy:
        fixed = flow.cast_to_static_shape(x)
        assert x.is_dynamic
        assert not fixed.is_dynamic
        return fixed

    found = job([np.ones((4, 2), "f4"), np.zeros((4, 2), "f4")])
    np.testing.assert_array_equal(found, np.repeat([[1, 1], [0, 0]], 4, axis=0))


def test_weights_are_the_same_on_all_devices_and_stay_so() -> None:
    apart = config(3)
    apart.share_replicas(False)
    job = mirrored_job(3, OPTIMIZERS["adam"](0.1).minimize, apart)
    for seed in range(3):
        job(*batches((8, 2, 5), seed))
    for stored in default_session().stored().values():
        parts = [part.driver.copy_out(part.array) for part in stored.parts.values()]
        assert len(parts) == 3
        for part in parts:
            np.testing.assert_array_equal(part, parts[0])


def test_static_blobs_divide_by_the_elements_of_one_device() -> None:
    """A batch of fixed size is divided among the devices; each divides by its own part."""

    @flow.global_function(type="train", function_config=config(2))
    def job(x: tp.Numpy.Placeholder((8, 3))) -> tp.Numpy:
        w = flow.get_variable("w", (3,), initializer=flow.ones_initializer())
        loss = x * w
        OPTIMIZERS["sgd"](1.0).minimize(loss)
        return loss

    x = np.random.default_rng(0).normal(size=(8, 3)).astype("f4")
    np.testing.assert_allclose(job(x), x, rtol=1e-6)
    wanted = 1 - x.sum(0) / (4 * 3)
    np.testing.assert_allclose(flow.get_all_variables()["w"].numpy(), wanted, rtol=1e-5)


def test_plans_by_shapes_are_bounded_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    @flow.global_function(function_config=config(2))
    def job(x: tp.ListNumpy.Placeholder((40, 2))) -> tp.ListNumpy:
        return flow.math.reduce_mean(x, axis=[0])

    with caplog.at_level(logging.WARNING, "flow_core"):
        for n in range(1, PLANS_KEPT + 3):
            x = [np.full((n, 2), n, "f4"), np.full((1, 2), -n, "f4")]
            one, other = job(x)
            np.testing.assert_allclose(one, n)
            np.testing.assert_allclose(other, -n)
    assert len(job.plans) == PLANS_KEPT
    assert job.plans[-1] == (((n, 2), (1, 2)),)
    assert len(caplog.records) == 1
    assert f"more than {PLANS_KEPT} combinations" in caplog.text


def test_a_plan_is_compiled_once_per_shapes() -> None:
    seen = []

    @flow.global_function(function_config=config(2))
    def job(x: tp.ListNumpy.Placeholder((4, 2))) -> tp.ListNumpy:
        seen.append(x.shape)
        return x * 2.0

    for _ in range(2):
        for a, b in ((4, 4), (1, 3), (4, 4), (3, 1)):
            found = job([np.ones((a, 2), "f4"), np.ones((b, 2), "f4")])
            assert [array.shape for array in found] == [(a, 2), (b, 2)]
    assert [str(shape) for shape in seen] == [
        "(4, 2)", "(PerDevice(1, 3), 2)", "(PerDevice(3, 1), 2)"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([np.ones((2, 3), "f4")], FeedError, "one per device: 2 of them"),
        ([np.ones((9, 3), "f4"), np.ones((2, 3), "f4")], FeedError, "at most 12 elements"),
        ([np.ones(3, "f4"), np.ones((2, 3), "f4")], FeedError, "2 axes"),
        ([np.full((2, 3), None), np.ones((2, 3), "f4")], FeedError, "an array of object"),
        (np.ones((2, 2, 3), "f4"), FeedError, "a list of arrays"),
    ],
)
def test_wrong_feeds(given: Any, error: type[Exception], message: str) -> None:
    @flow.global_function(function_config=config(2))
    def job(x: tp.ListNumpy.Placeholder((4, 3))) -> tp.ListNumpy:
        return x

    with pytest.raises(error, match=message):
        job(given)


def test_lists_of_lists() -> None:
    @flow.global_function(function_config=config(2))
    def job(x: tp.ListListNumpy.Placeholder((4, 3))) -> tp.ListListNumpy:
        return x + 1.0

    given = [[np.ones((2, 3), "f4")], [np.zeros((4, 3), "f4")]]
    found = job(given)
    assert [[a.shape for a in row] for row in found] == [[(2, 3)], [(4, 3)]]
    with pytest.raises(FeedError, match="a list of 4 arrays"):
        job([given[0] * 2, given[1]])


def test_lists_of_several_tensors() -> None:
    """Each device gets a list of its own, and each tensor of it has a shape of its own."""

    @flow.global_function(function_config=config(2))
    def job(x: tp.ListListNumpy.Placeholder((2, 4, 3))) -> tp.ListListNumpy:
        assert x.shape == (2, 4, 3)
        return x

    sizes = ((1, 4), (2, 3))
    given = [[np.full((1, n, 3), n, "f4") for n in row] for row in sizes]
    found = job(given)
    assert [[a.shape for a in row] for row in found] == [[(1, n, 3) for n in r] for r in sizes]
    for row, wanted in zip(found, given, strict=True):
        for a, b in zip(row, wanted, strict=True):
            np.testing.assert_array_equal(a, b)
    with pytest.raises(FeedError, match="as many arrays for each device"):
        job([given[0], [np.ones((2, 4, 3), "f4")]])


def test_unannotated_results_and_callbacks() -> None:
    @flow.global_function(function_config=config(2))
    def plain(x=LISTS, z=FIXED):  # what older programs write
        return x + 1.0, z + 1.0

    @flow.global_function(function_config=config(2))
    def later(x: tp.ListNumpy.Placeholder((4, 2))) -> tp.Callback[tp.ListNumpy]:
        return x + 1.0

    x, z = [np.ones((3, 2), "f4"), np.zeros((1, 2), "f4")], np.ones((4, 2), "f4")
    one, other = plain(x, z).get()
    assert [a.shape for a in one.numpy_list()] == [(3, 2), (1, 2)]
    assert one.is_dynamic
    assert one.parallel_num() == 2
    np.testing.assert_array_equal(one.numpy(1), 1)
    with pytest.raises(JobError, match="shapes may differ"):
        one.numpy()
    np.testing.assert_array_equal(other.numpy(), z + 1)
    seen: list[Any] = []
    for n in (1, 4, 2):
        later([np.full((n, 2), n, "f4"), np.zeros((1, 2), "f4")])(seen.append)
    flow.sync_default_session()
    assert [found[0].shape for found in seen] == [(1, 2), (4, 2), (2, 2)]


def test_watch_and_its_gradient() -> None:
    seen: dict[str, Any] = {}

    def show(name: str) -> Callable[..., None]:
        def handler(value: tp.ListNumpy) -> None:
            seen[name] = value

        return handler

    @flow.global_function(type="train", function_config=config(2))
    def job(x: tp.ListNumpy.Placeholder((4, 2))) -> None:
        w = flow.get_variable("w", (2,), initializer=flow.ones_initializer())
        y = x * w
        flow.watch(y, show("y"))
        flow.watch_diff(y, show("dy"))
        flow.watch_diff(w, show("dw"))
        OPTIMIZERS["sgd"](0.0).minimize(flow.math.reduce_sum(y, axis=[1]))

    x = [np.full((3, 2), 2, "f4"), np.full((1, 2), 5, "f4")]
    job(x)
    for found, fed in zip(seen["y"], x, strict=True):
        np.testing.assert_array_equal(found, fed)
    assert [a.shape for a in seen["dy"]] == [(3, 2), (1, 2)]
    (dw,) = seen["dw"]
    np.testing.assert_array_equal(dw, [11, 11])


def test_between_the_views() -> None:
    @flow.global_function(function_config=config(2))
    def job(
        x: tp.ListNumpy.Placeholder((4, 2)), z: tp.Numpy.Placeholder((6, 2))
    ) -> tuple[tp.Numpy, tp.ListNumpy, tp.Numpy, tp.Numpy]:
        constant = flow.constant(3, flow.float32, (2,))
        with flow.scope.consistent_view():
            logical = flow.cast_to_current_logical_view(x) + 1.0
            same = flow.cast_to_current_logical_view(constant)
            total = flow.math.reduce_sum(z * 2.0, axis=[0])
        parts = flow.cast_to_current_logical_view(z)
        return logical, parts * 1.0, same, total

    for sizes in ((2, 2), (1, 4), (4, 1)):  # the balanced split, and others
        x = [np.full((n, 2), n, "f4") for n in sizes]
        z = np.arange(12, dtype="f4").reshape(6, 2)
        logical, parts, same, total = job(x, z)
        np.testing.assert_array_equal(logical, np.concatenate(x) + 1)
        np.testing.assert_array_equal(parts[0], z[:3])
        np.testing.assert_array_equal(parts[1], z[3:])
        np.testing.assert_array_equal(same, [3, 3])
        np.testing.assert_allclose(total, 2 * z.sum(0))


def expect(message: str, body: Callable[[Any], Any], devices: int = 2) -> None:
    @flow.global_function(function_config=config(devices))
    def job(x: tp.ListNumpy.Placeholder((4, 2))) -> tp.Bundle[tp.ListNumpy]:
        return body(x)

    with pytest.raises(JobError, match=message):
        job([np.ones((4, 2), "f4"), *[np.ones((3, 2), "f4")] * (devices - 1)])


def test_views_that_do_not_mix() -> None:
    def consistent(x: Any) -> Any:
        with flow.scope.consistent_view():
            return x + 1.0

    def fewer(x: Any) -> Any:
        with flow.scope.placement("gpu", "0:0-2"):
            return x + 1.0

    def no_batch(x: Any) -> Any:
        loss = flow.math.reduce_sum(x)
        with flow.scope.consistent_view():
            return flow.cast_to_current_logical_view(loss)

    def hint(x: Any) -> Any:
        return x.with_distribute(flow.distribute.split(0))

    def shape(x: Any) -> Any:
        return flow.get_variable("w", x.shape, initializer=INIT)

    def condition(x: Any) -> Any:
        return x if x.shape[0] > 3 else -x

    expect("use of .*add.* in the consistent view", consistent)
    expect("blobs of 3 devices", fewer)
    expect("no batch axis", no_batch)
    expect("with_distribute", hint)
    expect("one number for all devices", condition)
    expect("no shape|one number for all devices", shape)


def test_numpy_annotation_needs_fixed_shapes() -> None:
    @flow.global_function(function_config=config(2))
    def job(x: tp.ListNumpy.Placeholder((4, 2))) -> tp.Numpy:
        return x

    with pytest.raises(AnnotationError, match="ListNumpy"):
        job([np.ones((4, 2), "f4")] * 2)


def test_devices_draw_their_own_random_numbers() -> None:
    @flow.global_function(function_config=config(2))
    def job(x: tp.ListNumpy.Placeholder((50, 20))) -> tp.ListNumpy:
        return flow.random.bernoulli(x)

    one, other = job([np.full((50, 20), 0.5, "f4")] * 2)
    assert 0 < (one != other).mean() < 1


def test_moving_statistics_are_updated_on_each_device() -> None:
    @flow.global_function(type="train", function_config=config(2))
    def job(x: tp.ListNumpy.Placeholder((6, 3))) -> tp.ListNumpy:
        y = flow.layers.batch_normalization(x, axis=1, momentum=0.5, name="bn")
        OPTIMIZERS["sgd"](0.0).minimize(y)
        return y

    rng = np.random.default_rng(3)
    x = [rng.normal(i, 1, (6, 3)).astype("f4") for i in range(2)]
    job(x)
    parts = default_session().stored()["bn-moving_mean"].parts.values()
    for part, fed in zip(parts, x, strict=True):
        np.testing.assert_allclose(part.array, fed.mean(0) * 0.5, rtol=1e-4, atol=1e-6)


def test_checkpoints_and_steps_go_on_over_plans(tmp_path: Any) -> None:
    job = mirrored_job(2, OPTIMIZERS["momentum"](0.1).minimize)
    flow.train.CheckPoint().init()
    first = [np.concatenate(job(*batches(s, 1))) for s in ((8, 8), (2, 3), (8, 8))]
    flow.checkpoint.save(str(tmp_path / "saved"))
    then = np.concatenate(job(*batches((1, 1), 2)))
    flow.clear_default_session()
    job = mirrored_job(2, OPTIMIZERS["momentum"](0.1).minimize)
    flow.load_variables(flow.checkpoint.get(str(tmp_path / "saved")))
    np.testing.assert_array_equal(np.concatenate(job(*batches((1, 1), 2))), then)
    assert len(first) == 3


def test_one_device_and_older_names() -> None:
    older = flow.function_config()
    older.default_distribute_strategy(flow.distribute.mirrored_strategy())

    @flow.global_function(function_config=older)
    def job(x: tp.ListNumpy.Placeholder((4, 2))) -> tp.ListNumpy:
        assert flow.distribute.mirrored_strategy_enabled()
        assert x.is_dynamic
        return x * 2.0

    for n in (4, 1, 3):
        (found,) = job([np.ones((n, 2), "f4")])
        assert found.shape == (n, 2)


def test_assigning_a_variable() -> None:
    @flow.global_function(function_config=config(2))
    def job(x: tp.Numpy.Placeholder((3,), batch_axis=None)) -> None:
        flow.assign(flow.get_variable("w", (3,), initializer=flow.zeros_initializer()), x)

    x = np.arange(3, dtype="f4")
    job(x)
    for part in default_session().stored()["w"].parts.values():
        np.testing.assert_array_equal(part.array, x)


def test_assigning_a_variable_of_other_devices() -> None:
    @flow.global_function(function_config=config(2))
    def job(x: tp.Numpy.Placeholder((3,), batch_axis=None)) -> None:
        w = flow.get_variable("w", (3,), initializer=flow.zeros_initializer())
        with flow.scope.placement("gpu", "0:2-3"):
            flow.assign(w, x)

    with pytest.raises(JobError, match="'w' as B on gpu"):
        job(np.zeros(3, "f4"))


def test_fewer_samples_than_devices() -> None:
    @flow.global_function(function_config=config(4))
    def job(x: tp.Numpy.Placeholder((3, 2))) -> tp.Bundle[tp.ListNumpy]:
        return x + 1.0

    with pytest.raises(JobError, match="at least 4 samples"):
        job(np.ones((3, 2), "f4"))


def test_variables_may_be_split_among_the_devices() -> None:
    """Each device then has a part of its own, as OneFlow hands S(0) over to this view."""

    @flow.global_function(function_config=config(2))
    def job(x: tp.ListNumpy.Placeholder((2, 3))) -> tp.ListNumpy:
        w = flow.get_variable("w", (4, 3), initializer=INIT, distribute=flow.distribute.split(0))
        return x * w

    found = job([np.ones((2, 3), "f4")] * 2)
    np.testing.assert_array_equal(np.concatenate(found), flow.get_all_variables()["w"].numpy())


def test_joined_arrays_need_not_fit_at_their_largest() -> None:
    """As for a checkpoint, which asks for the variables before anything is fed."""

    @flow.global_function(function_config=config(2))
    def job(x: tp.ListNumpy.Placeholder((4,)), y: tp.ListNumpy.Placeholder((4,))) -> tp.ListNumpy:
        return flow.concat([x, y], axis=0, max_dim_size=4)

    flow.train.CheckPoint().init()
    ones, zeros = [np.ones(3, "f4")] * 2, [np.zeros(1, "f4")] * 2
    for found in job(ones, zeros):
        np.testing.assert_array_equal(found, [1, 1, 1, 0])


def test_blobs_say_where_they_are() -> None:
    seen = []

    @flow.global_function(function_config=config(2))
    def job(x: tp.ListNumpy.Placeholder((4, 3))) -> tp.ListNumpy:
        seen.append(x.parallel_conf)
        return x

    job([np.ones((4, 3), "f4")] * 2)
    assert (seen[0].device_tag(), seen[0].device_name()) == ("gpu", ["0:0", "0:1"])
