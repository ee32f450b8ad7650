"""Settings of one job: a table of all names in the function config of OneFlow 0.3.4."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from flow_core.base.config import CHECK_FEEDS, HOST_FALLBACK
from flow_core.base.dtypes import DType, as_dtype, float32
from flow_core.base.errors import ConfigError, InferenceError, nearest
from flow_core.compiler.select import SELECTORS
from flow_core.frontend.config.pass_options import options_of_pass
from flow_core.frontend.config.scope import Entering, Scope
from flow_core.ir.graph import AttrValue
from flow_core.ir.initializers import Initializer
from flow_core.passes.optimizer_placement import MODES, THRESHOLD, OptimizerPlacement
from flow_core.sharding.topology import Placement


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting."""

    name: str  # dotted path below the function config
    default: Any = True  # the value that a call of the setting without an argument sets
    effect: str = ""  # empty if the setting is accepted for compatibility only
    check: Callable[[str, Any], Any] | None = None  # converts a value, or raises


def _wrong(name: str, value: object, allowed: str) -> ConfigError:
    return ConfigError.at_caller(f"function_config.{name}", found=repr(value), allowed=allowed)


def _dtype(name: str, value: object) -> DType:
    return as_dtype(value)


HALVES = ("float16", "bfloat16")


def _half(name: str, value: object) -> str:
    """Return the name of a half type, given as a name or as a type such as ``flow.float16``."""
    try:
        found = as_dtype(value).name
    except InferenceError:
        found = ""
    if found not in HALVES:
        raise _wrong(name, value, " or ".join(f"flow.{half}" for half in HALVES))
    return found


OBSERVE = "observe"


def _ranges(name: str, value: Any) -> Any:
    """Return ranges as sorted triples of name, lowest and highest number."""
    if value == OBSERVE:
        return value
    try:
        found = tuple(sorted((str(k), float(low), float(high)) for k, (low, high) in value.items()))
    except (AttributeError, TypeError, ValueError):
        found = ()
    if not found or not all(low <= high for _, low, high in found):
        allowed = f"a lowest and a highest number for each name of a value, or {OBSERVE!r}"
        raise _wrong(name, value, allowed)
    return found


def _numeric(
    kind: type, allowed: str, made: type, holds: Callable[[Any], bool] = lambda _: True
) -> Callable[[str, object], Any]:
    """Return the check of a number, which is passed on as a number of type ``made``."""

    def check(name: str, value: object) -> Any:
        if not isinstance(value, kind) or isinstance(value, bool) or not holds(value):
            raise _wrong(name, value, allowed)
        return made(value)

    return check


_whole = _numeric(Integral, "an integer", int)
_positive = _numeric(Integral, "an integer of at least 1", int, lambda n: n >= 1)
_number = _numeric(Real, "a number", float)
_fraction = _numeric(Real, "a number from 0 to 1", float, lambda x: 0 <= x <= 1)
_size = _numeric(Real, "a number of at least 0", float, lambda x: x >= 0)
_seconds = _numeric(Real, "more than 0 seconds", float, lambda x: x > 0)
_whole_steps = _numeric(Real, "a number of steps", int, lambda x: x >= 0)


def _one_of(values: Collection[str]) -> Callable[[str, object], str]:
    def check(name: str, value: object) -> str:
        if value not in values:
            raise _wrong(name, value, " or ".join(map(repr, values)))
        return str(value)

    return check


MATH_MODES = ("float32", "bfloat16")


