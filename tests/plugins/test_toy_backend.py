"""The backend of the author's guide: it is what the page says, and the kits pass."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flow_core.ir.text import parse_graph
from flow_core.passes.base import PassContext
from flow_core.passes.fuse_elementwise import FuseElementwise
from flow_core.plugins.host import load_plugins
from flow_core.plugins.registry import Registry
from flow_core.testing import DeviceKit, Gap, KernelKit

HERE = Path(__file__).parent
SOURCE = HERE / "toy_backend" / "toy_backend.py"
PAGE = HERE.parents[1] / "docs" / "plugins" / "backend.md"


def load() -> Registry:
    sys.path.insert(0, str(SOURCE.parent))
    try:
        return load_plugins(extra=["toy_backend"])
    finally:
        sys.path.remove(str(SOURCE.parent))


class Toy:
    plugin = "toy_backend"
    device_type = "toy"

    def registry(self) -> Registry:
        return load()


def buffered(op: str) -> Gap:
    reason = "numpy's ufuncs copy 8192 elements at a time where operands broadcast"
    return Gap(op, "never", reason, ("allocates_nothing",))


class TestKernels(Toy, KernelKit):
    dtypes = ("float32",)
    gaps = tuple(map(buffered, ("bias_add", "broadcast_add", "broadcast_mul", "broadcast_sub")))


class TestDevice(Toy, DeviceKit):
    pass


def test_the_page_has_all_of_it() -> None:
    code = PAGE.read_text().split("```python\n")
    found = "".join(block.split("```")[0] for block in code[1:])
    lines = [line for line in SOURCE.read_text().splitlines() if line.strip()]
    shown = [line for line in found.splitlines() if line.strip()]
    assert shown == lines, "docs/plugins/backend.md and toy_backend.py have parted"
    assert len(SOURCE.read_text().splitlines()) < 150


@pytest.mark.parametrize("op", ["matmul", "tanh"])
def test_its_kernels_are_for_its_device_only(op: str) -> None:
    registry = load()
    assert [k.name for k in registry.kernels(op, "toy")] == [f"toy.{op}"]
    assert not any(k.name.startswith("toy.") for k in registry.kernels(op, "cpu"))


def test_a_job_needs_no_kernel_of_fused_ops() -> None:
    graph, registry = parse_graph(SCALED_PRODUCT), load()
    assert FuseElementwise().apply(graph, PassContext(registry.ops, kernels=registry)) is graph
    assert FuseElementwise().apply(graph, PassContext(registry.ops)) is not graph


SCALED_PRODUCT = """
graph
x = input() : float32[2,2] @toy[0:0] {'batch_axis': 0, 'dtype': 'float32', 'shape': (2, 2)}
p = matmul(x:0, x:0) : float32[2,2] @toy[0:0] {'alpha': 1.0, 'transpose_a': False}
s = scalar_mul(p:0) : float32[2,2] @toy[0:0] {'operand': 2.0}
y = relu(s:0) : float32[2,2] @toy[0:0] {}
return y:0
effects
"""
