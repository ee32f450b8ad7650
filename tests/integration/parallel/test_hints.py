"""Requested distributions: programs with hints give what one device gives, laid out as asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import GraphError, InferenceError, JobError, VariableError
from flow_core.compiler.select import SelectionError
from flow_core.sharding.sbp import format_nd_sbp
from flow_core.sharding.topology import Device

pytestmark = pytest.mark.usefixtures("four_gpus")

INIT = flow.random_normal_initializer(stddev=0.5)
Body = Callable[[Any], Any]
DEVICES = ("0:0-1", "0:0-2", "0:0-3")


def train(body: Body, devices: str, hierarchy: Any = None, scope: Any = None) -> tuple[Any, Any]:
    """Losses and weights after some steps, and the job."""
    flow.clear_default_session()
    scope = scope or flow.scope.placement("gpu", devices, hierarchy)

    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((8, 6))) -> tp.Numpy:
        with scope:
            loss = body(x)
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
            flow.optimizer.SGD(rate, momentum=0.9).minimize(loss)
        return loss

    rng = np.random.default_rng(0)
    losses = [job(rng.normal(size=(8, 6)).astype("f4")) for _ in range(3)]
    weights = [blob.numpy() for _, blob in sorted(flow.get_all_variables().items())]
    return [*losses, *weights], job


def check_same(body: Body, devices: str, hierarchy: Any = None, one: Any = None) -> Any:
    """The job on several devices, after holding it against one device."""
    wanted, _ = train(body, "0:0", one)
    found, job = train(body, devices, hierarchy)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    return job


def layouts(job: Any, kind: str) -> list[str]:
    """The chosen SBP of the outputs of a kind of op, in graph order."""
    compiled = job.compile()
    ops = [op for op in compiled.optimized_logical.ops.values() if op.type == kind]
    return [format_nd_sbp(compiled.layouts[op.output()].sbp) for op in ops]


def weight(name: str, shape: tuple[int, ...], **hints: Any) -> Any:
    return flow.get_variable(name, shape, initializer=INIT, **hints)


SPLITS = (flow.distribute.split(0), flow.distribute.split(1), flow.distribute.split(-1))
OTHERS = (flow.distribute.broadcast(), flow.distribute.auto(), None)


@pytest.mark.representative(
    r"\[(Distribution\(kind='split', axis=-1\)-0:0-2|None-0:0-3)\]",
    "an uneven split of the last axis, and no hint",
)
@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("distribute", [*SPLITS, *OTHERS], ids=repr)
def test_variables_and_blobs(devices: str, distribute: Any) -> None:
    def body(x: Any) -> Any:
        w = weight("w", (6, 4), **({"distribute": distribute} if distribute else {}))
        y = flow.matmul(x, w)
        return flow.math.tanh(y.with_distribute(distribute) if distribute else y)

    job = check_same(body, devices)
    if distribute in SPLITS:
        axis = distribute.axis % 2
        assert layouts(job, "variable")[0] == f"S({axis})"
        assert all(layout == f"S({axis})" for layout in layouts(job, "identity"))


@pytest.mark.parametrize("devices", DEVICES)
def test_parallel_cast_and_that_of_its_gradient(devices: str) -> None:
    def body(x: Any) -> Any:
        y = flow.matmul(x, weight("w", (6, 8), distribute=flow.distribute.split(1)))
        y = flow.parallel_cast(
            y, distribute=flow.distribute.split(0), gradient_distribute=flow.distribute.split(1)
        )
        many = flow.current_scope().placement.size > 1
        assert y.split_axis == (0 if many else flow.INVALID_SPLIT_AXIS)
        y = flow.parallel_cast(flow.math.tanh(y), gradient_distribute=flow.distribute.broadcast())
        assert y.split_axis == flow.INVALID_SPLIT_AXIS == -22
        return flow.math.tanh(y)

    job = check_same(body, devices)
    forward, other, *backward = layouts(job, "parallel_cast")
    assert forward == "S(0)"
    assert other in ("S(0)", "B")
    assert backward == ["B", "S(1)"]


def test_gradient_hint_of_a_blob() -> None:
    def body(x: Any) -> Any:
        y = flow.matmul(x, weight("w", (6, 8)))
        return flow.math.tanh(y.with_gradient_distribute(flow.distribute.split(1)))

    assert layouts(check_same(body, "0:0-3"), "parallel_cast")[1] == "S(1)"


@pytest.mark.representative(
    r"\[hierarchy0-(True|False)\]",
    "two dimensions, by both names; the others are special cases of a grid",
)
@pytest.mark.parametrize(
    ("hierarchy", "later"), [((2, 2), False), ((2, 2), True), ((4, 1), False), ((1, 4), False),
                             ((4,), False)],
)  # fmt: skip
def test_hierarchical_casts(hierarchy: tuple[int, ...], later: bool) -> None:
    """Their distributions have a later name, too."""
    rank, given = len(hierarchy), "nd_sbp" if later else "parallel_distribution"
    rows, both, columns = (
        ["S(0)", "B"][-rank:] if rank == 2 else ["S(0)"],
        ["S(0)", "S(1)"] if rank == 2 else ["S(1)"],
        ["B", "S(1)"] if rank == 2 else ["S(1)"],
    )

    def body(x: Any) -> Any:
        x = flow.hierarchical_parallel_cast(x, rows)
        y = flow.matmul(x, weight("w", (6, 8), parallel_distribution=columns))
        gradient = {"grad_nd_sbp" if later else "grad_parallel_distribution": both}
        y = flow.hierarchical_parallel_cast(y, grad_mode="manual", **{given: both}, **gradient)
        down = [s.replace("1", "0") for s in columns]
        z = flow.matmul(y, weight("w2", (8, 5), **{given: down}))
        return flow.hierarchical_parallel_cast(z, rows)

    job = check_same(body, "0:0-3", hierarchy, one=(1,) * rank)
    names = [f"({', '.join(s)})" if rank == 2 else s[0] for s in (rows, both, rows, both)]
    assert layouts(job, "parallel_cast") == names


def test_an_empty_list_of_distributions_asks_for_nothing() -> None:
    """As programs give it that make the list from the forms of parallelism that they use."""

    def body(x: Any) -> Any:
        y = flow.matmul(x, weight("w", (6, 8), parallel_distribution=[]))
        return flow.hierarchical_parallel_cast(
            y, (), grad_mode="manual", grad_parallel_distribution=[]
        )

    check_same(body, "0:0-1")


def test_hierarchies_of_their_own_and_restored_gradients() -> None:
    """As programs write that use a hierarchy for some blobs only."""

    def body(x: Any) -> Any:
        grid = (2, 2) if "3" in devices else (1, 1)
        x = flow.hierarchical_parallel_cast(x, ["S(0)", "S(0)"], parallel_hierarchy=grid)
        w = weight("w", (6, 4), parallel_hierarchy=grid, parallel_distribution=["B", "B"])
        y = flow.hierarchical_parallel_cast(flow.math.tanh(x), ["S(0)"])
        y = flow.hierarchical_parallel_cast(y, ["B"], grad_mode="restore")
        return flow.matmul(y, w)

    devices = "0:0"
    wanted, _ = train(body, devices)
    devices = "0:0-3"
    found, _ = train(body, devices)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.representative(
    r"axis=0\)-0:0-2\]", "an uneven split; without a split there is no exchange"
)
@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("distribute", [flow.distribute.split(0), *OTHERS[:2]], ids=repr)
def test_layers(devices: str, distribute: Any) -> None:
    def body(x: Any) -> Any:
        h = flow.layers.dense(
            x, 8, kernel_initializer=INIT, bias_initializer=INIT, activation=flow.math.tanh,
            name="h", model_distribute=distribute,
        )  # fmt: skip
        h = flow.layers.prelu(h, alpha_initializer=INIT, name="p", model_distribute=distribute)
        return flow.layers.dense(h, 4, kernel_initializer=INIT, name="o")

    job = check_same(body, devices)
    if distribute.kind == "split":
        assert layouts(job, "variable")[:3] == ["S(0)"] * 3


def device_scopes(devices: str) -> list[Any]:
    first, last = 0, int(devices[-1])
    return [flow.scope.placement("gpu", f"0:{i}") for i in range(first, last + 1)]


@pytest.mark.parametrize("devices", ["0:0", *DEVICES])
def test_devices_taken_apart(devices: str) -> None:
    def body(x: Any) -> Any:
        w = weight("w", (6, 4))
        parts = flow.advanced.distribute_split(x)
        weights = flow.advanced.distribute_clone(w, name="each")
        rows, sums = [], []
        for scope, part, own in zip(scopes, parts, weights, strict=True):
            with scope:
                rows.append(flow.matmul(part, own))
        y = flow.advanced.distribute_concat(rows)
        for scope, part in zip(scopes, flow.advanced.distribute_split(y, axis=-1), strict=True):
            with scope:
                sums.append(flow.math.reduce_sum(part, axis=[1], keepdims=True))
        total = flow.advanced.distribute_add(sums, name="total")
        mapped = flow.advanced.distribute_map([x, x * 2.0], lambda a, b: flow.math.tanh(a) * b)
        one, two = flow.advanced.distribute_map(x, lambda a: (a, a * 3.0), axis=1)
        return total + flow.math.reduce_sum(mapped + one + two, axis=[1], keepdims=True)

    scopes = device_scopes("0:0-0")
    wanted, _ = train(body, "0:0")
    scopes = device_scopes(devices.replace("0:0", "0:0-0") if devices == "0:0" else devices)
    found, _ = train(body, devices)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_parts_that_are_no_balanced_split() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((1, 3)), y: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        with flow.scope.placement("gpu", "0:2-3"):
            return flow.advanced.distribute_concat([x, y])

    x, y = np.ones((1, 3), "f4"), np.zeros((4, 3), "f4")
    np.testing.assert_array_equal(job(x, y), np.concatenate([x, y]))


@pytest.mark.parametrize("older", ["fixed_placement", "device_prior_placement"])
def test_older_names_of_placements(older: str) -> None:
    def body(x: Any) -> Any:
        return flow.math.tanh(flow.matmul(x, weight("w", (6, 4))))

    wanted, _ = train(body, "0:0")
    found, job = train(body, "", scope=getattr(flow, older)("gpu", "0:1-3"))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert {a.device for a in job.plan().arenas} >= {Device("gpu", 0, i) for i in (1, 2, 3)}


def test_the_session_places_on_the_devices_it_was_told() -> None:
    flow.config.gpu_device_num(3)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((6, 3))) -> tp.Numpy:
        assert str(flow.current_scope().placement or "all") == "all"
        return x * 2.0

    np.testing.assert_array_equal(job(np.ones((6, 3), "f4")), 2)
    assert len({a.device for a in job.plan().arenas}) == 3
    flow.clear_default_session()  # the numbers are the session's
    job(np.ones((6, 3), "f4"))
    assert {a.device for a in job.plan().arenas} == {Device("gpu", 0, 0)}
    flow.clear_default_session()
    flow.config.gpu_device_num(0)
    flow.config.cpu_device_num(2)
    job(np.ones((6, 3), "f4"))
    assert {a.device for a in job.plan().arenas} == {Device("cpu", 0, 0), Device("cpu", 0, 1)}


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        (lambda x: flow.hierarchical_parallel_cast(x, ["S(0)"]), JobError, "each of 2 hierarchy"),
        (lambda x: flow.hierarchical_parallel_cast(x), JobError, "no distribution"),
        (
            lambda x: flow.hierarchical_parallel_cast(x, ["B", "B"], nd_sbp=["B", "B"]),
            JobError, "one of the two names",
        ),
        (lambda x: flow.hierarchical_parallel_cast(x, ["S(0)", "Q"]), JobError, "S.axis., B or P"),
        (lambda x: flow.hierarchical_parallel_cast(x, ["S(2)", "B"]), JobError, "axis 2"),
        (
            lambda x: flow.hierarchical_parallel_cast(x, ["B", "B"], grad_mode="restore"),
            JobError, "no requested SBP",
        ),
        (
            lambda x: flow.hierarchical_parallel_cast(x, ["B", "B"], grad_mode="manual"),
            JobError, "grad_mode='manual'",
        ),
        (lambda x: flow.parallel_cast(x, distribute=flow.distribute.split(5)), JobError, "axis 5"),
        (lambda x: x.with_distribute(flow.distribute.split(2)), JobError, "axis 2"),
        (lambda x: flow.advanced.distribute_split(x, 3)[0], InferenceError, "axis 3"),
        (lambda x: flow.advanced.distribute_add([x, x]), InferenceError, "4 blobs"),
        (lambda x: flow.advanced.distribute_concat(x), JobError, "a list or tuple"),
        (
            lambda x: weight("w", (4,), parallel_hierarchy=(3, 2)) * x,
            JobError, "product is the number",
        ),
        (lambda x: x.with_distribute("S(0)"), JobError, "flow.distribute.split"),
        (lambda x: flow.parallel_cast(x, gradient_distribute=0), JobError, "flow.distribute.split"),
        (lambda x: weight("w", (8, 6), distribute=1) * x, JobError, "flow.distribute.split"),
        (lambda x: flow.hierarchical_parallel_cast(x, [0, 1]), JobError, "a text per hierarchy"),
        (lambda x: flow.hierarchical_parallel_cast(x, "S(0)"), JobError, "a text per hierarchy"),
        (
            lambda x: x * weight(
                "w", (8, 6), distribute=SPLITS[0], parallel_distribution=["B", "B"]
            ),
            VariableError, "allowed: one of them",
        ),
        (
            lambda x: x * weight("w", (8, 6), parallel_distribution=["P", "B"]),
            SelectionError, "this request alone cannot be met.* 'w' is .P, B. at ",
        ),
    ],
)  # fmt: skip
def test_hints_that_do_not_fit(body: Body, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        train(body, "0:0-3", (2, 2))


@pytest.mark.parametrize("ids", ["0:0-3", ["0:0", "0:0"], "four"])
def test_placements_that_do_not_fit_are_named_by_line(ids: Any) -> None:
    with pytest.raises(GraphError, match=r"making a placement|reading device ids") as caught:
        flow.scope.placement("gpu", ids, (3, 2))
    assert __file__ in str(caught.value)


def test_casts_to_more_devices_than_elements() -> None:
    """The last devices get none of it, as of variables; gradients that are constants, too."""

    def body(x: Any) -> Any:
        y = flow.matmul(x, weight("w", (6, 2)))
        y = flow.parallel_cast(
            y, distribute=flow.distribute.split(1), gradient_distribute=flow.distribute.split(1)
        )
        return flow.parallel_cast(y, distribute=flow.distribute.broadcast())

    job = check_same(body, "0:0-3")
    assert layouts(job, "parallel_cast")[0] == "S(1)"


@pytest.mark.parametrize("kind", ["train", "predict"])
def test_a_later_job_cannot_ask_for_other_parts_of_a_variable(kind: str) -> None:
    def make(name: str, kind: str, **hint: Any) -> Any:
        def job(x: tp.Numpy.Placeholder((8, 6))) -> tp.Numpy:
            with flow.scope.placement("gpu", "0:0-3"):
                y = flow.matmul(x, weight("w", (6, 8), **hint))
                if kind == "train":
                    rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
                    flow.optimizer.SGD(rate, momentum=0.9).minimize(y)
            return y

        job.__name__ = name
        return flow.global_function(type=kind)(job)

    x = np.ones((8, 6), "f4")
    make("first", "train", distribute=flow.distribute.split(0))(x)
    make("alike", kind, distribute=flow.distribute.split(0))(x)
    make("any", kind)(x)
    with pytest.raises(JobError, match=r"a request for gpu\[0:0-3\] S\(1\)") as caught:
        make("second", kind, distribute=flow.distribute.split(1))(x)
    assert "S(0)" in str(caught.value)
    assert __file__ in str(caught.value)


def test_no_hints_in_the_mirrored_view() -> None:
    def body(x: Any) -> Any:
        with flow.scope.mirrored_view():
            return flow.parallel_cast(x, distribute=flow.distribute.broadcast())

    with pytest.raises(JobError, match="the consistent view"):
        train(body, "0:0-1")


@pytest.mark.parametrize("devices", DEVICES)
def test_split_variables_begin_as_whole_ones_do(devices: str) -> None:
    """Also when their parts are made before the first call, and read back."""

    def body(x: Any) -> Any:
        w = weight("w", (6, 4), distribute=flow.distribute.split(0))
        return flow.math.tanh(flow.matmul(x, w))

    found = []
    for place in ("0:0", devices):
        flow.clear_default_session()
        found.append(_initial(body, place))
    np.testing.assert_array_equal(*found)


def _initial(body: Body, devices: str) -> Any:
    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((8, 6))) -> tp.Numpy:
        with flow.scope.placement("gpu", devices):
            y = body(x)
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.0])
            flow.optimizer.SGD(rate).minimize(y)
        return y

    flow.train.CheckPoint().init()
    before = flow.get_all_variables()["w"].numpy()
    job(np.ones((8, 6), "f4"))
    np.testing.assert_array_equal(flow.get_all_variables()["w"].numpy(), before)
    return before
