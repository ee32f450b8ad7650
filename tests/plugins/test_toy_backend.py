"""The backend of the author's guide, with core's comm and with its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import plain_device
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.cli.new import create_package
from flow_core.comm.exchange import exchanges, links_of
from flow_core.frontend.session import session as sessions
from flow_core.frontend.session.session import Session
from flow_core.ir.text import parse_graph
from flow_core.passes.base import PassContext
from flow_core.passes.fuse_elementwise import FuseElementwise
from flow_core.plugins.host import load_plugins
from flow_core.plugins.registry import Registry
from flow_core.sharding.topology import Device
from flow_core.testing import CommKit

HERE = Path(__file__).parent
COMM = HERE / "toy_backend" / "toy_comm.py"
PAGE = HERE.parents[1] / "docs" / "plugins" / "backend.md"


@cache
def package() -> TemporaryDirectory[str]:
    """The package that the guide creates."""
    folder = TemporaryDirectory(prefix="toy-backend-")
    create_package("backend", "toy", Path(folder.name), load_plugins())
    return folder


@pytest.fixture(scope="session", autouse=True)
def _package() -> Iterator[None]:
    with package():
        yield


def load(*more: str) -> Registry:
    paths = [str(Path(package().name, "toy", "src")), str(COMM.parent)]
    sys.path[:0] = paths
    try:
        import_module("toy.driver")
        return load_plugins(extra=["toy.plugin", *more])
    finally:
        del sys.path[: len(paths)]


class TestComm(CommKit):
    plugin = "toy_comm"
    comm_name = "toy"
    devices = tuple(Device("toy", 0, i) for i in range(2))

    def registry(self) -> Registry:
        return load("toy_comm")


class TestStagedComm(CommKit):
    comm_name = "staged"
    devices = (Device("toy", 0, 0), Device("cpu", 0, 0), Device("toy", 0, 1), Device("cpu", 0, 1))

    def registry(self) -> Registry:
        return load()


@pytest.fixture(params=[(), ("toy_comm",)], ids=["staged", "own"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    """The default session, with toy devices and their comm, if any."""
    before = list(sessions._default)
    made = Session(load(*request.param))
    sessions._default[:] = [made]
    yield made
    made.close()
    sessions._default[:] = before


@pytest.mark.parametrize("ids", ["0:0", "0:0-1"])
def test_a_job_runs_on_it(session: Session, ids: str) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((5, 4)), w: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        with flow.scope.placement("toy", ids):
            return flow.nn.relu(flow.matmul(x, w))

    rng = np.random.default_rng(0)
    for _ in range(2):
        x, w = rng.normal(size=(5, 4)).astype("f4"), rng.normal(size=(4, 3)).astype("f4")
        np.testing.assert_allclose(job(x, w), np.maximum(x @ w, 0), rtol=1e-5, atol=1e-6)
    executable, plan = job.executable(), job.plan()
    links = links_of(exchanges(plan))
    assert executable.sent() == {link: 2 * nbytes for link, nbytes in links.items()}


def test_its_comm_connects_its_devices_only() -> None:
    toys = [Device("toy", 0, i) for i in range(2)]
    assert load("toy_comm").comm_spec(toys).name == "toy"
    assert load("toy_comm").comm_spec([*toys, Device("cpu", 0, 0)]).name == "staged"
    assert load().comm_spec(toys).name == "staged"


def test_the_page_has_the_comm() -> None:
    (_, code) = PAGE.read_text().split('```python title="toy_comm.py"\n')
    assert code.split("```")[0] == COMM.read_text()


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


def test_it_runs_jobs_from_its_first_kernels_on() -> None:
    """Twelve kernels are enough for a product and its scale, and with the CPU for training."""
    x, w = np.random.default_rng(0).normal(size=(2, 8, 40)).astype(np.float32)
    with plain_device.session(load()):

        @flow.global_function()
        def scaled(x: tp.Numpy.Placeholder((8, 40)), w: tp.Numpy.Placeholder((8, 40))) -> tp.Numpy:
            with flow.scope.placement("toy", "0:0"):
                return flow.math.relu(flow.matmul(x, w, transpose_b=True) * 2)

        np.testing.assert_allclose(scaled(x, w), np.maximum(x @ w.T * 2, 0), rtol=1e-5)
        kernels = {t.kernel for t in scaled.plan().tasks if t.device.type == "toy"}
        assert {"toy.matmul", "toy.scalar_mul", "toy.relu"} <= kernels
    labels = np.arange(8, dtype=np.int32) % 5
    losses = {}
    for device in ("cpu", "toy"):
        config = flow.function_config()
        config.host_fallback("silent")
        with plain_device.session(load()):
            job = plain_device.perceptron(device, "0:0", config)
            losses[device] = [job(x, labels).item() for _ in range(5)]
            used = {task.device.type for task in job.plan().tasks if task.type == "matmul"}
            assert used == {device}
    np.testing.assert_allclose(losses["toy"], losses["cpu"], rtol=1e-5)
    assert losses["toy"][-1] < losses["toy"][0]
