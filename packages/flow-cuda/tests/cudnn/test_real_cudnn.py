"""The real cuDNN library: our calls match its frontend, and it plans our graphs without a GPU."""

import inspect
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import processes
import pytest
from cuda_simulator.cudnn import FakeGraph, FakeTensor, SimulatedCudnn

from flow_cuda.cudnn.plans import TYPES
from flow_cuda.cudnn.problems import FAMILIES

SCRIPT = Path(__file__).parents[4] / "tests" / "helpers" / "planned_without_gpu.py"


def library() -> Any:
    """Return the frontend, a small wheel that can be imported without a GPU."""
    return pytest.importorskip("cudnn", reason="nvidia-cudnn-frontend is not installed")


def public(kind: type) -> list[str]:
    return [
        name
        for name, value in vars(kind).items()
        if inspect.isfunction(value) and not name.startswith("_")
    ]


OWN = {"tensors", "type_name", "itemsize", "convolved"}
"""Attributes of our graph that the library's graph lacks."""


def parameters(function: Any) -> str:
    """Return a function's parameter names, taken from the binding's docstring."""
    try:
        return str(inspect.signature(function))
    except ValueError:
        return str(function.__doc__)


@pytest.mark.parametrize("name", [n for n in public(FakeGraph) if n not in OWN])
def test_graphs_support_the_simulated_calls(name: str) -> None:
    theirs = getattr(library().pygraph, name)
    ours = inspect.signature(getattr(FakeGraph, name)).parameters.values()
    wanted = [p.name for p in ours if p.kind is p.KEYWORD_ONLY]
    text = parameters(theirs)
    if "**kwargs" not in text:
        assert [w for w in wanted if not re.search(rf"\b{w}\b", text)] == []


def test_tensors_support_the_simulated_setters() -> None:
    theirs = library().pygraph.conv_fprop and library().tensor
    assert [name for name in public(FakeTensor) if not hasattr(theirs, name)] == []


def test_names_match_the_library() -> None:
    theirs = library()
    notes = {n for family in FAMILIES.values() for n in (*family.needs, *family.refuses)}
    assert all(hasattr(theirs.numerical_note, name) for name in notes)
    ours = SimulatedCudnn
    for kind in ("data_type", "heur_mode", "numerical_note"):
        for member in getattr(ours, kind):
            assert hasattr(getattr(theirs, kind), member.name)
    assert len(TYPES) == len(set(TYPES.values()))


def test_cudnn_plans_our_graphs() -> None:
    """For a described H200, on machines with the cuDNN wheel."""
    library()
    quiet = {**os.environ, "CUDNN_LOGLEVEL_DBG": "0"}
    done = processes.run([sys.executable, str(SCRIPT)], env=quiet)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1]
        pytest.skip(f"cuDNN itself is not there, or needs more of a driver: {last}")
    answer = json.loads(done.stdout.splitlines()[-1])
    for kind in ("counts", "samples"):
        assert [name for name, count in answer[kind].items() if not count] == []
    found = answer["plans"]
    assert [name for name, plan in found.items() if plan is None] == []
    assert found["small workspace"][1] == 0
    assert found["deterministic"][0] != found["filter_grad float32 channels_first"][0]
    assert found["tf32"][0] != found["forward float32 channels_last"][0]
    for kept in answer["kept"].values():
        assert 10_000 < kept["bytes"] < 10_000_000
        assert any("HANDLE" in words for words in kept["words"]), "no device to load it on"


def test_pooling_is_not_supported_by_the_frontend() -> None:
    """Until then, flow-cuda has its own pooling kernels."""
    graph = library().pygraph
    assert not [name for name in dir(graph) if "resample" in name or "pool" in name]
