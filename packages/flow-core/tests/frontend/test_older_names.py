"""Names of experimental and older programs, both supported and rejected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
from flow_core.base.errors import ConfigError, JobError, UnsupportedError, VariableError
from flow_typing import ListNumpy, Numpy


def add_weight() -> Any:
    @flow.global_function()
    def job(x: Numpy.Placeholder((2,))) -> Numpy:
        return x + flow.get_variable("w", (2,), initializer=flow.ones_initializer())

    return job


def test_variables_are_read_and_written_by_name() -> None:
    job = add_weight()
    flow.experimental.set_interface_blob_value("w", np.array([3, 4], np.float32))
    assert flow.experimental.get_interface_blob_value("w").tolist() == [3, 4]
    assert job(np.array([1, 1], np.float32)).tolist() == [4, 5]
    with pytest.raises(VariableError, match="no variable 'v'"):
        flow.experimental.get_interface_blob_value("v")
    with pytest.raises(VariableError, match=r"shape \(3,\)"):
        flow.experimental.set_interface_blob_value("w", np.zeros(3))


def test_all_reduce_of_the_mirrored_view() -> None:
    flow.config.cpu_device_num(2)
    config = flow.FunctionConfig()
    config.default_logical_view(flow.scope.mirrored_view())
    config.default_placement_scope(flow.scope.placement("cpu", "0:0-1"))

    @flow.global_function(function_config=config)
    def job(x: ListNumpy.Placeholder((2,))) -> ListNumpy:
        return flow.eager_nccl_all_reduce(x, 'device_tag: "cpu", device_name: "0:0-1"') * 2

    one, two = job([np.array([1, 2], np.float32), np.array([3, 5], np.float32)])
    assert one.tolist() == two.tolist() == [8, 14]


def test_one_to_one_assignment_requires_the_eager_mode() -> None:
    def assigning(x: Numpy.Placeholder((2,))) -> Numpy:
        weight = flow.get_variable("w", (2,), initializer=flow.ones_initializer())
        flow.experimental.eager_assign_121(weight, x)
        return x

    x = np.array([5, 6], np.float32)
    with pytest.raises(JobError, match="without eager execution"):
        flow.global_function()(assigning)(x)
    flow.clear_default_session()
    flow.enable_eager_execution()
    flow.global_function()(assigning)(x)
    assert flow.get_all_variables()["w"].numpy().tolist() == [5, 6]


def test_memory_strategies_between_jobs() -> None:
    flow.inter_job_reuse_mem_strategy("parallelism_priority")
    flow.inter_job_reuse_mem_strategy("custom_parallelism", job_name_groups=[["a", "b"]])
    assert flow.current_resource()["inter_job_reuse_mem_strategy"] == "custom_parallelism"
    for strategy in ("fast", "custom_parallelism"):
        with pytest.raises(ConfigError, match=strategy):
            flow.inter_job_reuse_mem_strategy(strategy)


def test_deprecated_names_are_recognized() -> None:
    assert flow.is_deprecated(flow.optimizer.PolynomialSchduler)
    assert flow.is_deprecated(flow.distribute.mirrored_strategy)
    assert not flow.is_deprecated(flow.optimizer.PolynomialScheduler)
    assert not flow.is_deprecated([])


@pytest.mark.parametrize(
    ("call", "next_step"),
    [
        (lambda: flow.tensorrt.cache_int8_calibration(), "flow.quantization"),
        (lambda: flow.tensorrt.write_int8_calibration("."), "flow.quantization"),
        (flow.sysconfig.get_include, "plugin"),
        (flow.sysconfig.get_lib, "plugin"),
        (flow.sysconfig.get_compile_flags, "plugin"),
        (flow.sysconfig.get_link_flags, "plugin"),
        (lambda: flow.experimental.custom_op_module("relu").cpp_kernel(), "plugin"),
        (lambda: flow.experimental.custom_op_module("relu").gpu_kernel(), "plugin"),
    ],
)
def test_rejected_names_report_their_replacement(call: Any, next_step: str) -> None:
    with pytest.raises(UnsupportedError, match=next_step):
        call()


def test_workers_require_a_launcher() -> None:
    flow.deprecated.init_worker()
    flow.deprecated.delete_worker()
    flow.env.machine([{"addr": "10.0.0.1"}, {"addr": "10.0.0.2"}])
    with pytest.raises(UnsupportedError, match="launcher"):
        flow.deprecated.init_worker(scp_binary=True, use_uuid=True)
