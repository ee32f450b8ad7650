"""Training as older programs ask for it: ``function_config.train.*`` and ``losses.add_loss``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flow_core.errors import JobError, SourceLine
from flow_core.frontend.function_config import FunctionConfig
from flow_core.frontend.train import Schedule, State, TrainOptions, UpdateRule


def _naive(_: Mapping[str, Any]) -> UpdateRule:
    return UpdateRule("sgd_update")


def _momentum(conf: Mapping[str, Any]) -> UpdateRule:
    return UpdateRule(
        "momentum_update", {"beta": float(conf.get("beta", 0.9))}, (State("momentum"),)
    )


def _adam(conf: Mapping[str, Any]) -> UpdateRule:
    beta1, beta2 = float(conf.get("beta1", 0.9)), float(conf.get("beta2", 0.999))
    attrs = {"beta1": beta1, "beta2": beta2, "epsilon": float(conf.get("epsilon", 1e-8))}
    correct = (beta1, beta2) if conf.get("do_bias_correction") else None
    return UpdateRule("adam_update", attrs, (State("m"), State("v")), bias_correction=correct)


RULES: Mapping[str, Callable[[Mapping[str, Any]], UpdateRule]] = {
    "naive_conf": _naive,
    "momentum_conf": _momentum,
    "adam_conf": _adam,
}
"""Update rules by the key of ``train.model_update_conf``."""


def configured_training(config: FunctionConfig, line: SourceLine | None) -> TrainOptions:
    """The optimizer that a function config describes.

    Raises:
        JobError: it describes none, or one that is not known.
    """
    conf = config.get("train.model_update_conf") or {}
    rate = config.get("train.primary_lr")
    known = [key for key in conf if key in RULES]
    if len(known) != 1 or len(conf) != 1 or rate is None:
        raise JobError(
            "losses.add_loss without an optimizer",
            at=line,
            found=f"train.model_update_conf {conf!r} and train.primary_lr {rate!r}",
            allowed=f"one of {', '.join(RULES)}, and a learning rate",
            hint="use flow.optimizer.SGD(...).minimize(loss) instead",
        )
    return TrainOptions(
        RULES[known[0]](conf[known[0]]),
        Schedule(rate=float(rate)),
        loss_scale=config.get("train.loss_scale_factor"),
    )
