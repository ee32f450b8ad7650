"""Conformance tests of the ops, and the programs of the documentation."""

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import DataError
from flow_core.testing import Gap, GradientKit, KernelKit, SbpRuleKit

READS = Gap("MiniReader", "never", "reads files, which the tests below compare")


class TestKernels(KernelKit):
    plugin = "tutorial"
    dtypes = ("float32", "float64")
    gaps = (READS,)


class TestGradients(GradientKit):
    plugin = "tutorial"
    gaps = (Gap("myrelu", "never", "OneFlow's documentation gives it no gradient"),)


class TestSbpRules(SbpRuleKit):
    plugin = "tutorial"
    gaps = (READS,)


@pytest.fixture(autouse=True)
def session():
    flow.clear_default_session()
    yield
    flow.clear_default_session()


@pytest.mark.parametrize("name", ["final_relu.so", "final_myop.so", "miniloader.so"])
def test_the_libraries_of_the_documentation_need_no_loading(name):
    flow.config.load_library(name)


def built(op, name, inputs, outputs, **attrs):
    builder = flow.user_op_builder(name).Op(op)
    for blob in inputs:
        builder = builder.Input("in", [blob])
    for output in outputs:
        builder = builder.Output(output)
    for key, value in attrs.items():
        builder = builder.Attr(key, value)
    return builder.Build().InferAndTryRun().RemoteBlobList()


def test_a_job_learns_through_myop():
    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((5,))) -> tuple[tp.Numpy, tp.Numpy]:
        weight = flow.get_variable("w", (5,), initializer=flow.zeros_initializer())
        (y,) = built("myop", "y", [x + weight], ["out"])
        (positive,) = built("myrelu", "positive", [x], ["out"])
        rate = flow.optimizer.PiecewiseConstantScheduler([], [0.5])
        flow.optimizer.SGD(rate, momentum=0).minimize(flow.math.reduce_sum(y))
        return y, positive

    x = np.array([-2, -1, 0, 1, 2], np.float32)
    y, positive = job(x)
    assert y.tolist() == [12, 3, 0, 3, 12]
    assert positive.tolist() == [0, 0, 0, 1, 2]
    assert flow.get_all_variables()["w"].numpy().tolist() == (-3 * x).tolist()


@pytest.fixture
def folder(tmp_path):
    for part in range(2):
        lines = [f"{10 * part + i}.5,{i}" for i in range(5)]
        (tmp_path / f"part-{part:03}").write_text("\n".join(lines))
    return str(tmp_path)


def loader(folder, devices="0:0", **attrs):
    @flow.global_function()
    def job() -> tuple[tp.Numpy, tp.Numpy]:
        options = {"data_part_num": 2, "part_name_suffix_length": 3, "batch_size": 4, **attrs}
        with flow.scope.placement("cpu", devices):
            (records,) = built("MiniReader", "reader", [], ["out"], data_dir=folder, **options)
            return tuple(built("mini_decoder", "decoder", [records], ["x", "y"]))

    return job


SAMPLES = [(10 * part + i + 0.5, i) for part in range(2) for i in range(5)]


def epochs(job, steps=5):
    found = [job() for _ in range(steps)]
    rows = np.concatenate([np.concatenate(pair, 1) for pair in found])
    return [list(map(tuple, rows[i : i + 10].tolist())) for i in range(0, len(rows), 10)]


def test_batches_follow_one_another_through_the_epochs(folder):
    assert epochs(loader(folder)) == [SAMPLES, SAMPLES]


@pytest.mark.parametrize("size", [1024, 5])
def test_shuffled_epochs_have_all_samples_on_any_devices(folder, size):
    flow.config.cpu_device_num(2)
    options = {"random_shuffle": True, "shuffle_after_epoch": True, "shuffle_buffer_size": size}
    first, second = found = epochs(loader(folder, **options))
    assert sorted(first) == sorted(second) == SAMPLES
    assert SAMPLES not in found
    assert first != second
    assert (sorted(first[:5]) == SAMPLES[:5]) is (size == 5)
    assert epochs(loader(folder, "0:0-1", **options)) == found


@pytest.mark.parametrize(
    ("text", "found"), [("1,2,3", "two numbers"), ("a,b", "two numbers"), ("", "no sample")]
)
def test_wrong_files_are_refused(folder, tmp_path, text, found):
    for part in range(2):
        (tmp_path / f"part-{part:03}").write_text(text)
    with pytest.raises(DataError, match=found):
        loader(folder)()
    with pytest.raises(DataError, match="part-0"):
        loader(folder, data_part_num=3, part_name_suffix_length=-1)()
