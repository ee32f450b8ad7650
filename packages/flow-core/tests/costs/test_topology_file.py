"""Topology files: what they say is what plans cost; unusable files name the place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.dtypes import float32
from flow_core.base.errors import ConfigError
from flow_core.compiler.digest import request_digest
from flow_core.compiler.request import Compiled
from flow_core.costs.kept_kernels import keep_kernels, read_kernels
from flow_core.costs.links import Link, LinkModel
from flow_core.costs.model import CORE, DEFAULT, CostModel, DeviceModel, Work, kernel_key
from flow_core.costs.topology_file import read_topology, topology_text
from flow_core.frontend.session import session as sessions
from flow_core.frontend.session.session import Session
from flow_core.ir.graph import tensor_type
from flow_core.plugins.host import default_registry

MODEL = CostModel(
    "two machines",
    'data sheets of "x"',
    LinkModel(
        (Link("inside", "machine", 1e-6, 1e11), Link("net", "all", 1e-5, 1e10, 2e10)), ("ring",)
    ),
    {"cpu": CORE, "gpu": DeviceModel(1e14, 1e12, 0.0, 1e-6)},
    step=1e-4,
    cores=2,
)


def test_files_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "links.toml"
    for model in (MODEL, DEFAULT):
        path.write_text(topology_text(model))
        assert read_topology(path) == model
    path.write_text(topology_text(replace(MODEL, measures=True)))
    assert read_topology(path, {"key": 1.0}).kernels == {"key": 1.0}
    assert "1 measured kernels" in str(read_topology(path, {"key": 1.0}))


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("", "[", "Expected"),
        ('name = "two machines"', "", "name"),
        ("latency = 1e-05", "latency = -1", "-1"),
        ("cores = 2", "cores = -1", "-1"),
        ("bandwidth = 100000000000.0", "bandwidth = 0", "0"),
        ('joins = "all"', 'joins = "everything"', "everything"),
        ('["ring"]', '["rings"]', "rings"),
        ('"roofline"', '"guessed"', "guessed"),
        ("flops", "flop", "flop"),
    ],
)
def test_unusable_files_name_the_place(tmp_path: Path, old: str, new: str, found: str) -> None:
    path = tmp_path / "links.toml"
    text = topology_text(MODEL)
    assert old in text
    path.write_text(text.replace(old, new, 1) if old else new + text)
    with pytest.raises(ConfigError, match=found):
        read_topology(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_topology(tmp_path / "none.toml")


@pytest.fixture
def compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[[CostModel], Compiled]]:
    """Return a function that compiles a job of 4 devices with a cost model from a file."""

    def compiled_with(model: CostModel) -> Compiled:
        path = tmp_path / "links.toml"
        path.write_text(topology_text(model))
        monkeypatch.setenv("FLOW_TOPOLOGY", str(path))
        flow.clear_default_session()
        monkeypatch.setattr(sessions, "_default", [Session(default_registry())])
        flow.config.machine_num(2)
        flow.config.cpu_device_num(2)

        @flow.global_function(type="train")
        def network(x: tp.Numpy.Placeholder((8, 256))) -> tp.Numpy:
            w = flow.get_variable("w", (256, 256), initializer=flow.ones_initializer())
            loss = flow.math.reduce_mean(flow.matmul(x, w))
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
            return loss

        return network.compile()

    yield compiled_with
    for session in sessions._default:
        session.close()


def test_one_model_serves_selector_ledger_order_and_reports(
    compiled: Callable[[CostModel], Compiled],
) -> None:
    """Slower links and cores change every prediction, and the digest of the job."""
    found = compiled(MODEL)
    slow = replace(MODEL, links=LinkModel((Link("net", "all", 1e-3, 1e7),), ("ring",)))
    slow = replace(slow, devices={"cpu": DeviceModel(1e8, 1e7, 0.0, 1e-4)})
    slower = compiled(slow)
    assert found.plan.costs == 'two machines (data sheets of "x")'
    for number in (
        lambda c: c.physical.report.cost.total,
        lambda c: sum(task.seconds for task in c.plan.tasks),
        lambda c: sum(entry.seconds for entry in c.plan.ledger if entry.nbytes),
    ):
        assert 10 * number(found) < number(slower)
    assert request_digest(found.request) != request_digest(slower.request)


def test_measured_kernels_replace_rooflines() -> None:
    spec = default_registry().ops["matmul"]
    type_ = tensor_type((64, 64), float32)
    work = Work(spec, spec.attrs, (type_, type_), (type_,))
    assert work.flops == 2 * 64**3
    known = CostModel(kernels={kernel_key(work, "cpu", 1): 7.0})
    assert known.kernel_seconds(work, "cpu", CORE) == 7.0
    assert known.kernel_seconds(work, "cpu", CORE, threads=2) < 1e-3
    assert DEFAULT.kernel_seconds(work, "cpu", CORE) == pytest.approx(
        CORE.launch + work.flops / CORE.flops + 3 * 4 * 64**2 / CORE.bandwidth
    )


def test_measured_kernels_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    registry = default_registry()
    assert read_kernels(registry) == {}
    keep_kernels(registry, {"a": 1.0, "b": 2.0})
    keep_kernels(registry, {"b": 3.0})
    assert read_kernels(registry) == {"a": 1.0, "b": 3.0}
