"""The example of docs/plugins/testing.md behaves as documented."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import processes
import pytest

import flow_core

PAGE = Path(__file__).parents[4] / "docs" / "plugins" / "testing.md"


@pytest.fixture(scope="module")
def blocks() -> list[str]:
    if not PAGE.exists():  # an sdist has no docs
        pytest.skip(f"{PAGE} is not there")
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def run_pytest(folder: Path, blocks: list[str]) -> processes.Completed[str]:
    plugin, *tests = blocks
    (folder / "cubes.py").write_text(plugin)
    (folder / "test_cubes.py").write_text("\n\n".join(tests))
    path = os.pathsep.join((str(folder), str(Path(flow_core.__file__).parents[1])))
    command = (sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-W", "error")
    return processes.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": path})


@pytest.mark.slow
def test_documented_example_passes(tmp_path: Path, blocks: list[str]) -> None:
    done = run_pytest(tmp_path, blocks)
    assert done.returncode == 0, done.stdout + done.stderr
    out = done.stdout
    assert "test_cubes.py::TestKernels::test_agrees[cube-float32]" in out
    assert "not accepted: no kernel of this op supports this element type" in out
    assert "test_cubes.py::TestEmulatedGpuKernels::test_tiles[cube-float64]" in out
    assert "test_cubes.py::TestSbpRules::test_no_rule_is_missing[cube]" in out


@pytest.mark.slow
def test_mistakes_in_the_example_are_detected(tmp_path: Path, blocks: list[str]) -> None:
    right, wrong = "g.dy * g.x * g.x * 3", "g.dy * g.x * 3"
    assert right in blocks[0]
    done = run_pytest(tmp_path, [blocks[0].replace(right, wrong), *blocks[1:]])
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED test_cubes.py::TestGradients::test_gradient[cube]" in done.stdout
