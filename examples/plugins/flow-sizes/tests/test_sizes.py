"""The command, as `flow` runs it."""

import numpy as np
import pytest
from click.testing import CliRunner

import oneflow as flow
from flow_core.cli.app import cli


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint of two variables."""
    path = tmp_path / "model"
    flow.checkpoint.save(path, {"b": np.zeros(5, np.float32), "w": np.ones((3, 5), np.float32)})
    return str(path)


@pytest.mark.parametrize(("options", "names"), [((), ["w", "b"]), (("--top", "1"), ["w"])])
def test_variables_are_listed_by_size(checkpoint, options, names):
    done = CliRunner().invoke(cli, ["sizes", checkpoint, *options])
    assert done.exit_code == 0, done.output
    *rows, last = done.output.splitlines()
    assert [row.split()[-1] for row in rows] == names
    assert rows[0].split()[:3] == ["float32", "3,5", "60"]
    assert last == "80 bytes in 2 variables"


def test_a_missing_checkpoint_is_an_error_of_usage(tmp_path):
    done = CliRunner().invoke(cli, ["sizes", str(tmp_path / "none")])
    assert done.exit_code == 2
    assert "does not exist" in done.output