def _mapping(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(name, value, "a dict")
    return value


def _tables(name: str, value: Any) -> tuple[str, ...]:
    """Return the names of variables in OneFlow's dict; empty if ``enable`` is false in the dict."""
    try:
        names = value["include_op_names"]["op_name"]
        enabled = value.get("enable", True)
    except (TypeError, KeyError):
        names = enabled = None
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
        raise _wrong(name, value, '{"include_op_names": {"op_name": ["table", ...]}}')
    return tuple(names) if enabled else ()


def _names(name: str, value: object) -> tuple[str, ...]:
    """Return names of ops, given as a list or one by itself."""
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
        raise _wrong(name, value, 'names of ops, such as ["scores-matmul"]')
    return tuple(names)


def _initializer(name: str, value: object) -> tuple[AttrValue, ...]:
    """Return the literal of an initializer, given as an initializer or as OneFlow's dict for it."""
    try:
        return initializer_attr(value)
    except InferenceError as error:
        raise _wrong(name, value, str(error.allowed)) from None


def _switch(name: str, value: object) -> bool:
    """Return a switch as a bool; 0 and 1 are accepted too, which argument parsers return."""
    if not isinstance(value, Integral | np.bool_) or value not in (0, 1):
        raise _wrong(name, value, "True or False")
    return bool(value)


def _placement(name: str, value: object) -> Any:
    if isinstance(value, Placement) or _scope_of(value).placement is not None:
        return value
    raise _wrong(name, value, 'flow.scope.placement("cpu", "0:0")')


def _view(name: str, value: object) -> Any:
    if not isinstance(value, Entering):
        raise _wrong(name, value, "flow.scope.consistent_view() or flow.scope.mirrored_view()")
    return value


def _scope_of(value: object) -> Scope:
    """Return the scope that ``with value:`` puts in force; an empty scope for other values."""
    if not isinstance(value, Entering):
        return Scope()
    with value as scope:
        return scope


INDEXED_SLICES = "indexed_slices_optimizer_conf"
MIXED = "enable_auto_mixed_precision"
HALF = "mixed_precision_data_type"
FLOAT32_OPS = "mixed_precision_float32_ops"
QAT = ("enable_quantization_aware_training", "enable_qat")
STOP_MOVING = "qat.moving_min_max_stop_update_after_iters"
RANGES = "quantization_ranges"
MICRO_BATCHES = "train.num_gradient_accumulation_steps"
MEMORY_SEARCH = "memory_search"

PSEUDO_HALF = "cudnn_conv_enable_pseudo_half"
TRUE_HALF = ("cudnn_conv_enable_true_half", "enable_true_half_config_when_conv")
ALGORITHMS = {"fwd": (0, 1, 2, 4, 5, 6, 7), "bwd_data": range(6), "bwd_filter": (0, 1, 2, 3, 5, 6)}
"""The valid numbers of cuDNN's convolution algorithms."""


def _algorithm(name: str, value: Any) -> int:
    known = ALGORITHMS[name.removeprefix("cudnn_conv_force_").removesuffix("_algo")]
    if _whole(name, value) not in known:
        raise _wrong(name, value, f"a number of cuDNN's algorithms: {', '.join(map(str, known))}")
    return int(value)


FUSED_ADD_RELU = "enable_cudnn_fused_normalization_add_relu"
CUDNN: tuple[Setting, ...] = (
    Setting("enable_cudnn", True, "whether cuDNN computes convolutions on GPUs", _switch),
    Setting("cudnn_buf_limit_mbyte", 1024, "megabytes of workspace of a convolution", _positive),
    *(
        Setting(f"cudnn_conv_force_{kind}_algo", None, "the only family of plans", _algorithm)
        for kind in ALGORITHMS
    ),
    Setting(
        "cudnn_conv_heuristic_search_algo",
        True,
        "whether to estimate the fastest algorithm or to measure",
        _switch,
    ),
    Setting(
        "cudnn_conv_use_deterministic_algo_only",
        False,
        "whether results must be reproducible to the bit",
        _switch,
    ),
    Setting(
        FUSED_ADD_RELU, True, "whether normalizations are fused with an addition and relu", _switch
    ),
    Setting(PSEUDO_HALF, True, "whether float16 is summed in float32", _switch),
    Setting("enable_cudnn_conv_pseudo_half", True, "older name of the former", _switch),
    *(Setting(name, True, f"the opposite of {PSEUDO_HALF}", _switch) for name in TRUE_HALF),
)

MATH_MODE = Setting(
    "math_mode", MATH_MODES[0], "the type to which products may round float32", _one_of(MATH_MODES)
)

EFFECTIVE: tuple[Setting, ...] = (
    Setting("default_data_type", float32, "type of variables made with dtype=None", _dtype),
    Setting("default_initializer_conf", None, "initializer of variables without one", _initializer),
    Setting("default_placement_scope", None, "where ops outside any scope run", _placement),
    Setting("default_logical_view", None, "consistent or mirrored view of the job", _view),
    Setting("default_distribute_strategy", None, "older name of default_logical_view", _view),
    Setting("concurrency_width", 4, "steps of an asynchronous job in flight", _positive),
    Setting(
        "enable_inplace",
        True,
        "whether results may overwrite inputs without later readers",
        _switch,
    ),
    Setting("enable_reused_mem", True, "whether buffers of a step may share memory", _switch),
    Setting("train.primary_lr", None, "learning rate of train.model_update_conf", _number),
    Setting("train.model_update_conf", None, "optimizer of older programs", _mapping),
    Setting("train.loss_scale_factor", None, "factor on the losses of older programs", _number),
    Setting(
        "sbp_selector",
        "auto",
        "the algorithm of SBP selection on several devices",
        _one_of(SELECTORS),
    ),
    Setting(
        "sbp_selector_seconds",
        10.0,
        "search budget of the optimal selector, and of forms that fit",
        _seconds,
    ),
    Setting(
        MEMORY_SEARCH,
        "on",
        "which forms to search for a job that does not fit into its devices",
        _one_of(("off", "on", "micro_batches")),
    ),
    Setting("pipeline_stages", None, "stages into which the ops of a job are divided", _positive),
    Setting("share_replicas", True, "whether devices with shared memory share replicas", _switch),
    MATH_MODE,
    Setting("check_feeds", None, "how often processes compare their feeds", _one_of(CHECK_FEEDS)),
    Setting(
        "host_fallback", None, "whether ops without a kernel run on the CPU", _one_of(HOST_FALLBACK)
    ),
    Setting("random_seed", 0, "seed of the job's random ops", _whole),
    Setting(
        "enable_all_reduce_group", True, "whether all-reduces of gradients are bucketed", _switch
    ),
    Setting("all_reduce_group_min_mbyte", 16, "megabytes of a bucket of gradients", _size),
    Setting(
        MICRO_BATCHES, None, "micro-batches of a step, whose gradients are accumulated", _positive
    ),
    *(
        Setting(f"{group}optimizer_placement_optimization_{name}", default, effect, check)
        for group in ("", "train.")
        for name, default, effect, check in (
            ("mode", None, "how weights and optimizer states are sharded", _one_of(MODES)),
            ("threshold", THRESHOLD, "smallest number of elements per device to shard", _whole),
            ("ahead", None, "sharded weights gathered ahead of use, and freed after it", _positive),
        )
    ),
    Setting(INDEXED_SLICES, None, "tables whose updates change looked-up rows only", _tables),
    Setting(MIXED, False, "whether products are computed in a half type", _switch),
    Setting(HALF, None, "the half type; by default the best one of the devices", _half),
    Setting(FLOAT32_OPS, None, "names of ops that mixed precision keeps in float32", _names),
    *(Setting(name, True, "whether training sees the rounding of int8", _switch) for name in QAT),
    Setting(
        "qat.per_channel_weight_quantization",
        True,
        "a quantization grid per row of a weight",
        _switch,
    ),
    Setting("qat.symmetric", True, "whether zero is represented as zero", _switch),
    Setting("qat.moving_min_max_momentum", 0.95, "momentum of the moving ranges", _fraction),
    Setting(STOP_MOVING, None, "the last step that updates the moving ranges", _whole_steps),
    Setting(RANGES, None, "ranges of activations, for int8", _ranges),
    Setting("enable_ssp", True, "whether the scope's stages make variables stale", _switch),
    Setting("enable_non_distributed_optimizer", True, "older name of a mode", _switch),
    *CUDNN,
)

_ACCEPTED = """
exp_run_conf use_memory_allocation_algorithm_v2 static_mem_alloc_policy_white_list.has
static_mem_alloc_policy_white_list.add static_mem_alloc_policy_white_list.remove
static_mem_alloc_policy_white_list.policy_mem_size_first
static_mem_alloc_policy_white_list.policy_mutual_exclusion_first
static_mem_alloc_policy_white_list.policy_time_line static_mem_alloc_algo_white_list.show
enable_fuse_add_to_output enable_fuse_cast_scale enable_inplace_in_reduce_struct enable_nccl
use_nccl_inter_node_communication use_boxing_v2 do_parallel_cast_before_widening_type_cast
all_reduce_group_num all_reduce_lazy_ratio
all_reduce_group_size_warmup all_reduce_fp16 allow_cpu_return_op
disable_all_reduce_sequence prune_parallel_cast_ops
prune_cast_to_static_shape_ops
non_distributed_optimizer_group_size_mbyte
enable_float_compute_for_half_gemm enable_keep_header_only
enable_fuse_model_update_ops enable_gradients_stats_aggregation
train.secondary_lr use_xla_jit use_tensorrt
tensorrt.use_fp16 tensorrt.use_int8 tensorrt.int8_calibration ssp_partition_strategy
ssp_partition_scope_ids
"""

SETTINGS: dict[str, Setting] = {
    s.name: s for s in (*EFFECTIVE, *(Setting(name) for name in _ACCEPTED.split()))
}
"""Every known setting by its dotted path."""

_GROUPS = {name.split(".")[0] for name in SETTINGS if "." in name}


def _setting_of_pass(name: str) -> Setting | None:
    """Return the setting ``PASS.OPTION`` of a pass of a plugin; None if there is no such option."""
    group, _, option = name.rpartition(".")
    options = (options_of_pass(group) if group else None) or {}
    return Setting(name, None, check=_like(options[option])) if option in options else None


def _like(default: Any) -> Callable[[str, Any], Any]:
    """Return a check that a value has the type of an option's default."""

    def check(name: str, value: Any) -> Any:
        if type(default) is float:
            return _number(name, value)
        if default is not None and type(value) is not type(default):
            raise _wrong(name, value, f"a value like {default!r}, of type {type(default).__name__}")
        return value

    return check


class FunctionConfig:
    """Settings of a job; call an attribute to set it, as in OneFlow.

    >>> config = FunctionConfig()
    >>> config.concurrency_width(2)
    >>> config.get("concurrency_width"), config.get("enable_inplace")
    (2, True)
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # a name of one of Python's protocols, such as copying
            raise AttributeError(name)
        return _Path(self._values, name)

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_"):
            raise _assigned(name, value)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({name.split(".")[0] for name in SETTINGS} | {"get"})

    def get(self, name: str) -> Any:  # each setting has a type of its own
        """Return the value of a setting, or its default if the program has not set it."""
        if name in self._values:
            return self._values[name]
        return SETTINGS[name].default

    def is_set(self, name: str) -> bool:
        """Return whether the program has set a setting."""
        return name in self._values

    @property
    def function_desc(self) -> _Values:
        """The settings as read-only attributes: ``config.function_desc.enable_inplace``."""
        return _Values(self)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the values that the program has set, by name of the setting."""
        return dict(self._values)

    def copy(self) -> FunctionConfig:
        """Return an independent copy, as is taken when a job is defined."""
        other = FunctionConfig()
        other._values.update(self._values)
        return other


def _assigned(name: str, value: object) -> ConfigError:
    return ConfigError.at_caller(
        f"function_config.{name}",
        found=f"an assignment of {value!r:.60}",
        allowed="a call",
        hint=f"config.{name}({value!r:.60})",
    )


class _Values:
    """The values of a config's settings, as attributes."""

    __slots__ = ("_config",)

    def __init__(self, config: FunctionConfig) -> None:
        self._config = config

    def __getattr__(self, name: str) -> Any:
        _Path({}, name)
        return self._config.get(name)


_NOT_GIVEN: Any = object()


class _Path:
    """A name below a function config: a setter, or a group of setters."""

    __slots__ = ("_name", "_values")
    _name: str
    _values: dict[str, Any]

    def __init__(self, values: dict[str, Any], name: str) -> None:
        if (
            name not in SETTINGS
            and name not in _GROUPS
            and options_of_pass(name) is None
            and _setting_of_pass(name) is None
        ):
            raise ConfigError.at_caller(
                f"function_config.{name}",
                found="an unknown name",
                allowed="the names that `flow doctor --config` lists, or PASS.OPTION for an option "
                "of a pass",
                hint=nearest(name, SETTINGS) or None,
            )
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_name", name)

    def __getattr__(self, name: str) -> _Path:
        return _Path(self._values, f"{self._name}.{name}")

    def __setattr__(self, name: str, value: object) -> None:
        raise _assigned(f"{self._name}.{name}", value)

    def __call__(self, value: object = _NOT_GIVEN) -> None:
        setting = SETTINGS.get(self._name) or _setting_of_pass(self._name)
        if setting is None:
            options = options_of_pass(self._name) or ()
            below = sorted(n for n in SETTINGS if n.startswith(f"{self._name}."))
            below += [f"{self._name}.{option}" for option in options]
            raise _wrong(self._name, "a call", ", ".join(below))
        if value is _NOT_GIVEN:
            value = setting.default
            if value is None:
                raise _wrong(self._name, "no value", "a value")
        if setting.check is not None:
            value = setting.check(self._name, value)
        self._values[self._name] = value


def default_placement(config: FunctionConfig) -> Placement | None:
    """Return the placement that a job's config requests, None if it requests none."""
    asked = config.get("default_placement_scope")
    return asked if isinstance(asked, Placement) else _scope_of(asked).placement


def optimizer_placement(config: FunctionConfig) -> OptimizerPlacement | None:
    """Return the optimizer-state sharding that a config requests, None if it requests none."""
    names = ("train.optimizer_placement_optimization_{}", "optimizer_placement_optimization_{}")
    mode = first_set(config, [name.format("mode") for name in names])
    if config.is_set("enable_non_distributed_optimizer") and mode is None:
        mode = MODES[0] if config.get("enable_non_distributed_optimizer") else None
    threshold = first_set(config, [name.format("threshold") for name in names])
    ahead = first_set(config, [name.format("ahead") for name in names])
    return None if mode is None else OptimizerPlacement(mode, threshold or THRESHOLD, ahead)


def first_set(config: FunctionConfig, names: list[str]) -> Any:
    """Return the value of the first setting that the program has set; None if it has set none."""
    return next((config.get(name) for name in names if config.is_set(name)), None)


def pass_settings(config: FunctionConfig) -> dict[str, AttrValue]:
    """Return the settings of a job that options of passes may name, by their main names."""
    found = {setting.name: config.get(setting.name) for setting in (*CUDNN, MATH_MODE)}
    names = ("enable_cudnn_conv_pseudo_half", *TRUE_HALF)
    others = {name: found.pop(name) for name in names}
    for name in filter(config.is_set, names):
        found[PSEUDO_HALF] = others[name] != (name in TRUE_HALF)
    return found | {name: v for name, v in config.settings.items() if name not in SETTINGS}


def indexed_tables(config: FunctionConfig) -> tuple[str, ...]:
    """Return the names of the variables of which updates change only the looked-up rows."""
    return config.get(INDEXED_SLICES) or ()


def micro_batches(config: FunctionConfig, kind: str = "train") -> int:
    """Return the number of micro-batches in a step; 1 for predict jobs."""
    return int(config.get(MICRO_BATCHES) or 1) if kind == "train" else 1


def default_view(config: FunctionConfig) -> Scope:
    """Return the outermost scope of a job, with the view that the job's config requests."""
    names = ("default_logical_view", "default_distribute_strategy")
    asked = next((config.get(name) for name in names if config.is_set(name)), None)
    return Scope(mirrored=_scope_of(asked).mirrored)


_NORMS = ("fan_in", "fan_out", "fan_avg")
_DISTRIBUTIONS = ("random_uniform", "random_normal", "truncated_normal")


def _scaled(conf: Mapping[str, Any], scale: float, distribution: str) -> tuple[AttrValue, ...]:
    layout, norm = conf["data_format"], _NORMS[conf["variance_norm"]]
    return ("variance_scaling", float(scale), norm, distribution, layout)


_OLD_INITIALIZERS: dict[str, Callable[[Mapping[str, Any]], tuple[Any, ...]]] = {
    "constant_conf": lambda c: ("constant", c.get("value", 0.0)),
    "constant_int_conf": lambda c: ("constant", c.get("value", 0)),
    "random_uniform_conf": lambda c: ("random_uniform", c.get("min", 0.0), c.get("max", 1.0)),
    "random_uniform_int_conf": lambda c: ("random_uniform_int", c.get("min", 0), c.get("max", 1)),
    "random_normal_conf": lambda c: ("random_normal", c.get("mean", 0.0), c.get("std", 1.0)),
    "truncated_normal_conf": lambda c: ("truncated_normal", c.get("mean", 0.0), c.get("std", 0.05)),
    "xavier_conf": lambda c: _scaled(c, 1.0, "random_uniform"),
    "msra_conf": lambda c: _scaled(c, 2.0, "random_normal"),
    "variance_scaling_conf": lambda c: _scaled(c, c["scale"], _DISTRIBUTIONS[c["distribution"]]),
}
"""OneFlow's protobuf messages for initializers, with the defaults of their fields."""


def initializer_attr(value: Any) -> tuple[AttrValue, ...]:
    """Return the literal of an initializer, given as an initializer or as OneFlow's dict for it.

    >>> initializer_attr({"random_normal_conf": {"std": 0.1}})
    ('random_normal', 0.0, 0.1)

    Raises `InferenceError` if the value is neither an initializer nor such a dict.
    """
    if isinstance(value, Initializer):
        return value.to_attr()
    names = list(value) if isinstance(value, dict) else []
    if len(names) == 1 and names[0] in _OLD_INITIALIZERS:
        try:
            return _OLD_INITIALIZERS[names[0]](value[names[0]])
        except (KeyError, IndexError, TypeError, AttributeError):
            pass  # a field is missing or wrong
    raise InferenceError.at_caller(
        "use of an initializer",
        found=f"{value!r:.80}",
        allowed="what flow.*_initializer returns, or a dict with one of "
        + ", ".join(_OLD_INITIALIZERS),
    )
