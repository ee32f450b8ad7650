"""Loading during concurrent saves to the same path returns the values of a single save."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest

import flow_core
import oneflow as flow
import oneflow.typing as tp
from flow_core.base.errors import CheckpointReplacedError
from flow_core.builtin.formats_plugin import FORMATS
from flow_core.checkpoint import load
from flow_core.checkpoint.store import steadily

pytestmark = pytest.mark.skipif(os.name == "nt", reason="replaces no folders that are open")

Arrays = dict[str, np.ndarray[Any, Any]]
MOST = 6
"""Variables of the largest version; see `kill_helper.version`."""


HELPER = Path(__file__).with_name("kill_helper.py")


def start(path: Path, first: int) -> processes.Program:
    source = str(Path(flow_core.__file__).parents[1])
    command = [sys.executable, "-W", "ignore", str(HELPER), "loop", str(path), str(first), "2"]
    env = {**os.environ, "PYTHONPATH": source, "OPENBLAS_NUM_THREADS": "1"}
    return processes.Program(command, env=env, stderr=None)


@contextmanager
def writers(path: Path) -> Iterator[None]:
    """Start two processes that save odd and even versions in a loop."""
    with ExitStack() as stack:
        children = [stack.enter_context(start(path, first)) for first in (1, 2)]
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "saved\n"
        yield
        assert all(child.poll() is None for child in children), "a writer died"


def of_the_store(path: Path) -> Arrays:
    return steadily(path, lambda: dict(load(path, FORMATS).items()))


def lazily(path: Path) -> Arrays:
    """Return all variables of an already opened mapping, read one at a time."""
    found = flow.checkpoint.get(str(path))
    return {name: variable.numpy() for name, variable in found.items()}


def declare() -> None:
    """Declare a job with every variable that a version may contain."""
    flow.clear_default_session()

    @flow.global_function()
    def job() -> tp.Numpy:
        blobs = [
            flow.get_variable(f"block{i}/weight", (50, 7), initializer=flow.zeros_initializer())
            for i in range(MOST)
        ]
        return flow.math.add_n(blobs)

    flow.get_all_variables()


def of_the_session(load_all: Callable[[str], None]) -> Callable[[Path], Arrays]:
    def loaded(path: Path) -> Arrays:
        zeros = {f"block{i}/weight": np.zeros((50, 7), np.float32) for i in range(MOST)}
        flow.load_variables(zeros)
        load_all(str(path))
        values = {name: value.numpy() for name, value in flow.get_all_variables().items()}
        return {name: value for name, value in values.items() if value.any()}

    return loaded


WAYS: dict[str, Callable[[Path], Arrays]] = {
    "store": of_the_store,
    "get": lazily,
    "CheckPoint": of_the_session(lambda path: flow.train.CheckPoint().load(path, strict=False)),
    "load_variables": of_the_session(
        lambda path: flow.load_variables(flow.checkpoint.get(path), ignore_mismatch=True)
    ),
}
NEVER_GIVE_UP = ("store", "CheckPoint")
"""Ways that read everything in one call and restart if the checkpoint was replaced."""


def check(arrays: Arrays) -> int:
    """Return the version of the arrays after checking that all of them agree."""
    versions = {int(number) for array in arrays.values() for number in np.unique(array)}
    assert len(versions) == 1, f"a mix of {versions}"
    version = versions.pop()
    assert len(arrays) == 4 + version % 3
    return version


def run(path: Path, way: str, loads: int) -> None:
    """Load at least ``loads`` times, until several saves were seen: writers may start slowly."""
    declare()
    seen, done, refused = set(), 0, 0
    with writers(path):
        while done < loads or len(seen) < 5:
            done += 1
            try:
                seen.add(check(WAYS[way](path)))
            except CheckpointReplacedError:
                refused += 1
    sys.stdout.write(f"{way}, {path.name}: {done} loads, {len(seen)} saves, {refused} refused\n")
    assert not refused or way not in NEVER_GIVE_UP


needs_safetensors = pytest.mark.skipif(
    importlib.util.find_spec("safetensors") is None,
    reason="the package safetensors is not installed (an extra of flow-core)",
)
each_path = pytest.mark.parametrize(
    "name", ["model", "plain", pytest.param("model.safetensors", marks=needs_safetensors)]
)


@pytest.mark.representative(
    r"\[(CheckPoint-model|get-model\.safetensors)\]",
    "a folder that is read at once, and a file of which parts are read later",
)
@each_path
@pytest.mark.parametrize("way", WAYS)
def test_some_loads_are_consistent(tmp_path: Path, name: str, way: str) -> None:
    run(tmp_path / name, way, 25)


@pytest.mark.exhaustive
@each_path
@pytest.mark.parametrize("way", WAYS)
def test_two_thousand_loads_are_consistent(tmp_path: Path, name: str, way: str) -> None:
    run(tmp_path / name, way, 2000)
