"""The interface of exporters, and requests rejected before an exporter is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from flow_core.base.errors import ConfigError, JobError, UnsupportedError
from flow_core.frontend.job.exported import traced_for_export
from flow_core.frontend.session.rank_zero import run_on_rank_zero
from flow_core.frontend.session.session import default_session
from flow_core.frontend.trace.emit import emit
from flow_core.plugins.exporters import ExportedJob, ExporterSpec
from flow_typing import ListListNumpy, ListNumpy, Numpy

GOT: list[tuple[ExportedJob, str, dict[str, Any]]] = []


def remember(job: ExportedJob, path: str, **options: Any) -> None:
    GOT.append((job, path, options))


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    GOT.clear()
    specs = {name: ExporterSpec(name, remember) for name in ("onnx", "dot")}
    monkeypatch.setattr(type(default_session().registry), "exporters", specs)


def job() -> Any:
    @flow.global_function()
    def scaled(x: Numpy.Placeholder((2, 3)), unread: Numpy.Placeholder((4,))) -> Numpy:
        w = flow.get_variable("w", (3,), initializer=flow.ones_initializer())
        flow.get_variable("v", (5,), initializer=flow.ones_initializer())
        flow.watch(flow.math.exp(x), lambda y: None)
        return x * w

    return scaled


@pytest.mark.usefixtures("exporter")
def test_exporters_are_called_by_name_with_their_own_options(tmp_path: Path) -> None:
    weights = {"w": np.array([1, 2, 3], np.float32)}
    flow.checkpoint.save(str(tmp_path / "weights"), weights)
    flow.checkpoint.export(job(), tmp_path / "weights", tmp_path / "m", format="dot", rankdir="LR")
    ((found, path, options),) = GOT
    assert found.variables["w"].tolist() == [1, 2, 3]
    assert (path, options) == (str(tmp_path / "m"), {"rankdir": "LR"})


@pytest.mark.usefixtures("exporter")
def test_an_unknown_exporter_is_an_error_with_the_known_names(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedError, match=r"(?s)test_exported.py.*onnx, dot.*did you mean dot"
    ):
        flow.checkpoint.export(job(), tmp_path, tmp_path / "m", format="dott")


@pytest.mark.usefixtures("exporter")
def test_exporter_gets_the_graph_of_the_results_and_their_weights(tmp_path: Path) -> None:
    arrays = {"w": np.array([1, 2, 3], np.float32), "other": np.zeros(7, np.float32)}
    flow.checkpoint.save(str(tmp_path / "weights"), arrays)
    flow.onnx.export(job(), str(tmp_path / "weights"), tmp_path / "m.onnx", opset=14)
    ((found, path, options),) = GOT
    assert found.name == "scaled"
    assert list(found.inputs) == ["x", "unread"]
    assert [op.type for op in found.graph.ops.values()] == [
        "input", "input", "variable", "broadcast_mul",
    ]  # fmt: skip
    assert {name: array.tolist() for name, array in found.variables.items()} == {"w": [1, 2, 3]}
    assert "test_exported.py" in str(found.at)
    assert path == str(tmp_path / "m.onnx")
    assert (options["opset"], options["external_data"]) == (14, False)


def test_missing_exporter_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    scaled = job()
    monkeypatch.setattr(type(default_session().registry), "exporters", {})
    with pytest.raises(UnsupportedError, match=r"uv pip install .*packages/flow-onnx"):
        flow.onnx.export(scaled, "weights", "m.onnx")


def test_effects_on_variables_are_preserved() -> None:
    @flow.global_function()
    def writes(x: Numpy.Placeholder((2,))) -> Numpy:
        flow.assign(flow.get_variable("w", (2,), initializer=flow.ones_initializer()), x)
        return x

    found = traced_for_export(writes, "exporting", None)
    assert [op.type for op in found.graph.ops.values()] == ["input", "variable", "assign"]


def test_non_array_results_are_rejected() -> None:
    @flow.global_function()
    def objects(x: Numpy.Placeholder((2, 3))) -> ListListNumpy:
        return emit("tensor_to_tensor_buffer", x, instance_dims=1)

    with pytest.raises(UnsupportedError, match="tensor_buffer"):
        traced_for_export(objects, "exporting", None)

    config = flow.function_config()
    config.default_logical_view(flow.scope.mirrored_view())
    config.default_placement_scope(flow.scope.placement("cpu", "0:0-1"))

    @flow.global_function(function_config=config)
    def mirrored(x: ListNumpy.Placeholder((2, 3))) -> ListNumpy:
        return flow.nn.relu(x)

    with pytest.raises(UnsupportedError, match="an array per device"):
        traced_for_export(mirrored, "exporting", None)


def test_invalid_paths_are_rejected() -> None:
    with pytest.raises(ConfigError, match="model_save_dir=None"):
        flow.onnx.export(job(), None, "m.onnx")
    with pytest.raises(ConfigError, match="onnx_filename=3"):
        flow.onnx.export(job(), "weights", 3)


class FakeWorld:
    """Simulate two ranks run one after the other; rank 1 receives the messages of rank 0."""

    said: bytes = b""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def gather(self, word: bytes, what: str) -> list[bytes]:
        if not self.rank:
            FakeWorld.said = word
        return [FakeWorld.said, word]


def test_rank_zero_writes_and_other_ranks_receive_its_failure() -> None:
    done: list[int] = []
    for rank in (0, 1):
        run_on_rank_zero(FakeWorld(rank), lambda: done.append(0), "exporting")  # type: ignore[arg-type]
    assert done == [0]

    def fails() -> None:
        raise ValueError("no space left")

    with pytest.raises(ValueError, match="no space left"):
        run_on_rank_zero(FakeWorld(0), fails, "exporting")  # type: ignore[arg-type]
    with pytest.raises(JobError, match="no space left"):
        run_on_rank_zero(FakeWorld(1), fails, "exporting")  # type: ignore[arg-type]
