"""Problems of cuDNN: what a graph of its frontend computes, and how tensors lie in memory.

A problem is plain data: a key of plans, on disk as well.  Its tensors have batch first and
channels second whatever the program's layout is; the layout is in the strides.  Convolutions over
one axis of space have a second one of size 1, which is what the library asks for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from flow_core.authoring.specs import TensorType
from flow_core.base.dtypes import as_dtype

Ints = tuple[int, ...]
SUMS = ("sum", "squares")


@dataclass(frozen=True, slots=True)
class Laid:
    """A tensor as the library sees it.

    Attributes:
        sizes: batch, channels, space.
        steps: strides of these, in elements.
        dtype: element type.
    """

    sizes: Ints
    steps: Ints
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return prod(self.sizes) * as_dtype(self.dtype).itemsize


def laid(type_: TensorType, data_format: str) -> Laid:
    """How a contiguous tensor lies.

    >>> from flow_core.base.dtypes import float32
    >>> from flow_core.authoring.specs import tensor_type
    >>> laid(tensor_type((2, 5, 3), float32), "channels_last")
    Laid(sizes=(2, 3, 5, 1), steps=(15, 1, 3, 3), dtype='float32')
    """
    shape = type_.shape
    steps = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
    order = list(range(len(shape)))
    if data_format == "channels_last":
        order.insert(1, order.pop())
    sizes, strides = (tuple(row[i] for i in order) for row in (shape, steps))
    if len(shape) == 3:
        sizes, strides = (*sizes, 1), (*strides, strides[2])
    return Laid(sizes, strides, type_.dtype.name)


def vector(channels: int, rank: int, dtype: str) -> Laid:
    """A number per channel.

    >>> vector(3, 4, "float32").sizes
    (1, 3, 1, 1)
    """
    rest = (1,) * (rank - 2)
    return Laid((1, channels, *rest), (channels, 1, *rest), dtype)


class Problem(Protocol):
    """What a graph computes."""

    @property
    def title(self) -> str:
        """What it is, for reports."""

    @property
    def compute(self) -> str:
        """The type in which it sums."""

    @property
    def reads(self) -> Mapping[str, Laid]:
        """Its inputs, in order."""

    @property
    def writes(self) -> Mapping[str, Laid]:
        """Its outputs, in order."""

    @property
    def scalars(self) -> Mapping[str, float]:
        """Numbers that it is given by value."""

    def build(self, graph: Any, types: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Adds its nodes to a graph of the library and gives the tensors of its outputs.

        Args:
            graph: the library's ``pygraph``.
            types: the library's element types, by our names, and what it calls "inference".
            inputs: the tensors of ``reads`` and of ``scalars``.
        """


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution, or a gradient of one.

    Attributes:
        kind: "forward", "data_grad" or "filter_grad".
        x, w, y: input, weights and output; the one that is computed is among them.
        before, after, strides, dilation: of each axis of space.
        compute: in what it sums.
        bias: whether a number per channel is added to the output.
        adds: whether something of the output's sizes is added then.
        relu: whether what is negative becomes 0 then.
        sums: whether it also gives the sums of the output and of its squares, by channels.
    """

    kind: str
    x: Laid
    w: Laid
    y: Laid
    before: Ints
    after: Ints
    strides: Ints
    dilation: Ints
    compute: str
    bias: bool = False
    relu: bool = False
    adds: bool = False
    sums: bool = False

    @property
    def title(self) -> str:
        """Such as "conv forward bias relu"."""
        more = (name for name in ("bias", "adds", "relu", "sums") if getattr(self, name))
        return " ".join(("conv", self.kind.replace("_", " "), *more))

    @property
    def reads(self) -> Mapping[str, Laid]:
        """The two others of x, w and y, the bias, and what is added."""
        bias = {"bias": vector(self.y.sizes[1], len(self.y.sizes), self.y.dtype)}
        table = {
            "forward": {"x": self.x, "w": self.w},
            "data_grad": {"y": self.y, "w": self.w},
            "filter_grad": {"y": self.y, "x": self.x},
        }
        addend = {"addend": self.y} if self.adds else {}
        return table[self.kind] | (bias if self.bias else {}) | addend

    @property
    def writes(self) -> Mapping[str, Laid]:
        """One of x, w and y, and the sums."""
        name = {"forward": "y", "data_grad": "x", "filter_grad": "w"}[self.kind]
        row = vector(self.y.sizes[1], len(self.y.sizes), "float32")
        return {name: getattr(self, name)} | (dict.fromkeys(SUMS, row) if self.sums else {})

    @property
    def scalars(self) -> Mapping[str, float]:
        """None."""
        return {}

    def build(self, graph: Any, types: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The convolution, then bias, sum and relu."""
        t, window = inputs, {
            "pre_padding": list(self.before), "post_padding": list(self.after),
            "stride": list(self.strides), "dilation": list(self.dilation),
            "compute_data_type": types[self.compute],
        }  # fmt: skip
        if self.kind == "data_grad":
            return {"x": graph.conv_dgrad(loss=t["y"], filter=t["w"], **window)}
        if self.kind == "filter_grad":
            return {"w": graph.conv_wgrad(image=t["x"], loss=t["y"], **window)}
        y = graph.conv_fprop(image=t["x"], weight=t["w"], **window)
        y = graph.bias(input=y, bias=t["bias"]) if self.bias else y
        y = graph.add(a=y, b=t["addend"]) if self.adds else y
        y = graph.relu(input=y) if self.relu else y
        if not self.sums:
            return {"y": y}
        made = graph.genstats(input=y, compute_data_type=types["float32"])
        return {"y": y, **dict(zip(SUMS, made, strict=True))}


