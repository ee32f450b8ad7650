"""Attention with cuDNN: softmax(q k^T scale + mask) v without storing the scores.

The axes of all tensors are (batch, heads, sequence, features); the mask may have size 1 along any
axis except the last.  The forward pass saves the log-sum-exp of each row of scores for the backward
pass, as float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from flow_core.authoring.specs import TensorType
from flow_cuda.cudnn.problems import LibraryEnum, LibraryGraph, LibraryTensor, TensorLayout, Tensors


def rows(type_: TensorType, rank: int = 0) -> TensorLayout:
    """Describe a tensor of rank 3 or 4, left-padded to ``rank``, as (batch, heads, rows, columns).

    >>> from flow_core.base.dtypes import float16
    >>> from flow_core.authoring.specs import tensor_type
    >>> rows(tensor_type((6, 5, 8), float16)).sizes
    (6, 1, 5, 8)
    """
    shape = (*(1,) * (rank - len(type_.shape)), *type_.shape)
    sizes = (shape[0], 1, *shape[1:]) if len(shape) == 3 else shape
    steps = tuple(prod(sizes[i + 1 :]) for i in range(4))
    return TensorLayout(sizes, steps, type_.dtype.name)


def statistic(q: TensorLayout) -> TensorLayout:
    """Return the layout of the log-sum-exp tensor: one float32 per row of ``q``."""
    sizes = (*q.sizes[:3], 1)
    return TensorLayout(sizes, tuple(prod(sizes[i + 1 :]) for i in range(4)), "float32")


@dataclass(frozen=True, slots=True)
class _Operands:
    """Operands and attributes common to the forward and the backward pass."""

    q: TensorLayout
    k: TensorLayout
    v: TensorLayout
    o: TensorLayout
    scale: float  # the factor by which the scores are multiplied
    mask: TensorLayout | None = None  # the additive mask; None if there is no mask

    @property
    def compute(self) -> str:
        return "float32"

    @property
    def scalars(self) -> Mapping[str, float]:
        """No scalars: the scale is an attribute of the node."""
        return {}

    def _read(self, *more: str) -> Mapping[str, TensorLayout]:
        """Return the operands, the tensors named in ``more``, and the mask if there is one."""
        known = {"o": self.o, "do": self.o, "stats": statistic(self.q)}
        given = {"q": self.q, "k": self.k, "v": self.v} | {name: known[name] for name in more}
        return given if self.mask is None else given | {"mask": self.mask}

    def _given(self, inputs: Tensors, *more: str) -> dict[str, LibraryTensor]:
        """Return the keyword arguments of the library's node."""
        given = {name: inputs[name] for name in ("q", "k", "v", *more)}
        mask = {} if self.mask is None else {"bias": inputs["mask"]}
        return given | mask | {"attn_scale": self.scale}


@dataclass(frozen=True, slots=True)
class Attention(_Operands):
    """The forward pass of attention."""

    saves: bool = False  # whether the log-sum-exp is an output, for the backward pass

    @property
    def title(self) -> str:
        return "attention"

    @property
    def reads(self) -> Mapping[str, TensorLayout]:
        """The operands, and the mask if there is one."""
        return self._read()

    @property
    def writes(self) -> Mapping[str, TensorLayout]:
        """The result, and the log-sum-exp if it is saved."""
        return {"o": self.o, "stats": statistic(self.q)} if self.saves else {"o": self.o}

    def build(self, graph: LibraryGraph, types: LibraryEnum, inputs: Tensors) -> Tensors:
        o, stats = graph.sdpa(**self._given(inputs), generate_stats=self.saves)
        return {"o": o, "stats": stats}


@dataclass(frozen=True, slots=True)
class AttentionGrad(_Operands):
    """The gradients of attention with respect to q, k and v."""

    deterministic: bool = False  # whether repeated runs must give bitwise equal results

    @property
    def title(self) -> str:
        return "attention grad"

    @property
    def reads(self) -> Mapping[str, TensorLayout]:
        """The inputs and outputs of the forward pass, and the gradient of the result."""
        return self._read("o", "do", "stats")

    @property
    def writes(self) -> Mapping[str, TensorLayout]:
        """The gradients with respect to q, k and v."""
        return {"dq": self.q, "dk": self.k, "dv": self.v}

    def build(self, graph: LibraryGraph, types: LibraryEnum, inputs: Tensors) -> Tensors:
        made = graph.sdpa_backward(
            **self._given(inputs, "o", "stats"), dO=inputs["do"],
            use_deterministic_algorithm=self.deterministic,
        )  # fmt: skip
        return dict(zip(self.writes, made, strict=True))
