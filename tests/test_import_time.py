"""What ``import oneflow`` and ``flow --help`` load and do, counted: seconds depend on the load."""

from __future__ import annotations

import json
import sys

import processes
import pytest
from suite import work
from suite.work import Work

MOST = {"import oneflow": Work(2_000, 25_000), "flow --help": Work(262_000, 1_000_000)}
"""The most that each may do.

On Python 3.11 to 3.13, the import makes 1,210 calls and executes 18 kB of code beyond numpy's
import; the help makes 220,000 calls and executes 889 kB on 3.11, 253,000 and 825 kB on 3.12.
"""
PIECES = {
    "import oneflow": ["import numpy", "import oneflow"],
    "flow --help": ["import sys; sys.argv[1:] = ['--help']; import oneflow.__main__"],
}
UNNECESSARY = (
    "import asyncio, ssl",
    "import flow_core.compiler.compile",
    "[len('') for _ in range(50_000)]",
)
"""What exceeds these limits if a start does it, too."""


def printed(*arguments: str) -> list[str]:
    return processes.run([sys.executable, "-I", *arguments], check=True).stdout.splitlines()


@pytest.mark.parametrize("start", MOST)
def test_a_start_does_little(start: str) -> None:
    lines = printed(work.__file__, *PIECES[start], *UNNECESSARY)
    found, *others = [Work(**json.loads(line)) for line in lines][-1 - len(UNNECESSARY) :]
    assert found.within(MOST[start])
    for piece, other in zip(UNNECESSARY, others, strict=True):
        assert not (found + other).within(MOST[start]), piece


@pytest.mark.parametrize("use", ["", "; oneflow.__version__", "; hasattr(oneflow, '__wrapped__')"])
def test_import_loads_no_other_module(use: str) -> None:
    code = (
        f"import sys; old = {{*sys.modules}}; import oneflow{use}; print(*({{*sys.modules}} - old))"
    )
    own = {
        name
        for name in printed("-c", code)[0].split()
        if name.partition(".")[0] in ("numpy", "flow_core", "oneflow")
    }
    assert own == {"flow_core", "oneflow"}


@pytest.mark.parametrize("words", ["flow --help", "flow data conv", "flow serve --po", "flow st"])
def test_help_and_completion_load_no_large_module(words: str) -> None:
    """The commands are those of core and of plugins, whose modules are imported."""
    shell = {"_FLOW_COMPLETE": "bash_complete", "COMP_WORDS": words}
    shell["COMP_CWORD"] = str(words.count(" "))
    code = f"""
import os, sys
from flow_core.cli.app import cli
os.environ |= {{}} if {words.endswith("--help")} else {shell}
try:
    cli({words.split()[1:]}, prog_name="flow")
except SystemExit:
    unused = "asyncio", "flow_core.builtin", "flow_core.compiler", "numpy", "rich", "ssl"
    print("loaded:", *(name for name in sys.modules if name.startswith(unused)))
"""
    *answer, loaded = printed("-c", code)
    assert answer
    assert loaded == "loaded:"


def test_a_step_of_float32_does_not_load_bfloat16() -> None:
    """The import of ml_dtypes 0.7 takes half a second, as long as all else that a step needs."""
    code = """
import sys
import numpy as np
import oneflow as flow
import oneflow.typing as tp

@flow.global_function(type="train")
def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
    loss = flow.math.reduce_mean(flow.layers.dense(flow.cast(x, flow.float32), 2, name="dense"))
    flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
    return loss

job(np.ones((4, 3), np.float32))
print("ml_dtypes" in sys.modules)
"""
    assert printed("-c", code) == ["False"]


def test_a_module_of_the_api_is_loaded_on_use() -> None:
    code = "import sys, oneflow; oneflow.sysconfig; print('oneflow._names' in sys.modules)"
    assert printed("-c", code) == ["False"]


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
