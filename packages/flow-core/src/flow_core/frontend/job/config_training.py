"""Training options of older programs: ``function_config.train.*`` and ``losses.add_loss``.

Such programs write OneFlow's configuration messages as dicts, such as
``{"momentum_conf": {"beta": 0.9}, "warmup_conf": {"linear_conf": {...}}}``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from flow_core.base.errors import JobError, SourceLine, nearest
from flow_core.frontend.config.function_config import FunctionConfig
from flow_core.frontend.job.train import Schedule, TrainOptions, UpdateRule, WeightDecay
from flow_core.ir.graph import AttrValue
from flow_core.ir.update_rules import BY_TYPE

REQUIRED: Any = object()
"""Marks a field that has no default."""

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Message:
    """A kind of configuration message: the defaults of its fields, and its conversion."""

    fields: Fields
    make: Callable[[Fields], Any]


def _literal(kind: str, **fields: object) -> _Message:
    """Return a kind of message that is converted to ``(kind, *fields)``."""
    return _Message(fields, lambda c: (kind, *(_frozen(c[name]) for name in fields)))


def _frozen(value: object) -> AttrValue:
    return tuple(value) if isinstance(value, list | tuple) else value


def _rule(op: str, conf: Fields, **more: Any) -> UpdateRule:
    """Return an update rule, with attributes from a message and further attributes."""
    return UpdateRule(op, {name: conf[name] for name in BY_TYPE[op].attrs}, **more)


def _adam(conf: Fields) -> UpdateRule:
    correct = (conf["beta1"], conf["beta2"]) if conf.get("do_bias_correction", True) else None
    return _rule("adam_update", _moments(conf), bias_correction=correct)


def _rmsprop(conf: Fields) -> UpdateRule:
    return _rule("centered_rmsprop_update" if conf["centered"] else "rmsprop_update", conf)


_ADAM = BY_TYPE["adam_update"].attrs
_BATCHES = {"decay_batches": REQUIRED, "decay_rate": REQUIRED, "staircase": False}


def _moments(conf: Fields) -> dict[str, float]:
    return {name: float(conf[name]) for name in _ADAM}


RULES: Mapping[str, _Message] = {
    "naive_conf": _Message({}, partial(_rule, "sgd_update")),
    "momentum_conf": _Message(BY_TYPE["momentum_update"].attrs, partial(_rule, "momentum_update")),
    "rmsprop_conf": _Message({**BY_TYPE["rmsprop_update"].attrs, "centered": False}, _rmsprop),
    "lars_conf": _Message(BY_TYPE["lars_update"].attrs, partial(_rule, "lars_update")),
    "adam_conf": _Message({**_ADAM, "do_bias_correction": False}, _adam),
    "lazy_adam_conf": _Message(_ADAM, _adam),
    "lamb_conf": _Message(
        dict.fromkeys(_ADAM, REQUIRED), lambda conf: _rule("lamb_update", _moments(conf))
    ),
}
"""Update rules by the key of ``train.model_update_conf``."""

DECAYS: Mapping[str, _Message] = {
    "exponential_conf": _literal("exponential", **_BATCHES),
    "inverse_time_conf": _literal("inverse_time", **_BATCHES),
    "natural_exp_conf": _literal("natural_exp", **_BATCHES),
    "piecewise_constant_conf": _literal("piecewise_constant", boundaries=(), values=()),
    "piecewise_scaling_conf": _literal("piecewise_scaling", boundaries=(), scales=()),
    "polynomial_conf": _literal(
        "polynomial", decay_batches=REQUIRED, end_learning_rate=0.0001, power=1.0, cycle=False
    ),
    "cosine_conf": _literal("cosine", decay_batches=REQUIRED, alpha=0.0),
    "linear_cosine_conf": _literal(
        "linear_cosine", decay_batches=REQUIRED, num_periods=0.5, alpha=0.0, beta=0.001
    ),
}
"""Decays of the learning rate by the key of ``learning_rate_decay``."""

WARMUPS: Mapping[str, _Message] = {
    "constant_conf": _literal("constant", warmup_batches=REQUIRED, multiplier=REQUIRED),
    "linear_conf": _literal("linear", warmup_batches=REQUIRED, start_multiplier=REQUIRED),
}
"""Warm-ups of the learning rate by the key of ``warmup_conf``."""

CLIPS: Mapping[str, _Message] = {
    "clip_by_global_norm": _Message({"clip_norm": REQUIRED}, lambda c: float(c["clip_norm"])),
}
"""Limits on gradients by the key of ``clip_conf``."""


def _weight_decay(conf: Fields) -> WeightDecay:
    filters = [
        None if conf[name] is None else tuple(conf[name]["pattern"])
        for name in ("includes", "excludes")
    ]
    return WeightDecay(float(conf["weight_decay_rate"]), *filters)


WEIGHT_DECAY = _Message(
    {"weight_decay_rate": REQUIRED, "includes": None, "excludes": None}, _weight_decay
)

PARTS = ("learning_rate_decay", "warmup_conf", "clip_conf", "weight_decay_conf")
"""Keys of ``train.model_update_conf`` other than the update rule."""


@dataclass(frozen=True, slots=True)
class _Reader:
    """A reader of messages, whose errors name the path of the field and the source line."""

    line: SourceLine | None

    def one_of(self, path: str, table: Mapping[str, _Message], conf: Any) -> Any:
        """Convert the only message in a dict; return None without a dict."""
        if conf is None:
            return None
        names = list(conf) if isinstance(conf, Mapping) else []
        if len(names) != 1 or names[0] not in table:
            self.fail(path, f"{conf!r:.80}", f"one of {', '.join(table)}")
        return self.read(f"{path}.{names[0]}", table[names[0]], conf[names[0]])

    def read(self, path: str, message: _Message, conf: Any) -> Any:
        if not isinstance(conf, Mapping):
            self.fail(path, f"{conf!r:.80}", "a dict")
        unknown = [name for name in conf if name not in message.fields]
        missing = [
            n for n, default in message.fields.items() if default is REQUIRED and n not in conf
        ]
        if unknown or missing:
            found = f"the field {unknown[0]!r}" if unknown else f"no field {missing[0]!r}"
            hint = nearest(str(unknown[0]), message.fields) if unknown else ""
            self.fail(path, found, ", ".join(message.fields) or "no fields", hint or None)
        return message.make({**message.fields, **conf})

    def fail(self, path: str, found: str, allowed: str, hint: str | None = None) -> None:
        raise JobError(path, at=self.line, found=found, allowed=allowed, hint=hint)


def configured_training(config: FunctionConfig, line: SourceLine | None) -> TrainOptions:
    """Return the options of the optimizer in a function config.

    Raises `JobError` if the config has no optimizer, or an unknown one.
    """
    conf = config.get("train.model_update_conf") or {}
    rate, reader = config.get("train.primary_lr"), _Reader(line)
    path = "function_config.train.model_update_conf"
    rules = {name: value for name, value in conf.items() if name not in PARTS}
    if not rules or rate is None:
        missing = "train.primary_lr" if rules else "train.model_update_conf"
        reader.fail(
            "losses.add_loss",
            f"no function_config.{missing}",
            "an optimizer and a learning rate",
            "use flow.optimizer.SGD(...).minimize(loss) instead",
        )
    decay = conf.get("weight_decay_conf")
    return TrainOptions(
        reader.one_of(path, RULES, rules),
        Schedule(
            float(rate),
            reader.one_of(f"{path}.learning_rate_decay", DECAYS, conf.get("learning_rate_decay")),
            reader.one_of(f"{path}.warmup_conf", WARMUPS, conf.get("warmup_conf")),
        ),
        WeightDecay()
        if decay is None
        else reader.read(f"{path}.weight_decay_conf", WEIGHT_DECAY, decay),
        loss_scale=config.get("train.loss_scale_factor"),
        clip_norm=reader.one_of(f"{path}.clip_conf", CLIPS, conf.get("clip_conf")),
    )
