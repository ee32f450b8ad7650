"""cuDNN problems, which describe the computation of a graph and the layout of its tensors.

A problem is plain data and serves as the key of plans, also on disk. Its tensors have batch as the
first axis and channels as the second one, whatever the program's layout; strides express that
layout. Convolutions over one spatial axis get a second axis of size 1, as the library requires.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, TypeAlias

from flow_core.authoring.specs import TensorType
from flow_core.base.dtypes import as_dtype

Ints = tuple[int, ...]
LibraryGraph: TypeAlias = Any
LibraryTensor: TypeAlias = Any
LibraryEnum: TypeAlias = Any
"""An object of the package ``cudnn``, which has no type information, or of the simulation."""

Tensors = Mapping[str, LibraryTensor]


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """The shape, strides and element type of a tensor in the library's terms."""

    sizes: Ints  # sizes of the batch, channel and spatial axes
    steps: Ints  # strides of these axes, in elements
    dtype: str

    @property
    def nbytes(self) -> int:
        """Total size in bytes."""
        return prod(self.sizes) * as_dtype(self.dtype).itemsize


def tensor_layout(type_: TensorType, data_format: str) -> TensorLayout:
    """Describe the layout of a contiguous tensor.

    >>> from flow_core.base.dtypes import float32
    >>> from flow_core.authoring.specs import tensor_type
    >>> tensor_layout(tensor_type((2, 5, 3), float32), "channels_last")
    TensorLayout(sizes=(2, 3, 5, 1), steps=(15, 1, 3, 3), dtype='float32')
    """
    shape = type_.shape
    steps = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
    order = list(range(len(shape)))
    if data_format == "channels_last":
        order.insert(1, order.pop())
    sizes, strides = (tuple(row[i] for i in order) for row in (shape, steps))
    if len(shape) == 3:
        sizes, strides = (*sizes, 1), (*strides, strides[2])
    return TensorLayout(sizes, strides, type_.dtype.name)


def vector(channels: int, rank: int, dtype: str) -> TensorLayout:
    """Describe a tensor with one element per channel.

    >>> vector(3, 4, "float32").sizes
    (1, 3, 1, 1)
    """
    rest = (1,) * (rank - 2)
    return TensorLayout((1, channels, *rest), (channels, 1, *rest), dtype)


