"""The settings of job functions: OneFlow's names, their values, and what they change."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from pairs import PAIR, pair

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.config import Settings
from flow_core.base.errors import ConfigError
from flow_core.cli.app import cli
from flow_core.frontend.config.function_config import SETTINGS, pass_settings
from flow_core.plan import Plan
from flow_core.sharding.topology import Device

Array = Any


NAMES = """
default_data_type default_initializer_conf exp_run_conf use_memory_allocation_algorithm_v2
static_mem_alloc_policy_white_list.has static_mem_alloc_policy_white_list.add
static_mem_alloc_policy_white_list.remove
static_mem_alloc_policy_white_list.policy_mem_size_first
static_mem_alloc_policy_white_list.policy_mutual_exclusion_first
static_mem_alloc_policy_white_list.policy_time_line static_mem_alloc_algo_white_list.show
enable_cudnn cudnn_buf_limit_mbyte cudnn_conv_force_fwd_algo cudnn_conv_force_bwd_data_algo
cudnn_conv_force_bwd_filter_algo cudnn_conv_heuristic_search_algo
enable_cudnn_fused_normalization_add_relu enable_fuse_add_to_output
cudnn_conv_use_deterministic_algo_only enable_inplace enable_inplace_in_reduce_struct enable_nccl
use_nccl_inter_node_communication use_boxing_v2 do_parallel_cast_before_widening_type_cast
enable_all_reduce_group all_reduce_group_num all_reduce_lazy_ratio all_reduce_group_min_mbyte
all_reduce_group_size_warmup all_reduce_fp16 train.optimizer_placement_optimization_mode
train.optimizer_placement_optimization_threshold optimizer_placement_optimization_mode
optimizer_placement_optimization_threshold enable_non_distributed_optimizer
disable_all_reduce_sequence prune_parallel_cast_ops prune_cast_to_static_shape_ops
non_distributed_optimizer_group_size_mbyte enable_true_half_config_when_conv
cudnn_conv_enable_true_half cudnn_conv_enable_pseudo_half enable_cudnn_conv_pseudo_half
enable_float_compute_for_half_gemm enable_quantization_aware_training enable_qat
qat.per_channel_weight_quantization qat.symmetric qat.moving_min_max_momentum
qat.moving_min_max_stop_update_after_iters enable_auto_mixed_precision enable_keep_header_only
indexed_slices_optimizer_conf enable_fuse_cast_scale enable_fuse_model_update_ops
enable_gradients_stats_aggregation concurrency_width train.model_update_conf
train.loss_scale_factor train.primary_lr train.secondary_lr default_placement_scope use_xla_jit
use_tensorrt tensorrt.use_fp16 tensorrt.use_int8 tensorrt.int8_calibration default_logical_view
allow_cpu_return_op default_distribute_strategy enable_reused_mem
"""


def setter(config: flow.FunctionConfig, name: str) -> Callable[..., None]:
    found: Any = config
    for part in name.split("."):
        found = getattr(found, part)
    return found


GIVEN: dict[str, Callable[[], Any]] = {
    "default_data_type": lambda: flow.float,
    "default_initializer_conf": lambda: {"constant_conf": {"value": 1.0}},
    "default_placement_scope": lambda: flow.scope.placement("cpu", "0:0"),
    "default_logical_view": flow.scope.consistent_view,
    "default_distribute_strategy": flow.distribute.consistent_strategy,
    "concurrency_width": lambda: 2,
    "check_feeds": lambda: "always",
    "all_reduce_group_min_mbyte": lambda: 4,
    "cudnn_buf_limit_mbyte": lambda: 64,
    **{f"cudnn_conv_force_{kind}_algo": lambda: 1 for kind in ("fwd", "bwd_data", "bwd_filter")},
    "train.primary_lr": lambda: 0.1,
    "train.model_update_conf": lambda: {"naive_conf": {}},
    "train.loss_scale_factor": lambda: 8.0,
    "qat.moving_min_max_momentum": lambda: 0.9,
    "qat.moving_min_max_stop_update_after_iters": lambda: 100.0,
    "indexed_slices_optimizer_conf": lambda: {"include_op_names": {"op_name": ["table"]}},
    **{
        f"{group}optimizer_placement_optimization_{name}": lambda value=value: value
        for group in ("", "train.")
        for name, value in (("mode", "distributed_split"), ("threshold", 16))
    },
}


@pytest.mark.parametrize("name", NAMES.split())
def test_every_setting_of_oneflow_is_there(name: str) -> None:
    config = flow.function_config()
    value = GIVEN.get(name, lambda: True)()
    setter(config, name)(value)
    assert config.is_set(name)
    other = flow.function_config()
    setter(other, name)(value=value)
    assert other.settings.keys() == {name}


def test_doctor_lists_the_settings_that_mean_nothing() -> None:
    result = CliRunner().invoke(cli, ["doctor", "--config"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    text = result.output
    for name, setting in SETTINGS.items():
        rows = (r.replace("│", " ") for r in text.splitlines())
        (row,) = [r for r in rows if r.split()[:1] == [name]]
        assert ("without effect" in row) == (not setting.effect), row


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("concurency_width", "concurrency_width"),
        ("enable_inplac", "enable_inplace"),
        ("train.primary_rate", "train.primary_lr"),
        ("tensorrt.use_fp61", "tensorrt.use_fp16"),
    ],
)
def test_an_unknown_setting_is_an_error_with_the_nearest_names(name: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean .*{nearest}") as caught:
        setter(flow.function_config(), name)(True)
    assert caught.value.at is not None
    assert caught.value.at.file == __file__


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("concurrency_width", 0),
        ("concurrency_width", "2"),
        ("check_feeds", "often"),
        ("check_feeds", True),
        ("enable_inplace", 2),
        ("default_initializer_conf", {"no_such_conf": {}}),
        ("default_initializer_conf", 0.0),
        ("default_placement_scope", "cpu"),
        ("default_logical_view", True),
        ("cudnn_buf_limit_mbyte", 0),
        ("cudnn_conv_force_fwd_algo", 3),
        ("cudnn_conv_force_bwd_data_algo", 6),
        ("cudnn_conv_force_bwd_filter_algo", "1"),
        ("cudnn_conv_heuristic_search_algo", 2),
        ("train.primary_lr", "fast"),
        ("train.model_update_conf", None),
    ],
)
def test_a_wrong_value_of_a_setting_is_an_error(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"function_config.{name}") as caught:
        setter(flow.function_config(), name)(value)
    assert caught.value.at is not None
    assert caught.value.at.file == __file__


@pytest.mark.parametrize("often", ["", "sometimes", "always", "never"])
def test_how_often_feeds_are_compared_is_a_variable(often: str) -> None:
    found = Settings.from_env({"FLOW_CHECK_FEEDS": often} if often else {}).check_feeds
    assert found == (often or "sometimes")
    with pytest.raises(ConfigError, match="setting FLOW_CHECK_FEEDS") as caught:
        Settings.from_env({"FLOW_CHECK_FEEDS": f"{often}."})
    assert caught.value.allowed == "sometimes or always or never"


def test_a_group_of_settings_is_not_one() -> None:
    with pytest.raises(ConfigError, match=r"train\.primary_lr"):
        flow.function_config().train(True)


def test_a_setting_without_a_default_needs_a_value() -> None:
    with pytest.raises(ConfigError, match="no value"):
        flow.function_config().train.primary_lr()


@pytest.mark.parametrize(
    ("given", "half"),
    [
        ({}, True),
        ({"cudnn_conv_enable_pseudo_half": False}, False),
        ({"enable_cudnn_conv_pseudo_half": False}, False),
        ({"cudnn_conv_enable_true_half": True}, False),
        ({"enable_true_half_config_when_conv": False}, True),
    ],
)
def test_names_of_the_half_type_of_convolutions(given: dict[str, bool], half: bool) -> None:
    config = flow.function_config()
    for name, value in given.items():
        setter(config, name)(value)
    assert pass_settings(config)["cudnn_conv_enable_pseudo_half"] is half


def test_a_job_keeps_the_settings_of_its_definition() -> None:
    config = flow.function_config()
    config.concurrency_width(2)

    @flow.global_function(function_config=config)
    def job(x: PAIR) -> tp.Numpy:
        return x

    config.concurrency_width(7)
    assert job.config.get("concurrency_width") == 2


def test_default_initializer_and_data_type_hold_for_variables_that_say_nothing() -> None:
    config = flow.function_config()
    config.default_initializer_conf({"constant_conf": {"value": 2.5}})
    config.default_data_type(flow.double)

    @flow.global_function(function_config=config)
    def job() -> tp.Numpy:
        return flow.get_variable("w", shape=(3,), dtype=None)

    result = job()
    assert result.dtype == np.float64
    np.testing.assert_array_equal(result, [2.5, 2.5, 2.5])


@pytest.mark.parametrize(
    ("conf", "check"),
    [
        (flow.ones_initializer(), lambda w: (w == 1).all()),
        ({"constant_conf": {"value": 3.0}}, lambda w: (w == 3).all()),
        ({"random_uniform_conf": {"min": 4.0, "max": 5.0}}, lambda w: ((w >= 4) & (w < 5)).all()),
        ({"random_normal_conf": {"std": 0.1}}, lambda w: 0.05 < w.std() < 0.15),
        ({"truncated_normal_conf": {}}, lambda w: np.abs(w).max() <= 0.1),
        ({"xavier_conf": {"variance_norm": 2, "data_format": ""}}, lambda w: np.abs(w).max() < 0.7),
        ({"msra_conf": {"variance_norm": 0, "data_format": ""}}, lambda w: 0.2 < w.std() < 0.6),
        (
            {
                "variance_scaling_conf": {
                    "scale": 1.0, "variance_norm": 0, "distribution": 1, "data_format": "",
                }
            },
            lambda w: 0.1 < w.std() < 0.5,
        ),
    ],
)  # fmt: skip
def test_forms_of_the_default_initializer(conf: Any, check: Callable[[Array], bool]) -> None:
    config = flow.function_config()
    config.default_initializer_conf(conf)

    @flow.global_function(function_config=config)
    def job() -> tp.Numpy:
        return flow.get_variable("w", shape=(16, 10))

    assert check(job())


def test_default_placement_and_view() -> None:
    seen = []
    config = flow.function_config()
    config.default_placement_scope(flow.scope.placement("cpu", "0:0"))
    config.default_logical_view(flow.scope.mirrored_view())

    @flow.global_function(function_config=config)
    def job(x: PAIR) -> tp.Numpy:
        seen.append(flow.scope.mirrored_view_enabled())
        with flow.scope.consistent_view():
            seen.append(flow.scope.mirrored_view_enabled())
        return x * 2

    job(pair())
    assert seen == [True, False]
    assert not flow.scope.mirrored_view_enabled()
    assert job.plan().arenas[0].device == Device("cpu", 0, 0)


def blocks(job: Any) -> Any:
    plan: Plan = job.plan()
    return [b for b in plan.buffers if b.kind in ("temp", "feed")]


def test_inplace_and_reuse_can_be_turned_off() -> None:
    def make(inplace: bool, reuse: bool) -> Any:
        config = flow.function_config()
        config.enable_inplace(inplace)
        config.enable_reused_mem(reuse)

        @flow.global_function(function_config=config)
        def job(x: tp.Numpy.Placeholder((64, 64))) -> tp.Numpy:
            for _ in range(3):
                x = flow.math.relu(flow.matmul(x, x))
            return x

        return job

    x = np.eye(64, dtype=np.float32)
    sizes = {}
    for options in ((True, True), (False, True), (False, False)):
        job = make(*options)
        np.testing.assert_array_equal(job(x), x)
        sizes[options] = (len(blocks(job)), job.plan().arenas[0].nbytes)
    assert sizes[True, True][0] < sizes[False, True][0]
    assert sizes[False, True][1] < sizes[False, False][1]


def test_training_by_the_settings_of_older_programs() -> None:
    config = flow.function_config()
    config.train.primary_lr(0.5)
    config.train.model_update_conf({"naive_conf": {}})

    @flow.global_function(type="train", function_config=config)
    def job() -> tp.Numpy:
        w = flow.get_variable("w", shape=(2,), initializer=flow.constant_initializer(3.0))
        flow.losses.add_loss(w)
        return w

    np.testing.assert_array_equal(job(), [3.0, 3.0])
    np.testing.assert_array_equal(job(), [2.75, 2.75])


def test_a_setting_is_called_not_assigned() -> None:
    config = flow.function_config()
    with pytest.raises(ConfigError, match=r"next: +config\.enable_inplace\(False\)"):
        config.enable_inplace = False
    with pytest.raises(ConfigError, match=r"next: +config\.train\.primary_lr\(0\.1\)"):
        config.train.primary_lr = 0.1
