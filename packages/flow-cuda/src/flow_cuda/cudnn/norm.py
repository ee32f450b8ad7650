"""Batch normalization in training with fused addition and ReLU, and layer normalization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flow_cuda.cudnn.problems import LibraryEnum, LibraryGraph, TensorLayout, Tensors, vector

STATISTICS = ("moving_mean", "moving_variance")


@dataclass(frozen=True, slots=True)
class Norm:
    """The forward pass of batch normalization."""

    x: TensorLayout  # the input; the result has the same layout
    epsilon: float  # the number added to the variance
    momentum: float  # decay of the moving statistics
    adds: bool = False  # whether a tensor of x's shape is added to the normalized tensor
    relu: bool = False  # whether ReLU is applied last
    compute: str = "float32"  # the accumulation type

    @property
    def title(self) -> str:
        """Name for reports, such as "norm add relu"."""
        more = (name for name, has in (("add", self.adds), ("relu", self.relu)) if has)
        return " ".join(("norm", *more))

    @property
    def reads(self) -> Mapping[str, TensorLayout]:
        """The inputs in the op's order."""
        row = _channel_layout(self.x)
        names = (*STATISTICS, "gamma", "beta")
        addend = {"addend": self.x} if self.adds else {}
        return {"x": self.x, **dict.fromkeys(names, row), **addend}

    @property
    def writes(self) -> Mapping[str, TensorLayout]:
        """The op's outputs, then the new moving statistics."""
        names = ("mean", "inverse", *(f"next_{name}" for name in STATISTICS))
        return {"y": self.x, **dict.fromkeys(names, _channel_layout(self.x))}

    @property
    def scalars(self) -> Mapping[str, float]:
        """Epsilon, and cuDNN's momentum, which is the weight of the new statistics."""
        return {"epsilon": self.epsilon, "momentum": 1 - self.momentum}

    def build(self, graph: LibraryGraph, types: LibraryEnum, inputs: Tensors) -> Tensors:
        """Add the normalization, then addition and ReLU."""
        t = inputs
        y, mean, inverse, next_mean, next_variance = graph.batchnorm(
            input=t["x"], scale=t["gamma"], bias=t["beta"], in_running_mean=t["moving_mean"],
            in_running_var=t["moving_variance"], epsilon=t["epsilon"], momentum=t["momentum"],
        )  # fmt: skip
        y = graph.add(a=y, b=t["addend"]) if self.adds else y
        y = graph.relu(input=y) if self.relu else y
        made = (y, mean, inverse, next_mean, next_variance)
        return dict(zip(self.writes, made, strict=True))


@dataclass(frozen=True, slots=True)
class NormGrad:
    """The gradients of batch normalization with respect to x, gamma and beta."""

    x: TensorLayout
    compute: str = "float32"  # the accumulation type

    @property
    def title(self) -> str:
        return "norm grad"

    @property
    def reads(self) -> Mapping[str, TensorLayout]:
        """The inputs in the op's order."""
        rows = dict.fromkeys(("mean", "inverse", "gamma"), _channel_layout(self.x))
        return {"x": self.x, "dy": self.x, **rows}

    @property
    def writes(self) -> Mapping[str, TensorLayout]:
        """The outputs in the op's order."""
        return {"dx": self.x, **dict.fromkeys(("dgamma", "dbeta"), _channel_layout(self.x))}

    @property
    def scalars(self) -> Mapping[str, float]:
        return {}

    def build(self, graph: LibraryGraph, types: LibraryEnum, inputs: Tensors) -> Tensors:
        t = inputs
        made = graph.batchnorm_backward(
            grad=t["dy"], input=t["x"], scale=t["gamma"], mean=t["mean"],
            inv_variance=t["inverse"],
        )  # fmt: skip
        return dict(zip(self.writes, made, strict=True))


def _channel_layout(x: TensorLayout) -> TensorLayout:
    return vector(x.sizes[1], len(x.sizes), "float32")
