"""What ``import oneflow`` loads, and its time as a multiple of that of numpy's import."""

from __future__ import annotations

import resource
import statistics
import sys

import processes
import pytest

MOST = 0.5
"""The largest accepted CPU time beyond numpy's import, as a multiple of the latter."""

CODE = """
from time import process_time
start = process_time()
import numpy
after_numpy = process_time()
import oneflow
print((process_time() - after_numpy) / (after_numpy - start))
"""


def printed(code: str) -> list[str]:
    return processes.run([sys.executable, "-I", "-c", code], check=True).stdout.split()


@pytest.mark.slow
def test_time_beyond_numpy() -> None:
    ratios = [float(printed(CODE)[0]) for _ in range(5)]
    assert statistics.median(ratios) < MOST


@pytest.mark.parametrize("use", ["", "; oneflow.__version__", "; hasattr(oneflow, '__wrapped__')"])
def test_import_loads_no_other_module(use: str) -> None:
    code = (
        f"import sys; old = {{*sys.modules}}; import oneflow{use}; print(*({{*sys.modules}} - old))"
    )
    own = {
        name
        for name in printed(code)
        if name.partition(".")[0] in ("numpy", "flow_core", "oneflow")
    }
    assert own == {"flow_core", "oneflow"}


MOST_OF_HELP = 4.0
"""The largest accepted CPU time of ``flow --help``, as a multiple of that of a numpy import."""


def cpu_seconds(*arguments: str) -> float:
    """Return the CPU time of a Python process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    processes.run([sys.executable, "-I", *arguments], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def test_time_of_the_commands_help() -> None:
    ratios = [
        cpu_seconds("-m", "oneflow", "--help") / cpu_seconds("-c", "import numpy") for _ in range(3)
    ]
    assert statistics.median(ratios) < MOST_OF_HELP


def test_help_registers_no_ops_and_kernels() -> None:
    code = """
import sys
from flow_core.cli.app import cli
cli(["--help"], standalone_mode=False)
print("loaded:", *(name for name in sys.modules if name.startswith(("flow_core.builtin", "rich"))))
"""
    assert printed(code)[-1] == "loaded:"


def test_a_module_of_the_api_is_loaded_on_use() -> None:
    code = "import sys, oneflow; oneflow.sysconfig; print('oneflow._names' in sys.modules)"
    assert printed(code) == ["False"]


def test_all_names() -> None:
    import oneflow

    listed = {*oneflow.__all__}
    assert {"global_function", "float32", "nn", "BlobDef"} <= listed
    assert listed <= {*dir(oneflow)}
    assert not {name for name in listed if name.startswith("_")}
    for name in listed:
        getattr(oneflow, name)
    with pytest.raises(AttributeError, match="did you mean global_function"):
        oneflow.global_functoin  # noqa: B018
