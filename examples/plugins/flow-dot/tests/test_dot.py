"""Exported graphs."""

import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import FlowError


@flow.global_function()
def predict(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
    return flow.layers.dense(x, 4, use_bias=False, name="fc")


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint of the job's variables."""
    flow.train.CheckPoint().init()
    predict.compile()
    flow.checkpoint.save(tmp_path / "model")
    return tmp_path / "model"


def test_ops_types_and_weights_are_in_the_file(checkpoint, tmp_path):
    path = tmp_path / "job.dot"
    path.write_text("old")
    flow.checkpoint.export(predict, checkpoint, path, format="dot", rankdir="LR")
    text = path.read_text()
    assert text.startswith('digraph "predict" {\n  rankdir="LR"\n')
    assert '"Input_x" -> "fc-matmul" [label="float32[2,3]"]' in text
    assert '"fc-weight" [label="variable\\n48 bytes"]' in text
    assert '"fc-matmul" -> "result 0" [label="float32[2,4]"]' in text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["job.dot", "model"]


def test_an_unknown_format_lists_the_known_ones(checkpoint, tmp_path):
    with pytest.raises(FlowError, match="did you mean dot"):
        flow.checkpoint.export(predict, checkpoint, tmp_path / "job.dot", format="dott")
