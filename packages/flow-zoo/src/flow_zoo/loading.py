"""Published weights of the networks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from os import PathLike

import oneflow as flow
from flow_core.base.errors import ConfigError, nearest
from flow_zoo import bert_encoder, gpt, mobilenet, resnet, vision_transformer
from flow_zoo.common import Published, Rules

MODELS = {
    "bert": bert_encoder.WEIGHTS,
    "gpt2": gpt.WEIGHTS,
    "mobilenet_v2": mobilenet.WEIGHTS,
    "resnet": resnet.WEIGHTS,
    "resnet18": resnet.WEIGHTS,
    "resnet50": resnet.WEIGHTS,
    "vit": vision_transformer.WEIGHTS,
}


def load(
    model: str,
    source: str | PathLike[str] | Mapping[str, object],
    *,
    head: bool = True,
    name: str | None = None,
) -> flow.weights.Report:
    """Load published weights into the variables of a network, all of which must be in the source.

    Args:
        model: the name of the function: "resnet50", "bert" and so on.
        source: a file or folder as torchvision (``.pth``) or Hugging Face (``.safetensors``,
            ``.bin``) publish it, or arrays by name; see ``flow.weights.load``.
        head: whether to load the layer that computes the scores of classes, or in BERT those of
            masked words; without it, its variables keep their values.
        name: the name that was passed to the function, after those of name scopes around the call,
            joined by "-"; by default that of the model.

    Returns:
        What was loaded, and which arrays were not used.

    Raises:
        ConfigError: there is no such model.
        CheckpointError: the source cannot be read, variables of the network are not in it, or
            shapes differ.  Nothing is loaded then.
    """
    own = rules(model, head=head, name=name)
    left = _published(model).head
    skipped = "" if head or left is None else rf"(?!{left}[.-])"
    required = rf"{re.escape(name or model)}-{skipped}.*"
    return flow.weights.load(source, own, required=required)


def rules(model: str, *, head: bool = True, name: str | None = None) -> Rules:
    """Return the rules of ``flow.weights.load`` that rename published arrays to variables.

    Args:
        model, head, name: as for `load`.

    Returns:
        A dict from patterns to names, rules, or None for arrays that are not weights.

    Raises:
        ConfigError: there is no such model.
    """
    found, prefix = _published(model), f"{name or model}-".replace("\\", r"\\")
    skipped = {} if head or found.head is None else {rf"{found.head}\..*": None}
    return {**skipped, **{key: _below(prefix, to) for key, to in found.rules.items()}}


def _published(model: str) -> Published:
    if model not in MODELS:
        raise ConfigError.at_caller(
            "weights of a network",
            found=f"the model {model!r:.60}",
            allowed=", ".join(MODELS),
            hint=nearest(str(model), MODELS),
        )
    return MODELS[model]


def _below(prefix: str, to: str | flow.weights.Rule | None) -> str | flow.weights.Rule | None:
    """Return what becomes of an array, with a prefix of the names of variables."""
    if to is None or isinstance(to, str):
        return to and prefix + to
    names = prefix + to.to if isinstance(to.to, str) else [prefix + part for part in to.to]
    return flow.weights.Rule(names, to.transpose, to.split)