class Problem(Protocol):
    """The computation of a graph."""

    @property
    def title(self) -> str:
        """Name for reports."""

    @property
    def compute(self) -> str:
        """The computation type."""

    @property
    def reads(self) -> Mapping[str, TensorLayout]:
        """The inputs, in order."""

    @property
    def writes(self) -> Mapping[str, TensorLayout]:
        """The outputs, in order."""

    @property
    def scalars(self) -> Mapping[str, float]:
        """Scalars passed by value."""

    def build(self, graph: LibraryGraph, types: LibraryEnum, inputs: Tensors) -> Tensors:
        """Add the nodes to a graph of the library and return the output tensors.

        Args:
            graph: the library's ``pygraph``.
            types: the library's element types by flow-core's names.
            inputs: the tensors of ``reads`` and of ``scalars``.
        """


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution, or a gradient of one."""

    kind: str  # "forward", "data_grad" or "filter_grad"
    # Input, weights and output; ``kind`` says which one is computed from the others.
    x: TensorLayout
    w: TensorLayout
    y: TensorLayout
    before: Ints  # padding, strides and dilation per spatial axis
    after: Ints
    strides: Ints
    dilation: Ints
    compute: str
    bias: bool = False  # whether a bias, one element per channel, is added to the output
    relu: bool = False  # whether ReLU is applied last
    adds: bool = False  # whether a tensor of the output's shape is added next

    @property
    def title(self) -> str:
        """Name for reports, such as "conv forward bias relu"."""
        more = (name for name in ("bias", "adds", "relu") if getattr(self, name))
        return " ".join(("conv", self.kind.replace("_", " "), *more))

    @property
    def reads(self) -> Mapping[str, TensorLayout]:
        """The two given tensors of x, w and y, then the bias and the addend if there are any."""
        bias = {"bias": vector(self.y.sizes[1], len(self.y.sizes), self.y.dtype)}
        table = {
            "forward": {"x": self.x, "w": self.w},
            "data_grad": {"y": self.y, "w": self.w},
            "filter_grad": {"y": self.y, "x": self.x},
        }
        addend = {"addend": self.y} if self.adds else {}
        return table[self.kind] | (bias if self.bias else {}) | addend

    @property
    def writes(self) -> Mapping[str, TensorLayout]:
        """The computed tensor of x, w and y."""
        name = {"forward": "y", "data_grad": "x", "filter_grad": "w"}[self.kind]
        return {name: getattr(self, name)}

    @property
    def scalars(self) -> Mapping[str, float]:
        return {}

    def build(self, graph: LibraryGraph, types: LibraryEnum, inputs: Tensors) -> Tensors:
        """Add the convolution, then bias, addition and ReLU."""
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
        return {"y": graph.relu(input=y) if self.relu else y}


def convolution(
    kind: str,  # "forward", "data_grad" or "filter_grad"
    types: tuple[TensorType, TensorType, TensorType],  # types of x, w and y
    # The op's ``data_format``, ``strides``, ``padding_before``, ``dilation_rate``, and ``compute``.
    attrs: Mapping[str, Any],
    *,
    bias: bool = False,  # fused operations, as in `Convolution`
    relu: bool = False,
    adds: bool = False,
) -> Convolution:
    """Return the problem that a convolution op computes."""
    x, w, y = (tensor_layout(t, attrs["data_format"]) for t in types)
    before, strides, dilation = (
        _pad_to_two(attrs[name], default)
        for name, default in (("padding_before", 0), ("strides", 1), ("dilation_rate", 1))
    )
    rows = zip(x.sizes[2:], w.sizes[2:], y.sizes[2:], strides, dilation, before, strict=True)
    after = tuple(max(0, (o - 1) * s + (k - 1) * d + 1 - n - b) for n, k, o, s, d, b in rows)
    compute = str(attrs["compute"]) or types[0].dtype.accumulate.name
    window = (before, after, strides, dilation)
    return Convolution(kind, x, w, y, *window, compute, bias, relu, adds)


def _pad_to_two(values: Sequence[int], default: int) -> Ints:
    """Pad a list with one value per spatial axis to at least two values."""
    return (*values, *(default,) * (2 - len(values)))


# --- plan selection


@dataclass(frozen=True, slots=True)
class Search:
    """The allowed plans, and how to select one."""

    # Whether to time all plans; otherwise, the first plan of the heuristics is used.
    measured: bool = False
    deterministic: bool = False  # whether repeated runs must give bitwise equal results
    # Whether float32 may be rounded to TF32 (10 mantissa bits) for the tensor cores.
    tf32: bool = False
    limit: int = 1 << 30  # maximum workspace in bytes
    family: str = ""  # required family of plans, a name of `FAMILIES`; empty for any


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen plan."""

    plan: str  # the library's name of engine and knobs, which identifies the plan
    workspace: int  # required workspace in bytes


@dataclass(frozen=True, slots=True)
class Family:
    """A family of convolution plans that OneFlow's settings can select.

    Behavior notes define the family.
    """

    needs: tuple[str, ...] = ()  # notes that a plan must have
    refuses: tuple[str, ...] = ()  # notes that a plan must not have


FAMILIES: Mapping[str, Family] = {
    "": Family(),
    "gemm": Family(refuses=("FFT", "WINOGRAD")),
    "deterministic gemm": Family(refuses=("FFT", "WINOGRAD", "NONDETERMINISTIC")),
    "fft": Family(needs=("FFT",)),
    "winograd": Family(needs=("WINOGRAD",)),
}
"""Plan families that correspond to the algorithms of cuDNN's legacy API."""

ALGORITHMS: Mapping[str, Mapping[int, str]] = {
    "forward": {0: "gemm", 1: "gemm", 2: "gemm", 4: "fft", 5: "fft", 6: "winograd", 7: "winograd"},
    "data_grad": {
        0: "gemm", 1: "deterministic gemm", 2: "fft", 3: "fft", 4: "winograd", 5: "winograd",
    },
    "filter_grad": {
        0: "gemm", 1: "deterministic gemm", 2: "fft", 3: "gemm", 5: "winograd", 6: "fft",
    },
}  # fmt: skip
"""Families by kind of convolution and algorithm number. Algorithms that cuDNN never implemented
(such as direct convolution) are missing."""
