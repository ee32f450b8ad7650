"""Simulated cuDNN engines: the graphs that they support, their workspace sizes and costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Protocol

from cuda_simulator.cudnn_tensors import FakeNode, FakeTensor


class Graph(Protocol):
    """The graph interface that engines use: `cuda_simulator.cudnn.FakeGraph`."""

    nodes: list[FakeNode]
    given: list[FakeTensor]

    def tensors(self) -> Iterator[FakeTensor]:
        """Yield all tensors."""

    def type_name(self, tensor: FakeTensor) -> str:
        """Return flow-core's name of a tensor's element type."""

    def itemsize(self, tensor: FakeTensor) -> int:
        """Return the element size of a tensor in bytes."""

    def convolved(self, node: FakeNode) -> tuple[FakeTensor, FakeTensor, FakeTensor]:
        """Return input, weights and output of a convolution, forward or backward."""


@dataclass(frozen=True)
class FakeEngine:
    """A simulated engine.

    Attributes:
        name: the engine's name in plans.
        notes: its numerical notes.
        cost: simulated run time.
        takes: the function that says whether the engine supports a graph.
        workspace: the function that returns the workspace size for a graph in bytes.
        compiles: whether building a plan of the engine requires a compilation.
    """

    name: str
    notes: tuple[str, ...]
    cost: float
    takes: Callable[[Graph], bool]
    workspace: Callable[[Graph], int]
    compiles: bool = False


def _no_workspace(graph: Graph) -> int:
    return 0


def _nbytes(graph: Graph) -> int:
    return sum(prod(t.dim) * graph.itemsize(t) for t in graph.tensors() if not t.virtual)


def _is_conv(graph: Graph) -> bool:
    return graph.nodes[0].kind.startswith("conv")


def _is_general_conv(graph: Graph) -> bool:
    """Whether a graph is a convolution; in float64, one without fused operations."""
    wide = any(graph.type_name(t) == "float64" for t in graph.given)
    return _is_conv(graph) and not (wide and len(graph.nodes) > 1)


def _is_tensor_core_conv(graph: Graph) -> bool:
    tensors = [t for t in graph.tensors() if not t.virtual]
    return _is_conv(graph) and all(graph.type_name(t) not in ("float64", "int32") for t in tensors)


def _is_unit_stride_conv(graph: Graph) -> bool:
    """Whether a graph is a convolution without strides, dilation and groups."""
    if not _is_conv(graph):
        return False
    params = graph.nodes[0].params
    x, w, _ = graph.convolved(graph.nodes[0])
    return x.dim[1] == w.dim[1] and {*params["stride"], *params["dilation"]} == {1}


def _is_3x3_conv(graph: Graph) -> bool:
    return _is_unit_stride_conv(graph) and set(graph.convolved(graph.nodes[0])[1].dim[2:]) == {3}


def _is_conv_grad(graph: Graph) -> bool:
    return graph.nodes[0].kind in ("conv_dgrad", "conv_wgrad")


def _is_attention(graph: Graph) -> bool:
    """Whether a graph is attention, or its gradients by a nondeterministic algorithm."""
    node = graph.nodes[0]
    return node.kind.startswith("sdpa") and not node.params.get("repeats")


def _is_batch_norm(graph: Graph) -> bool:
    """Whether a graph is batch normalization with a multiple of eight channels."""
    node = graph.nodes[0]
    return node.kind.startswith("batchnorm") and node.inputs["input"].dim[1] % 8 == 0


def _is_deterministic_attention(graph: Graph) -> bool:
    node = graph.nodes[0]
    return node.kind == "sdpa_backward" and bool(node.params["repeats"])


ENGINES: tuple[FakeEngine, ...] = (
    FakeEngine(
        "eng1_k2=5", ("TENSOR_CORE", "DOWN_CONVERT_INPUTS"), 2, _is_tensor_core_conv, lambda g: 4096
    ),
    FakeEngine("eng0_k30=0", (), 1, _is_batch_norm, lambda g: 128, True),
    FakeEngine("eng8", ("TENSOR_CORE",), 1, _is_attention, lambda g: 1024, True),
    FakeEngine("eng9", ("TENSOR_CORE",), 2, _is_deterministic_attention, lambda g: 2048, True),
    FakeEngine("eng7_k3=1", ("NONDETERMINISTIC",), 2.5, _is_conv_grad, _no_workspace),
    FakeEngine("eng0", (), 3, _is_general_conv, lambda g: 256 if _is_conv_grad(g) else 0),
    FakeEngine("eng6", ("WINOGRAD",), 1, _is_3x3_conv, lambda g: 2 * _nbytes(g)),
    FakeEngine("eng4_k1=2", ("FFT",), 4, _is_unit_stride_conv, lambda g: 8 * _nbytes(g)),
)
"""The engines in the order of the heuristics, which differs from the order of their costs."""
