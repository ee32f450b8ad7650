"""Importers of operators that draw random numbers, anew in each step.

Philox draws the numbers, so that they differ from those of ONNX Runtime for equal seeds; their
distributions are the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from flow_core.authoring.specs import emit
from flow_core.base.shapes import Shape
from flow_onnx.importers.context import Blob, Importer, Node, as_type, reshaped, widened
from flow_onnx.types import NAMES

MOST_DRAWN = 2**28
"""Maximum number of random numbers of a `Multinomial`."""


def _random(kind: str, first: tuple[str, float], last: tuple[str, float], like: bool) -> Importer:
    """Return the importer of a distribution.

    Args:
        first, last: the attributes with the parameters, and their defaults.
        like: whether the shape and the element type are those of an input.
    """

    def run(n: Node) -> Blob:
        numbers = [float(n.attr(*pair)) for pair in (first, last)]
        low, high = numbers
        if not all(map(math.isfinite, numbers)):
            n.invalid(f"{first[0]} {low}, {last[0]} {high}", "finite numbers")
        if kind == "random_uniform" and low >= high:
            n.unsupported(f"low={low:g} and high={high:g}: flow draws numbers below the higher one")
        if kind == "random_normal" and high < 0:
            n.unsupported(f"scale={high:g}: flow's standard deviations are at least 0")
        shape = n.shape() if like else tuple(n.attr("shape"))
        element = n.attr("dtype", n.elements[0] if like else TensorProto.FLOAT)
        return _drawn(n, kind, numbers, shape, NAMES[element])

    return run


def _drawn(n: Node, kind: str, parameters: Sequence[float], shape: Shape, dtype: str) -> Blob:
    return emit("random_values", distribution=(kind, *parameters), shape=shape, dtype=dtype,
                **_seed(n))  # fmt: skip


def _seed(n: Node) -> dict[str, Any]:
    """Return the bits of the seed, a float; without one, the seed derives from the job's."""
    given = n.attr("seed")
    bits = -1 if given is None else int(np.float32(given).view(np.int32))
    return {"seed": bits, "has_seed": given is not None}


def _bernoulli(n: Node) -> Blob:
    element = n.attr("dtype", n.elements[0])
    if element not in NAMES:
        n.unsupported(f"results of type {TensorProto.DataType.Name(element)}")
    n.folds = False  # known probabilities do not make known numbers
    return emit("bernoulli", n.blob(), dtype=NAMES[element], **_seed(n))


def _multinomial(n: Node) -> Blob:
    """Return the classes with the largest sums of a logit and of a random number (Gumbel-max).

    Source: Yellott, The relationship between Luce's Choice Axiom, Thurstone's Theory of Comparative
    Judgment, and the double exponential distribution, 1977.
    """
    n.folds = False
    logits, count = widened(n.blob()), int(n.attr("sample_size", 1))
    rows, classes = logits.shape
    if count < 1 or classes < 1:
        n.invalid(f"{count} samples of {classes} classes", "at least one of each")
    if rows * count * classes > MOST_DRAWN:
        found = f"{rows} rows of {count} samples of {classes} classes"
        n.unsupported(f"{found}, which need more than {MOST_DRAWN:,} random numbers")
    dtype = NAMES[n.attr("dtype", TensorProto.INT32)]
    shape, kind = (rows, count, classes), logits.dtype.name
    noise = _drawn(n, "random_uniform", (0.0, 1.0), shape, kind)
    for _ in range(2):
        noise = emit("negative", emit("log", noise))
    sums = emit("broadcast_add", reshaped(logits, (rows, 1, classes)), noise)
    return as_type(emit("argmax", sums), dtype)


_NORMAL = ("random_normal", ("mean", 0.0), ("scale", 1.0))
_UNIFORM = ("random_uniform", ("low", 0.0), ("high", 1.0))

IMPORTERS: Mapping[str, Importer] = {
    "Bernoulli": _bernoulli,
    "Multinomial": _multinomial,
    "RandomNormal": _random(*_NORMAL, like=False),
    "RandomNormalLike": _random(*_NORMAL, like=True),
    "RandomUniform": _random(*_UNIFORM, like=False),
    "RandomUniformLike": _random(*_UNIFORM, like=True),
}
