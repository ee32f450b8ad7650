"""A notebook, run by a kernel of Jupyter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import processes
import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

CELLS = (
    "import numpy as np\nimport oneflow as flow\nimport oneflow.typing as tp",
    """
@flow.global_function()
def double(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
    return x * 2
""",
    "double(np.ones((4, 3), np.float32)).sum()",
    "double",
    "double(np.ones((4, 4), np.float32))",
    "1 / 0",
)


@pytest.fixture(scope="module", autouse=True)
def event_loop() -> Iterator[None]:
    """The loop that nbclient would create, and never close."""
    loop = pytest.importorskip("jupyter_core.utils").ensure_event_loop()
    yield
    loop.close()


def test_tables_and_folded_errors() -> None:
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(
        notebook, timeout=round(processes.scaled(90)), kernel_name="python3", allow_errors=True
    ).execute()
    *_, called, shown, failed, other = notebook.cells
    assert "24.0" in html_or_text(called)[-1]
    assert html_or_text(called)[:-1] == [""] * 3  # the bars of three stages, which have ended
    assert "predict job" in html_or_text(shown)[0]
    error, folded = failed.outputs
    text = "\n".join(error["traceback"])
    assert (error["output_type"], error["ename"]) == ("error", "FeedError")
    assert "allowed: shape (4, 3)" in text
    assert "Traceback" not in text
    assert folded["data"]["text/html"].startswith("<details>")
    assert "Traceback" in folded["data"]["text/html"]
    assert other.outputs[0]["ename"] == "ZeroDivisionError"


def test_programs_that_run_notebooks_report_errors() -> None:
    cells = [nbformat.v4.new_code_cell(text) for text in (*CELLS[:2], CELLS[4])]
    client = nbclient.NotebookClient(
        nbformat.v4.new_notebook(cells=cells),
        timeout=round(processes.scaled(90)),
        kernel_name="python3",
    )
    with pytest.raises(nbclient.exceptions.CellExecutionError) as error:
        client.execute()
    assert "FeedError: " in str(error.value)
    assert "allowed: shape (4, 3)" in str(error.value)


def html_or_text(cell: Any) -> list[str]:
    found = [output.get("data", {}) for output in cell.outputs]
    return [data.get("text/html", data.get("text/plain", "")) for data in found]
