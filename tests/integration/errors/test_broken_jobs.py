"""A job that cannot be defined, compiled or bound breaks itself, and nothing of the others."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mistakes import PAIR, ZEROS, line_of

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import (
    BrokenJobWarning,
    DeviceUnavailableError,
    FlowError,
    InferenceError,
    JobError,
    OutOfMemoryError,
)

ONES = np.ones((2, 3), np.float32)


def trained() -> Any:
    @flow.global_function("train")
    def good(x: PAIR) -> tp.Numpy:
        weight = flow.get_variable("w", shape=(3,), initializer=flow.ones_initializer())
        loss = flow.math.reduce_mean(x * weight)
        flow.optimizer.SGD(0.1, momentum=0).minimize(loss)
        return loss

    good(ONES)
    return good


def misspelt(x: Any) -> Any:
    flow.get_variable("v", shape=(3,))
    return flow.nn.rleu(x)


def misshapen(x: Any) -> Any:
    flow.get_variable("v", shape=(3,))
    return flow.reshape(x, (7,))


def on_a_missing_device(x: Any) -> Any:
    with flow.scope.placement("gpu", "0:99"):
        return x * flow.get_variable("v", shape=(3,))


def larger_than_memory(x: Any) -> Any:
    return flow.matmul(x, flow.get_variable("v", shape=(3, 1 << 40)))


BROKEN: dict[Callable[[Any], Any], tuple[type[FlowError], str]] = {
    misspelt: (JobError, r"job 'broken'(.|\n)*no attribute 'rleu'"),
    misshapen: (InferenceError, "reshape"),
    on_a_missing_device: (DeviceUnavailableError, "gpu"),
    larger_than_memory: (OutOfMemoryError, "bytes"),
}


def broken_job(body: Callable[[Any], Any]) -> Any:
    def broken(x: PAIR) -> tp.Numpy:
        return body(x)

    broken.__annotations__ = {"x": PAIR, "return": tp.Numpy}
    return flow.global_function()(broken)


@contextmanager
def one_warning(job: Any) -> Iterator[None]:
    """Expects one warning in all, at a job's definition, which names the job and the fault."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    (only,) = caught
    assert only.category is BrokenJobWarning
    assert (only.filename, only.lineno) == (job.line.file, job.line.line)
    assert "job 'broken' cannot be used" in str(only.message)


@pytest.mark.parametrize("body", BROKEN)
def test_the_variables_of_other_jobs_are_read_saved_and_loaded(
    body: Callable[[Any], Any], tmp_path: Path
) -> None:
    good, broken = trained(), broken_job(body)
    with one_warning(broken):
        before = flow.get_all_variables()["w"].numpy()
        flow.checkpoint.save(str(tmp_path / "saved"))
        good(ONES)
        flow.load_variables(flow.checkpoint.get(str(tmp_path / "saved")))
        np.testing.assert_array_equal(flow.get_all_variables()["w"].numpy(), before)
        good(ONES)
        flow.train.CheckPoint().load(str(tmp_path / "saved"))
        np.testing.assert_array_equal(flow.get_all_variables()["w"].numpy(), before)
        flow.summary.Graph(str(tmp_path)).write_structure_graph()
        flow.train.CheckPoint().init()
    assert "v" not in flow.checkpoint.get(str(tmp_path / "saved"))
    assert good(ONES) == pytest.approx(1)


@pytest.mark.parametrize("body", BROKEN)
def test_its_own_call_says_what_is_wrong_and_where(body: Callable[[Any], Any]) -> None:
    good, broken = trained(), broken_job(body)
    kind, text = BROKEN[body]
    for _ in range(2):
        with pytest.raises(kind, match=text) as caught:
            broken(ZEROS)
        said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
        assert f"{__file__}:" in said
        good(ONES)


def test_a_job_that_is_mended_takes_part_again() -> None:
    faults = ["rleu"]

    def body(x: Any) -> Any:
        return getattr(flow.nn, faults[0])(x) + flow.get_variable("v", shape=(3,))

    trained()
    broken = broken_job(body)
    with one_warning(broken):
        for _ in range(3):
            assert "v" not in flow.get_all_variables()
    faults[:] = ["relu"]
    assert "v" in flow.get_all_variables()
    np.testing.assert_array_equal(broken(ONES), ONES)


def test_interrupts_are_no_faults_of_a_job() -> None:
    def body(x: Any) -> Any:
        raise KeyboardInterrupt

    trained()
    broken_job(body)
    with pytest.raises(KeyboardInterrupt):
        flow.get_all_variables()


def test_a_job_whose_variables_lie_elsewhere_does_not_stay_in_the_way(four_gpus: None) -> None:
    def on(device: str, body: Callable[[Any], Any]) -> Any:
        def job(x: PAIR) -> tp.Numpy:
            with flow.scope.placement("gpu", device):
                return body(x * flow.get_variable("w", shape=(3,)))

        return job

    def minimized(loss: Any) -> Any:
        flow.optimizer.SGD(0.1, momentum=0).minimize(loss)
        return loss

    first = flow.global_function("train")(on("0:0", minimized))
    elsewhere = flow.global_function()(on("0:1", lambda x: x))
    third = flow.global_function()(on("0:0", lambda x: x + 1))
    first(ONES)
    with pytest.raises(FlowError, match="variable 'w'"):
        elsewhere(ONES)
    assert third(ONES).shape == (2, 3)
    assert first(ONES).shape == (2, 3)
    assert line_of(first.function).line


def test_a_broken_owner_of_parts_of_states(four_gpus: None) -> None:
    config = flow.function_config()
    config.optimizer_placement_optimization_mode("distributed_split")

    @flow.global_function("train", config)
    def broken(x: PAIR) -> tp.Numpy:
        return flow.nn.rleu(x)

    @flow.global_function()
    def good(x: PAIR) -> tp.Numpy:
        return x + 1

    with one_warning(broken):
        np.testing.assert_array_equal(good(ZEROS), ONES)
