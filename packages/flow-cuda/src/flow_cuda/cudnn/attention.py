"""Attention as cuDNN has it: softmax(q k^T scale + mask) v without the matrix of scores in memory.

Tensors have batch, heads, places and numbers, in this order; the mask may have size 1 along any
axis but the last.  What the backward pass needs of the scores is the logarithm of the sum of
their exponentials, a float32 per place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from flow_core.authoring.specs import TensorType
from flow_cuda.cudnn.problems import Laid


def rows(type_: TensorType, rank: int = 0) -> Laid:
    """A tensor with one or two axes before places and numbers, of a rank that is at least its own.

    >>> from flow_core.base.dtypes import float16
    >>> from flow_core.authoring.specs import tensor_type
    >>> rows(tensor_type((6, 5, 8), float16)).sizes
    (6, 1, 5, 8)
    """
    shape = (*(1,) * (rank - len(type_.shape)), *type_.shape)
    sizes = (shape[0], 1, *shape[1:]) if len(shape) == 3 else shape
    steps = tuple(prod(sizes[i + 1 :]) for i in range(4))
    return Laid(sizes, steps, type_.dtype.name)


def statistic(q: Laid) -> Laid:
    """A float32 per place of q."""
    sizes = (*q.sizes[:3], 1)
    return Laid(sizes, tuple(prod(sizes[i + 1 :]) for i in range(4)), "float32")


@dataclass(frozen=True, slots=True)
class _Operands:
    """What both passes have.

    Attributes:
        q, k, v, o: tensors; o is the result.
        scale: factor of the scores.
        mask: what is added to them.
    """

    q: Laid
    k: Laid
    v: Laid
    o: Laid
    scale: float
    mask: Laid | None = None

    @property
    def compute(self) -> str:
        """In what it sums."""
        return "float32"

    @property
    def scalars(self) -> Mapping[str, float]:
        """None: the factor is part of the node."""
        return {}

    def _read(self, *more: str) -> Mapping[str, Laid]:
        """The operands, further tensors by name, and the mask."""
        known = {"o": self.o, "do": self.o, "stats": statistic(self.q)}
        given = {"q": self.q, "k": self.k, "v": self.v} | {name: known[name] for name in more}
        return given if self.mask is None else given | {"mask": self.mask}

    def _given(self, inputs: Mapping[str, Any], *more: str) -> dict[str, Any]:
        """What the library's node is given, by its names."""
        given = {name: inputs[name] for name in ("q", "k", "v", *more)}
        mask = {} if self.mask is None else {"bias": inputs["mask"]}
        return given | mask | {"attn_scale": self.scale}


@dataclass(frozen=True, slots=True)
class Attention(_Operands):
    """The forward pass.

    Attributes:
        saves: whether it gives what the backward pass needs.
    """

    saves: bool = False

    @property
    def title(self) -> str:
        """For reports."""
        return "attention"

    @property
    def reads(self) -> Mapping[str, Laid]:
        """The operands, and the mask."""
        return self._read()

    @property
    def writes(self) -> Mapping[str, Laid]:
        """The result, and what is saved."""
        return {"o": self.o, "stats": statistic(self.q)} if self.saves else {"o": self.o}

    def build(self, graph: Any, types: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """One node."""
        o, stats = graph.sdpa(**self._given(inputs), generate_stats=self.saves)
        return {"o": o, "stats": stats}


@dataclass(frozen=True, slots=True)
class AttentionGrad(_Operands):
    """The gradients by q, k and v.

    Attributes:
        deterministic: whether two runs must give the same bits.
    """

    deterministic: bool = False

    @property
    def title(self) -> str:
        """For reports."""
        return "attention grad"

    @property
    def reads(self) -> Mapping[str, Laid]:
        """What the forward pass has read and made, and the gradient of its result."""
        return self._read("o", "do", "stats")

    @property
    def writes(self) -> Mapping[str, Laid]:
        """The gradients."""
        return {"dq": self.q, "dk": self.k, "dv": self.v}

    def build(self, graph: Any, types: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """One node."""
        made = graph.sdpa_backward(
            **self._given(inputs, "o", "stats"), dO=inputs["do"],
            use_deterministic_algorithm=self.deterministic,
        )  # fmt: skip
        return dict(zip(self.writes, made, strict=True))
