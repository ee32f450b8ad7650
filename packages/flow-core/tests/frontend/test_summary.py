"""Summary event files as parsed by an independent reader."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from event_files import read, written

import oneflow as flow
from flow_core.base.errors import DataError, FlowError, InferenceError
from flow_core.summary import events
from flow_core.summary.messages import SCALARS, Message, encoded, parsed
from flow_typing import ListNumpy, Numpy


@pytest.fixture(autouse=True)
def session() -> Any:
    flow.clear_default_session()
    yield
    events.close_writer()
    flow.clear_default_session()


def as_bytes(text: str) -> Any:
    return np.frombuffer(text.encode(), np.int8)


STEP = np.array([7], np.int64)


def create(folder: Path) -> None:
    @flow.global_function()
    def job() -> None:
        flow.summary.create_summary_writer(str(folder))

    job()


def flush() -> None:
    @flow.global_function()
    def job() -> None:
        flow.summary.flush_summary_writer()

    job()


@pytest.mark.parametrize("where", ["0:0", "0:0-1"])
def test_numbers_and_histograms_at_every_step(tmp_path: Path, where: str) -> None:
    flow.config.cpu_device_num(2)

    @flow.global_function()
    def job(x: Numpy.Placeholder((3, 4)), step: Numpy.Placeholder((1,), dtype=flow.int64)) -> Numpy:
        with flow.scope.placement("cpu", where):
            total = flow.math.reduce_sum(x)
            flow.summary.scalar(total, step, "loss")
            flow.summary.histogram(x, step, "weights")
            return total

    create(tmp_path)
    x = np.linspace(-1, 2, 12, dtype=np.float32).reshape(3, 4)
    for step in range(3):
        job(x * step, np.array([step], np.int64))
    flush()
    first, *rest = written(tmp_path)
    assert first["file_version"] == b"brain.Event:2"
    values = [(e["step"], e["summary"]["value"][0]) for e in rest]
    numbers = [(s, v["simple_value"]) for s, v in values if v["tag"] == b"loss"]
    assert numbers == [(s, pytest.approx(6 * s)) for s in range(3)]
    shown = next(v["histo"] for s, v in values if v["tag"] == b"weights" and s == 2)
    assert shown["num"] == 12
    assert (shown["min"], shown["max"]) == (-2, 4)
    assert shown["sum"] == pytest.approx(12)
    assert sum(shown["bucket"]) == 12
    limits = [low for low, n in zip(shown["bucket_limit"], shown["bucket"], strict=True) if n]
    assert min(limits) > -2.1
    assert max(limits) < 4.5


def test_tags_of_blobs_messages_and_images(tmp_path: Path) -> None:
    config = flow.FunctionConfig()
    config.default_logical_view(flow.scope.mirrored_view())

    @flow.global_function(function_config=config)
    def number(
        value: ListNumpy.Placeholder((1,)),
        step: ListNumpy.Placeholder((1,), dtype=flow.int64),
        tag: ListNumpy.Placeholder((50,), dtype=flow.int8),
    ) -> None:
        flow.summary.scalar(value, step, tag)

    @flow.global_function(function_config=config)
    def message(text: ListNumpy.Placeholder((1500,), dtype=flow.int8)) -> None:
        flow.summary.pb(text)

    @flow.global_function()
    def picture(x: Numpy.Placeholder((2, 5, 4, 3), dtype=flow.uint8)) -> None:
        flow.summary.image(x)

    create(tmp_path)
    number([np.array([2.5], np.float32)], [STEP], [as_bytes("accuracy")])
    message([as_bytes(str(flow.summary.text(["vgg", 'a "b"\n'])))])
    pixels = np.arange(120, dtype=np.uint8).reshape(2, 5, 4, 3)
    picture(pixels)
    flush()
    _, one, texts, shown = written(tmp_path)
    assert one["summary"]["value"][0]["tag"] == b"accuracy"
    assert one["step"] == 7
    assert texts["summary"]["value"][0]["tensor"]["string_val"] == [b"vgg", b'a "b"\n']
    assert [v["tag"] for v in shown["summary"]["value"]] == [b"image0", b"image1"]
    file = shown["summary"]["value"][1]["image"]["encoded_image_string"]
    rows = zlib.decompress(file[file.index(b"IDAT") + 4 : file.index(b"IEND") - 8])
    assert np.array_equal(
        np.frombuffer(rows, np.uint8).reshape(5, 13)[:, 1:].reshape(5, 4, 3), pixels[1]
    )


def test_hyperparameters() -> None:
    made = flow.summary.hparams(
        {
            flow.summary.Hparam("rate", flow.summary.RealRange(0.01, 0.1)): 0.02,
            flow.summary.Hparam("optimizer", flow.summary.ValueSet(["sgd", "adam"])): "adam",
            flow.summary.Metric("loss", float): np.float32(0.5),
            "magic": True,
        }
    )
    value = read("Summary", encoded("Summary", parsed("Summary", str(made))))["value"][0]
    content = read("HParamsPluginData", value["metadata"]["plugin_data"]["content"])
    started = content["session_start_info"]
    given = {entry["key"]: entry["value"] for entry in started["hparams"]}
    assert given[b"rate"] == {"number_value": 0.02}
    assert given[b"optimizer"] == {"string_value": b"adam"}
    assert given[b"magic"] == {"bool_value": 1}
    assert started["metrics"] == [{"key": b"loss", "value": {"number_value": 0.5}}]


def test_text_messages_round_trip() -> None:
    made = Message("Summary", events.scalar("a\\b\x01é", -1.5))
    assert encoded("Summary", parsed("Summary", str(made))) == made.SerializeToString()
    for wrong in ("value {", "value { tag: 3 }", "no_field: 1", "value }"):
        with pytest.raises(DataError, match="text of a Summary"):
            parsed("Summary", wrong)
    assert set(SCALARS) == {"double", "float", "int", "bool", "string", "bytes"}


def test_graphs_and_projections(tmp_path: Path) -> None:
    @flow.global_function()
    def job(x: Numpy.Placeholder((2,))) -> Numpy:
        return flow.math.relu(x, name="above")

    graph = flow.summary.Graph(str(tmp_path))
    graph.write_structure_graph()
    nodes = json.loads(Path(str(graph.structure_graph_filename)).read_text())["job"]
    assert {"above"} <= {node["name"] for node in nodes}
    with pytest.raises(OSError, match="exists"):
        graph.write_structure_graph()
    projector = flow.summary.Projector(str(tmp_path))
    points = np.ones((2, 3), np.float32)
    with pytest.raises(FlowError, match="no file"):
        projector.embedding_projector(value=points)
    projector.create_embedding_projector()
    projector.embedding_projector(
        points, [0, 1], step=1, sample_name="s", sample_type="image", x=points
    )
    data = read("SummaryProjector", Path(str(projector.embedding_filename)).read_bytes())
    assert data["projector"][0]["value"]["content"] == points.tobytes()
    assert data["sample"]["name"] == b"s"


@pytest.mark.parametrize(
    "made",
    [
        lambda: flow.summary.IntegerRange(2, 1),
        lambda: flow.summary.IntegerRange(1.0, 2),
        lambda: flow.summary.RealRange(1, 2),
        lambda: flow.summary.ValueSet([1, "a"]),
        lambda: flow.summary.Hparam("a", 3),
        lambda: flow.summary.Metric("a", str),
        lambda: flow.summary.hparams({"a": [1]}),
        lambda: flow.summary.text([]),
        lambda: flow.summary.Graph(),
    ],
)
def test_invalid_arguments_are_rejected(made: Any) -> None:
    with pytest.raises(FlowError, match="found:"):
        made()


def test_writing_requires_a_file_and_a_step() -> None:
    @flow.global_function()
    def job(x: Numpy.Placeholder((1,)), step: Numpy.Placeholder((1,), dtype=flow.int64)) -> None:
        flow.summary.scalar(x, step, "a")

    with pytest.raises(DataError, match="create_summary_writer"):
        job(np.ones(1, np.float32), STEP)

    @flow.global_function()
    def wrong(x: Numpy.Placeholder((2,))) -> None:
        flow.summary.scalar(x, x, "a")

    with pytest.raises(InferenceError, match="a step"):
        wrong(np.ones(2, np.float32))