def convolution(
    kind: str,
    types: tuple[TensorType, TensorType, TensorType],
    attrs: Mapping[str, Any],
    *,
    bias: bool = False,
    relu: bool = False,
    adds: bool = False,
    sums: bool = False,
) -> Convolution:
    """The problem of an op.

    Args:
        kind: "forward", "data_grad" or "filter_grad".
        types: of x, w and y.
        attrs: ``data_format``, ``strides``, ``padding_before``, ``dilation_rate`` of the op, and
            ``compute``.
        bias, relu, adds, sums: what follows.
    """
    x, w, y = (laid(t, attrs["data_format"]) for t in types)
    before, strides, dilation = (
        _two(attrs[name], default)
        for name, default in (("padding_before", 0), ("strides", 1), ("dilation_rate", 1))
    )
    rows = zip(x.sizes[2:], w.sizes[2:], y.sizes[2:], strides, dilation, before, strict=True)
    after = tuple(max(0, (o - 1) * s + (k - 1) * d + 1 - n - b) for n, k, o, s, d, b in rows)
    compute = str(attrs["compute"]) or types[0].dtype.accumulate.name
    behind = (bias, relu, adds, sums)
    return Convolution(kind, x, w, y, before, after, strides, dilation, compute, *behind)


def _two(values: Sequence[int], default: int) -> Ints:
    """A value per axis of space, of which there are two at least."""
    return (*values, *(default,) * (2 - len(values)))


# --- how a plan is chosen


@dataclass(frozen=True, slots=True)
class Search:
    """Which plans are allowed, and how one of them is chosen.

    Attributes:
        measured: whether all are run and the fastest is taken; else the library's own guess is.
        deterministic: whether two runs must give the same bits.
        tf32: whether float32 may be rounded to 10 bits of mantissa for the tensor cores.
        limit: bytes of workspace at most.
        family: a name of `FAMILIES`: the way in which it must be computed; empty for any.
    """

    measured: bool = False
    deterministic: bool = False
    tf32: bool = False
    limit: int = 1 << 30
    family: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan.

    Attributes:
        plan: the library's name of engine and knobs, by which it is found again.
        workspace: bytes that it needs.
    """

    plan: str
    workspace: int


@dataclass(frozen=True, slots=True)
class Family:
    """Ways to compute a convolution that OneFlow's settings can ask for, by the library's notes.

    Attributes:
        needs: notes that a plan must have.
        refuses: notes that it must not have.
    """

    needs: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()


FAMILIES: Mapping[str, Family] = {
    "": Family(),
    "gemm": Family(refuses=("FFT", "WINOGRAD")),
    "deterministic gemm": Family(refuses=("FFT", "WINOGRAD", "NONDETERMINISTIC")),
    "fft": Family(needs=("FFT",)),
    "winograd": Family(needs=("WINOGRAD",)),
}
"""What the numbers of cuDNN's former algorithms mean for plans of its graphs."""

ALGORITHMS: Mapping[str, Mapping[int, str]] = {
    "forward": {0: "gemm", 1: "gemm", 2: "gemm", 4: "fft", 5: "fft", 6: "winograd", 7: "winograd"},
    "data_grad": {
        0: "gemm", 1: "deterministic gemm", 2: "fft", 3: "fft", 4: "winograd", 5: "winograd",
    },
    "filter_grad": {
        0: "gemm", 1: "deterministic gemm", 2: "fft", 3: "gemm", 5: "winograd", 6: "fft",
    },
}  # fmt: skip
"""Families by the number of an algorithm.  Those that cuDNN has never had (direct convolution, a
filter's gradient by plain Winograd) are missing."""
