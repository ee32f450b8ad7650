"""What the networks share: checks of arguments, and names of norms in published weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import oneflow as flow
from flow_core.base.errors import InferenceError

Rules = Mapping[str, str | flow.weights.Rule | None]
"""Patterns of published names, and what becomes of the arrays; see ``flow.weights.load``."""

BATCH_NORM = {
    "weight": "gamma", "bias": "beta", "running_mean": "moving_mean",
    "running_var": "moving_variance",
}  # fmt: skip
"""Names of the variables of batch norms, by their names in torch."""

LAYER_NORM = {"(?:weight|gamma)": "gamma", "(?:bias|beta)": "beta"}
"""The same for layer norms; older files have the names of TensorFlow."""


@dataclass(frozen=True)
class Published:
    """How the published weights of a network become its variables."""

    rules: Rules  # the rules, without the name of the network
    # A pattern of the names of the layers that compute scores of classes, None if there are none.
    head: str | None = None


def renamed(layers: str, names: Mapping[str, str], prefix: str = "") -> dict[str, str]:
    r"""Return the rules from ``prefix layer.theirs`` to ``layer-own``.

    Args:
        layers: a pattern of the names of layers.
        names: the own names of a layer's variables, by the published ones.
        prefix: a pattern of what published names begin with.

    >>> renamed(r"bn\d", {"weight": "gamma"})
    {'(bn\\d)\\.weight': '\\1-gamma'}
    """
    return {rf"{prefix}({layers})\.{theirs}": rf"\1-{own}" for theirs, own in names.items()}


def check(fits: bool, function: str, found: str, allowed: str) -> None:
    """Raise `InferenceError` at the user's line unless an argument fits."""
    if not fits:
        attempted = f"flow_zoo.{function}"
        raise InferenceError.at_caller(attempted, found=found, allowed=allowed)


def check_config(function: str, config: object, kind: type) -> None:
    """Raise `InferenceError` unless the sizes of a network are of its class."""
    check(isinstance(config, kind), function, f"config={config!r:.60}", f"a {kind.__name__}")


def check_images(function: str, images: flow.Blob) -> None:
    """Raise `InferenceError` unless a blob has the shape of color images."""
    fits = len(images.shape) == 4 and images.shape[1] == 3
    allowed = "(batch, 3, height, width): colors before rows and columns"
    check(fits, function, f"images of shape {tuple(images.shape)}", allowed)


def check_tokens(function: str, tokens: flow.Blob, positions: int) -> None:
    """Raise `InferenceError` unless a blob has the shape of tokens of at most some positions."""
    fits = len(tokens.shape) == 2 and tokens.shape[1] <= positions
    allowed = f"(batch, length), of a length of at most {positions}, which config.positions is"
    check(fits, function, f"tokens of shape {tuple(tokens.shape)}", allowed)
