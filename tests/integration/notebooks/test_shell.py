"""Programs in the cells of a notebook, run by IPython's shell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from flow_core.frontend.job.progress import STAGES, listeners
from flow_core.observe.notebook import SHOWN, ShortError, install

interactiveshell = pytest.importorskip("IPython.core.interactiveshell")

IMPORTS = """
import numpy as np
import oneflow as flow
import oneflow.typing as tp
"""

JOB = """
@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
    begin = flow.glorot_uniform_initializer()
    h = flow.layers.dense(x, WIDTH, flow.math.tanh, kernel_initializer=begin, name="hidden")
    y = flow.layers.dense(h, 2, kernel_initializer=begin, name="output")
    loss = flow.math.reduce_mean(flow.math.square(y + flow.get_variable("bias", (2,))))
    rate = flow.optimizer.PiecewiseConstantScheduler([], [0.1])
    flow.optimizer.SGD(rate, momentum=0.9).minimize(loss)
    return loss
"""

RUN = "loss = train(np.ones((4, 3), np.float32))"


@pytest.fixture
def shell(restored_program: None) -> Iterator[Any]:
    found = interactiveshell.InteractiveShell()
    main = found.user_module
    main.__dict__.pop("__file__", None)
    flow.load_ipython_extension(found)
    found.run_cell(IMPORTS).raise_error()
    yield found
    found.history_manager.end_session()


def run(shell: Any, *cells: str) -> None:
    for cell in cells:
        shell.run_cell(cell).raise_error()


def html(shell: Any, expression: str) -> str:
    formatted, _ = shell.display_formatter.format(shell.ev(expression))
    text: str = formatted["text/html"]
    return text


def test_jobs_plans_and_variables_have_tables(shell: Any) -> None:
    run(shell, "WIDTH = 5", JOB)
    assert "not compiled yet" in html(shell, "train")
    run(shell, RUN)
    assert "float32[4,3]" in html(shell, "train")
    assert "tasks per step" in html(shell, "train")
    assert "bytes across devices per step" in html(shell, "train.plan()")
    weight = html(shell, 'flow.get_all_variables()["hidden-weight"]')
    assert "float32[5,3]" in weight
    assert "range" in weight


def test_the_repr_of_a_plan_is_short(shell: Any) -> None:
    run(shell, "WIDTH = 5", JOB)
    assert len(repr(shell.ev("train.plan()"))) < 200


def test_a_wider_layer_keeps_the_other_variables(shell: Any) -> None:
    run(shell, "WIDTH = 5", JOB, RUN, RUN)
    before = {name: v.numpy() for name, v in flow.get_all_variables().items()}
    run(shell, "WIDTH = 7", JOB)
    failed = shell.run_cell(RUN)
    error = str(failed.error_in_exec)
    assert "flow.drop_variables('hidden-weight')" in error
    run(shell, "names = flow.drop_variables('hidden-*', 'output-weight')", RUN)
    assert {"hidden-weight", "hidden-weight-momentum", "hidden-bias"} < set(shell.ev("names"))
    after = {name: v.numpy() for name, v in flow.get_all_variables().items()}
    assert after["hidden-weight"].shape == (7, 3)
    assert after["output-weight"].shape == (2, 7)
    assert int(after["System-Train-TrainStep-train"][0]) == 3
    assert not np.array_equal(before["bias"], np.zeros(2))
    assert np.abs(after["bias"] - before["bias"]).max() < 1  # trained on, not begun anew
    assert set(before) == set(after)


def test_an_unknown_variable_is_not_dropped(shell: Any) -> None:
    run(shell, "WIDTH = 5", JOB, RUN)
    failed = shell.run_cell("flow.drop_variables('hiden-weight')")
    assert "did you mean hidden-weight" in str(failed.error_in_exec)


def test_errors_show_few_lines_and_fold_the_rest(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run(shell, "WIDTH = 5", JOB)
    capsys.readouterr()
    failed = shell.run_cell("train(np.ones((4, 4), np.float32))")
    shown = capsys.readouterr().out
    assert type(failed.error_in_exec).__name__ in shown
    assert "found" in shown
    assert len(shown.splitlines()) <= SHOWN + 1
    assert "Traceback" not in shown
    error = failed.error_in_exec
    assert "Traceback" in ShortError(error, error.__traceback__).folded()
    capsys.readouterr()
    shell.run_cell("1 / 0")
    assert "Traceback" in capsys.readouterr().out  # other errors are shown as usual


class Published:
    """A publisher that keeps what is displayed, by display id."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.last: dict[str, str] = {}

    def publish(self, data: Any, transient: Any, update: bool = False) -> None:
        assert update == (transient["display_id"] in self.last)
        self.said.append(data["text/html"])
        self.last[transient["display_id"]] = data["text/html"]


class Kernel:
    """A shell of a notebook, as far as progress bars know it."""

    kernel = None

    def __init__(self) -> None:
        self.display_pub = Published()

    def set_custom_exc(self, kinds: Any, handler: Any) -> None:
        pass


def test_a_notebook_shows_the_stages_of_a_job(shell: Any) -> None:
    kernel = Kernel()
    install(kernel)
    install(kernel)  # as by %load_ext
    try:
        run(shell, "WIDTH = 5", JOB, RUN, RUN)
    finally:
        listeners.clear()
    bars = [text for text in kernel.display_pub.said if text]
    assert len(bars) == len(STAGES)
    assert all(f"{stage} job" in bar for stage, bar in zip(STAGES, bars, strict=True))
    assert set(kernel.display_pub.last.values()) == {""}


def test_a_terminal_shows_no_bar(shell: Any) -> None:
    assert not listeners
