"""What happens in a notebook: cells that are run again, changed, or stopped."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from flow_core.base.errors import AnnotationError, JobError, VariableError
from flow_core.frontend.session.session import default_session

TRAIN = """
@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((SIZE,))) -> tp.Numpy:
    w = flow.get_variable("w", (SIZE,), initializer=flow.ones_initializer())
    loss = flow.math.reduce_sum(w * x)
    rate = flow.optimizer.PiecewiseConstantScheduler([], [RATE])
    flow.optimizer.SGD(rate, momentum=0).minimize(loss)
    return w
"""
ONES = np.ones(2, np.float32)


class Notebook:
    """Cells that share a namespace, which no file stands behind."""

    def __init__(self, **names: Any) -> None:
        self.names = {"__name__": "__main__", "SIZE": 2, "RATE": 0.25, **names}
        self.run("import oneflow as flow, oneflow.typing as tp")

    def run(self, cell: str) -> Any:
        """Runs a cell; gives the job ``train``."""
        exec(compile(textwrap.dedent(cell), "cell", "exec"), self.names)
        return self.names.get("train")


def steps() -> int:
    return int(flow.get_all_variables()["System-Train-TrainStep-train"].numpy()[0])


def test_a_cell_that_is_run_again_goes_on() -> None:
    notebook = Notebook()
    train = notebook.run(TRAIN)
    train(ONES)
    np.testing.assert_array_equal(train(ONES), [0.75, 0.75])
    train = notebook.run("RATE = 1.0" + TRAIN)
    np.testing.assert_array_equal(train(ONES), [0.5, 0.5])
    np.testing.assert_array_equal(train(ONES), [-0.5, -0.5])
    assert steps() == 4
    assert default_session().jobs == [train]


def test_a_cell_that_was_wrong_is_forgotten(tmp_path: Path) -> None:
    notebook = Notebook()
    wrong = TRAIN.replace("return w", "return 3")
    with pytest.raises(AnnotationError):
        notebook.run(wrong)(ONES)
    train = notebook.run(TRAIN)
    np.testing.assert_array_equal(train(ONES), ONES)
    flow.checkpoint.save(str(tmp_path / "saved"))  # traces all jobs: the wrong one is none of them


def test_a_variable_of_another_shape_says_how_to_drop_it() -> None:
    notebook = Notebook()
    notebook.run(TRAIN)(ONES)
    train = notebook.run("SIZE = 3" + TRAIN)
    with pytest.raises(VariableError, match=r"flow\.drop_variables\('w'\)"):
        train(np.ones(3, np.float32))
    flow.drop_variables("w")
    assert notebook.run(TRAIN)(np.ones(3, np.float32)).shape == (3,)
    assert steps() == 2, "the count of the job that was replaced goes on"


@pytest.mark.parametrize(
    ("names", "cell"),
    [
        ({"__file__": "train.py"}, TRAIN),
        ({"__name__": "models"}, TRAIN),
        ({}, "def make():" + textwrap.indent(TRAIN, "    ") + "\nmake()"),
    ],
)
def test_elsewhere_a_second_job_of_a_name_is_a_mistake(names: Any, cell: str) -> None:
    notebook = Notebook(**names)
    notebook.run(cell)
    with pytest.raises(JobError, match="another train job of that name"):
        notebook.run(cell)


def test_a_step_that_is_stopped_can_be_followed_by_another() -> None:
    notebook = Notebook()
    train = notebook.run(TRAIN)
    train(ONES)
    executable, stop = train.executable(), KeyboardInterrupt()
    run = executable.run

    def stopped(feeds: Any) -> Any:
        executable.run = run
        raise stop

    executable.run = stopped
    with pytest.raises(KeyboardInterrupt):
        train(ONES)
    np.testing.assert_array_equal(train(ONES), [0.75, 0.75])
    flow.sync_default_session()


def test_cells_show_what_things_are() -> None:
    notebook = Notebook()
    shown: list[str] = []
    notebook.names["shown"] = shown
    notebook.run("""
        @flow.global_function()
        def double(x=flow.FixedTensorDef((2,))):
            shown.append(f"{x} {x!r}")
            return x + x
    """)
    double = notebook.names["double"]
    assert repr(double) == "<predict job 'double' at cell:2>"
    assert "job(...).get() waits" in repr(double(ONES))
    assert shown == ["BlobDef(Input_x:0: float32[2]) BlobDef(Input_x:0: float32[2])"]
