"""Job functions as programs write them: decorators, annotations, results, watching."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Dict, List, Tuple  # noqa: UP035 - as in OneFlow's programs

import numpy as np
import pytest
from pairs import PAIR, pair

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import CompatibilityWarning
from flow_core.frontend.job.feeding import Feeding
from flow_core.frontend.job.function import defined_jobs
from flow_core.observe.text import plan_report
from flow_core.plan import Plan

Array = Any
FIXED = flow.FixedTensorDef((2, 3))
MIRRORED, MIRRORED_LISTS = flow.MirroredTensorDef((2, 3)), flow.MirroredTensorListDef((2, 3))


# ------------------------------------------------------------------------------- decorators


def test_bare_and_called_decorators() -> None:
    @flow.global_function
    def bare(x: PAIR) -> tp.Numpy:
        return x + 1

    @flow.global_function()
    def called(x: PAIR) -> tp.Numpy:
        return x + 2

    @flow.global_function(type="predict")
    def typed(x: PAIR) -> tp.Numpy:
        return x + 3

    @flow.global_function("predict", flow.function_config())
    def positional(x: PAIR) -> tp.Numpy:
        return x + 4

    @flow.global_function(flow.FunctionConfig())
    def older(x: PAIR) -> tp.Numpy:
        return x + 5

    @flow.global_function(function_config=flow.FunctionConfig())
    def named(x: PAIR) -> tp.Numpy:
        return x + 6

    jobs = [bare, called, typed, positional, older, named]
    for i, job in enumerate(jobs):
        np.testing.assert_array_equal(job(pair()), pair(i + 1))
    assert list(defined_jobs()) == jobs


def test_a_job_keeps_name_and_docstring() -> None:
    @flow.global_function(type="predict")
    def documented(x: PAIR) -> tp.Numpy:
        """What it does."""
        return x

    assert documented.__name__ == "documented"
    assert documented.__doc__ == "What it does."
    assert "predict job 'documented'" in repr(documented)


# ------------------------------------------------------------------------------ annotations


def test_shapes_and_types_print_while_a_job_is_defined(capsys: pytest.CaptureFixture[str]) -> None:
    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((1, 3, 8, 8), dtype=flow.float)) -> tp.Numpy:
        conv1 = flow.layers.conv2d(x, 4, 3, padding="SAME", name="conv1")
        print(conv1.shape, conv1.dtype)
        return conv1

    x = np.zeros((1, 3, 8, 8), np.float32)
    job(x)
    job(x)
    assert capsys.readouterr().out == "(1, 4, 8, 8) float32\n"


FORMS = [
    (lambda x, y: x, tp.Numpy, lambda x, y: x),
    (lambda x, y: x, tp.ListNumpy, lambda x, y: [x]),
    (lambda x, y: x, tp.ListListNumpy, lambda x, y: [[x]]),
    (lambda x, y: (x, y), tp.Tuple[tp.Numpy, tp.Numpy], lambda x, y: (x, y)),
    (lambda x, y: (x, y), Tuple[tp.Numpy, tp.ListNumpy], lambda x, y: (x, [y])),  # noqa: UP006
    (lambda x, y: [x, y, x], List[tp.Numpy], lambda x, y: [x, y, x]),  # noqa: UP006
    (lambda x, y: {"a": x, "b": y}, Dict[str, tp.Numpy], lambda x, y: {"a": x, "b": y}),  # noqa: UP006
    (lambda x, y: [], List[tp.Numpy], lambda x, y: []),  # noqa: UP006
    (
        lambda x, y: ([x, y], {"k": (y,)}),
        tp.Tuple[tp.List[tp.Numpy], tp.Dict[str, tp.Tuple[tp.ListNumpy]]],
        lambda x, y: ([x, y], {"k": ([y],)}),
    ),
    (lambda x, y: (x, y), tuple[tp.Numpy, tp.Numpy], lambda x, y: (x, y)),
    (lambda x, y: x, tp.Bundle[tp.Numpy], lambda x, y: x),
    (lambda x, y: (x, [y, {"z": x}]), tp.Bundle[tp.Numpy], lambda x, y: (x, [y, {"z": x}])),
    (lambda x, y: {1: x}, tp.Bundle[tp.ListNumpy], lambda x, y: {1: [x]}),
    (lambda x, y: None, None, lambda x, y: None),
]


def check_equal(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        found, wanted = list(found.values()), list(wanted.values())
    if isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for f, w in zip(found, wanted, strict=True):
            check_equal(f, w)
    elif wanted is not None:
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("make", "annotation", "wanted"), FORMS)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_results_come_in_the_annotated_form(
    make: Any, annotation: Any, wanted: Any, asynchronous: bool
) -> None:
    def job(x, y):
        return make(x + 1, y)

    result = tp.Callback[annotation] if asynchronous else annotation
    job.__annotations__ = {
        "x": PAIR,
        "y": tp.Numpy.Placeholder((2,), dtype=flow.int32),
        "return": result,
    }
    job = flow.global_function(type="predict")(job)
    x, y = pair(), np.array([1, 2], np.int32)
    if asynchronous:
        got: list[Any] = []
        job(x, y)(got.append)
        flow.sync_default_session()
        (found,) = got
    else:
        found = job(x, y)
    check_equal(found, wanted(x + 1, y))


def test_fed_tuples_and_lists_of_one_device() -> None:
    @flow.global_function()
    def job(
        ab: Tuple[PAIR, tp.Tuple[PAIR]],  # noqa: UP006
        c: tp.ListNumpy.Placeholder((2, 3)),
        d: tp.ListListNumpy.Placeholder((2, 3)),
    ) -> tp.Numpy:
        a, (b,) = ab
        return a + b * 10 + c * 100 + d * 1000

    one = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(job((one, (one,)), [one], [[one]]), one * 1111)


def test_annotations_for_static_checkers() -> None:
    @flow.global_function()
    def job(x: Annotated[Any, tp.Numpy.Placeholder((2, 3), batch_axis=None)]) -> tp.Numpy:
        assert x.batch_axis is None
        return x * 3

    np.testing.assert_array_equal(job(pair()), pair() * 3)


def test_placeholders_keep_type_and_batch_axis() -> None:
    seen = []

    @flow.global_function()
    def job(
        x: tp.Numpy.Placeholder((2, 3), dtype=flow.int64, batch_axis=1),
        y: tp.Numpy.Placeholder((2, 3), dtype=flow.float16),
    ) -> tp.Numpy:
        seen.extend([x.batch_axis, y.batch_axis, x.dtype, y.dtype, x.shape])
        return flow.cast(x, flow.float16) + y

    out = job(np.full((2, 3), 5, np.int64), np.ones((2, 3), np.float16))
    assert out.dtype == np.float16
    assert (out == 6).all()
    assert seen == [1, 0, flow.int64, flow.float16, (2, 3)]


def test_keyword_arguments() -> None:
    @flow.global_function()
    def job(x: PAIR, y: PAIR) -> tp.Numpy:
        return x - y

    np.testing.assert_array_equal(job(y=pair(1), x=pair(2)), np.ones((2, 3)))
    np.testing.assert_array_equal(job(pair(2), y=pair(1)), np.ones((2, 3)))


def test_arrays_of_any_memory_layout_are_fed() -> None:
    @flow.global_function()
    def job(x: PAIR) -> tp.Numpy:
        return x + 0

    columns = np.asfortranarray(pair())
    np.testing.assert_array_equal(job(columns), pair())
    strided = np.zeros((4, 6), np.float32)
    strided[::2, ::2] = pair()
    np.testing.assert_array_equal(job(strided[::2, ::2]), pair())


# ------------------------------------------------------------------------------ unannotated


def unannotated(returns: Callable[[Any], Any]) -> Any:
    @flow.global_function(type="predict")
    def job(x=FIXED):
        return returns(x + 1)

    return job


def test_a_job_without_annotations_gives_a_handle() -> None:
    job = unannotated(lambda x: x)
    result = job(pair()).get()
    np.testing.assert_array_equal(result.numpy(), pair(1))
    np.testing.assert_array_equal(result.numpy(0), pair(1))
    check_equal(result.numpy_list(), [pair(1)])
    check_equal(result.numpy_lists(), [[pair(1)]])
    np.testing.assert_array_equal(np.array(result), pair(1))
    assert result.shape == (2, 3)
    assert len(result) == 2
    assert result[1, 2] == 6
    handle = job(pair(1))
    np.testing.assert_array_equal(handle.numpy(), pair(2))
    check_equal(handle.numpy_list(), [pair(2)])
    check_equal(handle.numpy_lists(), [[pair(2)]])


def test_handles_come_in_the_structure_that_the_job_returns() -> None:
    a, (b, c) = unannotated(lambda x: [x, (x * 2, {"k": x})])(pair()).get()
    np.testing.assert_array_equal(a.numpy(), pair(1))
    np.testing.assert_array_equal(b.numpy(), pair(1) * 2)
    np.testing.assert_array_equal(c["k"].numpy(), pair(1))


def test_async_get() -> None:
    got: list[Any] = []
    job = unannotated(lambda x: x)
    for i in range(5):
        job(pair(i)).async_get(got.append)
    flow.sync_default_session()
    assert [int(g.numpy()[0, 0]) for g in got] == [1, 2, 3, 4, 5]


def test_handles_may_be_read_in_any_order() -> None:
    job = unannotated(lambda x: x)
    handles = [job(pair(i)) for i in range(3)]
    for i in (2, 0, 1):
        np.testing.assert_array_equal(handles[i].get().numpy(), pair(i + 1))
    np.testing.assert_array_equal(handles[0].get().numpy(), pair(1))


def test_handles_that_nobody_reads_hold_up_nobody() -> None:
    job = unannotated(lambda x: x)
    handles = [job(pair(i)) for i in range(20)]
    late: list[Any] = []
    handles[3].async_get(late.append)

    @flow.global_function()
    def other(x: PAIR) -> tp.Numpy:
        return x

    np.testing.assert_array_equal(other(pair()), pair())
    np.testing.assert_array_equal(late[0].numpy(), pair(4))


def test_a_job_without_annotation_that_returns_nothing() -> None:
    seen: list[Any] = []

    @flow.global_function(type="predict")
    def job(x: PAIR):
        flow.watch(x, seen.append)

    assert job(pair()) is None
    assert len(seen) == 1


def test_mirrored_definitions_take_lists() -> None:
    @flow.global_function()
    def job(x=MIRRORED, y=MIRRORED_LISTS):
        return x + y

    result = job([pair()], [[pair()]]).get()
    check_equal(result.numpy_list(), [pair() * 2])


# -------------------------------------------------------------------------------- results


def test_results_are_never_overwritten_by_later_steps() -> None:
    @flow.global_function()
    def job(x: PAIR) -> tp.Tuple[tp.Numpy, tp.Numpy, tp.Numpy, tp.Numpy]:
        return x, flow.reshape(x, (6,)), x, x + 1

    fed = [pair(i) for i in range(6)]
    results = [job(x) for x in fed]
    for x in fed:
        x[...] = -1
    for i, (same, flat, again, more) in enumerate(results):
        np.testing.assert_array_equal(same, pair(i))
        np.testing.assert_array_equal(flat, pair(i).reshape(-1))
        np.testing.assert_array_equal(more, pair(i + 1))
        same[...] = -2  # theirs to change, each by itself
        np.testing.assert_array_equal(again, pair(i))
        np.testing.assert_array_equal(flat, pair(i).reshape(-1))


def test_a_returned_variable_is_a_copy_of_before_the_update() -> None:
    @flow.global_function(type="train")
    def job() -> tp.Numpy:
        w = flow.get_variable("w", shape=(2,), initializer=flow.ones_initializer())
        schedule = flow.optimizer.PiecewiseConstantScheduler([], [1.0])
        flow.optimizer.SGD(schedule, momentum=0).minimize(w)
        return w

    first, second = job(), job()
    np.testing.assert_array_equal(first, [1.0, 1.0])
    np.testing.assert_array_equal(second, [0.5, 0.5])


def test_feeding_the_result_of_another_job() -> None:
    @flow.global_function()
    def first(x: PAIR) -> tp.Numpy:
        return x + 1

    @flow.global_function()
    def second(x: PAIR) -> tp.Numpy:
        return x * 2

    np.testing.assert_array_equal(second(first(pair())), pair(1) * 2)


def test_fed_arrays_have_the_names_that_a_user_writes() -> None:
    @flow.global_function()
    def job(
        x: PAIR, some: tuple[PAIR, tuple[PAIR]], many: tp.ListNumpy.Placeholder((2,))
    ) -> tp.Numpy:
        return x

    names = Feeding("job", job.signature, 2).names
    assert names == ["x", "some[0]", "some[1][0]", "many[0]", "many[1]"]


# -------------------------------------------------------------------------------- sessions


def test_jobs_may_be_defined_after_the_first_call() -> None:
    @flow.global_function()
    def early(x: PAIR) -> tp.Numpy:
        return x + 1

    early(pair())

    @flow.global_function()
    def late(x: PAIR) -> tp.Numpy:
        return x + 2

    np.testing.assert_array_equal(late(pair()), pair(2))
    np.testing.assert_array_equal(early(pair()), pair(1))


def test_definition_only_traces_at_the_first_call() -> None:
    traced = []

    @flow.global_function()
    def job(x: PAIR) -> tp.Numpy:
        traced.append(type(x).__name__)
        return x

    assert traced == []
    job(pair())
    job(pair())
    assert traced == ["BlobDef"]


def test_clearing_the_session_forgets_variables_and_jobs() -> None:
    @flow.global_function(type="train")
    def job() -> tp.Numpy:
        w = flow.get_variable("w", shape=(1,), initializer=flow.ones_initializer())
        schedule = flow.optimizer.PiecewiseConstantScheduler([], [0.5])
        flow.optimizer.SGD(schedule, momentum=0).minimize(w)
        return w

    assert [float(job()[0]) for _ in range(2)] == [1.0, 0.5]
    flow.clear_default_session()
    assert list(defined_jobs()) == []
    assert flow.get_all_variables() == {}
    assert [float(job()[0]) for _ in range(2)] == [1.0, 0.5]  # it joined the new session


def test_settings_of_the_process_survive_clearing() -> None:
    """Those of the session do not, as in OneFlow."""
    flow.config.machine_num(1)
    flow.env.data_port(1234)
    flow.config.cpu_device_num(3)
    flow.clear_default_session()
    left = flow.env.current_resource()
    assert (left["machine_num"], left["env.data_port"], left["cpu_device_num"]) == (1, 1234, None)


def test_syncing_an_idle_session() -> None:
    flow.sync_default_session()
    flow.clear_default_session()
    flow.clear_default_session()


# -------------------------------------------------------------------------------- watching


def train_twice(watch: Callable[[Any, Any], None], asynchronous: bool) -> None:
    def job(x):
        w = flow.get_variable("w", shape=(2, 3), initializer=flow.ones_initializer())
        y = x * w
        schedule = flow.optimizer.PiecewiseConstantScheduler([], [6.0])
        flow.optimizer.SGD(schedule, momentum=0).minimize(y)
        watch(y, w)
        return y

    result = tp.Callback[tp.Numpy] if asynchronous else tp.Numpy
    job.__annotations__ = {"x": PAIR, "return": result}
    job = flow.global_function(type="train")(job)
    for i in range(2):
        called = job(pair(i))
        if asynchronous:
            called(lambda _: None)
    flow.sync_default_session()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_watch_and_watch_diff(asynchronous: bool) -> None:
    values: list[Any] = []
    gradients: list[Any] = []

    def show(y: tp.Numpy) -> None:
        values.append(y)

    def show_gradient(w: tp.ListNumpy) -> None:
        gradients.append(w)

    def watch(y: Any, w: Any) -> None:
        flow.watch(y, show)
        flow.watch_diff(w, show_gradient)
        flow.watch_diff(y, lambda g, kept=gradients: kept.append(g.numpy()))

    train_twice(watch, asynchronous)
    check_equal(values, [pair(), pair(1) * (1 - pair())])
    ones = np.ones((2, 3), np.float32)
    check_equal(gradients, [[pair()], ones, [pair(1)], ones])


@pytest.mark.parametrize(
    ("kind", "text"), [("train", "no loss depends on it"), ("predict", 'type "predict"')]
)
def test_watching_gradients_that_do_not_exist(kind: str, text: str) -> None:
    seen: list[Any] = []

    @flow.global_function(type=kind)
    def job(x: PAIR) -> tp.Numpy:
        w = flow.get_variable("w", (2, 3), initializer=flow.ones_initializer())
        y = flow.math.relu(x)
        flow.watch_diff(y, seen.append)
        flow.watch(y, seen.append)
        if kind == "train":
            flow.optimizer.SGD(
                flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0
            ).minimize(w)
        return y

    with pytest.warns(CompatibilityWarning, match=f"watch_diff of .*{text}") as caught:
        result = job(pair())
    assert [w.filename for w in caught] == [__file__]
    check_equal([value.numpy() for value in seen], [result])


def test_watching_with_a_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2,))) -> None:
        flow.watch(x, "here it comes:")
        flow.watch(flow.math.relu(x, name="positive"))

    job(np.array([-1, 2], np.float32))
    assert capsys.readouterr().out == "here it comes:\n[-1.  2.]\npositive\n[0. 2.]\n"


# ------------------------------------------------------------------------------------ plans


def test_a_plan_goes_through_json_and_is_reported() -> None:
    @flow.global_function()
    def job(x: PAIR) -> tp.Numpy:
        return flow.math.tanh(x) + 1

    plan = job.plan()
    assert Plan.from_json(plan.to_json()) == plan
    report = plan_report(job)
    for part in ("ops", "tasks", "memory of", "registers", "dead_code", Path(__file__).name):
        assert part in report
    assert dataclasses.is_dataclass(plan)


def test_the_batch_axis_goes_when_it_is_reduced() -> None:
    seen: list[tuple[int | None, int | None]] = []

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((10, 3))) -> tp.Numpy:
        for y in (flow.math.relu(x), flow.math.reduce_sum(x), flow.math.reduce_sum(x, axis=1)):
            seen.append((y.batch_axis, y.split_axis))
        return x

    job(np.zeros((10, 3), np.float32))
    none = flow.INVALID_BATCH_AXIS, flow.INVALID_SPLIT_AXIS
    assert seen == [(0, none[1]), none, (0, none[1])]


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.usefixtures("four_gpus")
def test_the_names_and_devices_of_a_blob(mirrored: bool) -> None:
    config = flow.function_config()
    config.default_placement_scope(flow.scope.placement("gpu", "0:0-1"))
    if mirrored:
        config.default_logical_view(flow.scope.mirrored_view())
    seen: list[Any] = []

    @flow.global_function(function_config=config)
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.ListNumpy:
        y = flow.math.relu(x, name="r")
        names = (y.op_name, y.blob_name, y.lbi.op_name(), y.lbi.blob_name(), y.unique_name)
        seen.append((*names, y.job_name, y.parallel_size))
        return y

    job(np.zeros((4, 3), np.float32))
    assert seen == [("r", "out_0", "r", "out_0", "r/out_0", "job", 2)]


def test_a_job_may_do_nothing() -> None:
    @flow.global_function()
    def job() -> None:
        flow.get_variable("w", (2,), initializer=flow.ones_initializer()) + 1.0  # not returned

    job()
    job()
