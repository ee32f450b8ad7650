"""The annotations under a static type checker."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import flow_core
import flow_typing

PROGRAM = '''
from collections.abc import Callable
from typing import Annotated, Any, Dict, ParamSpec, Tuple, TypeVar

import flow_typing as tp

P = ParamSpec("P")
R = TypeVar("R")


def job(function: Callable[P, R]) -> Callable[P, R]:
    return function


class Blob(Any):  # type: ignore[misc]
    """A placeholder: assignable to whatever the annotation says."""


Image = Annotated[Any, tp.Numpy.Placeholder((2, 3))]


@job
def one(x: Image) -> tp.Numpy:
    return Blob()


@job
def pair(x: Image) -> Tuple[tp.Numpy, tp.ListNumpy]:
    return Blob(), Blob()


@job
def lists(x: Image) -> Dict[str, tp.ListListNumpy]:
    return {"a": Blob()}


@job
def later(x: Image) -> tp.Callback[Tuple[tp.Numpy, tp.Numpy]]:
    return Blob()


@job
def original(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
    return Blob()


def take(arguments: Tuple[tp.Numpy, tp.Numpy]) -> None: ...
def take_number(number: int) -> None: ...


reveal_type(one(0))
reveal_type(one(0).shape)
reveal_type(pair(0)[1][0])
reveal_type(lists(0)["a"][0][0])
reveal_type(original(0))
later(0)(take)
later(0)(take_number)
one(0).typo
'''
NUMPY, ARRAY = r"flow_typing\.forms\.Numpy", r"numpy\.ndarray\[.*"
REVEALED = [NUMPY, r"(builtins\.)?tuple\[.*", ARRAY, ARRAY, NUMPY]


def check(tmp_path: Path) -> str:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed (dependency group typecheck)")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\n")
    command = [sys.executable, "-m", "mypy", "--config-file=mypy.ini", "program.py"]
    # mypy finds installed packages itself and rejects explicit paths to them
    roots = {str(Path(p.__file__).parents[1]) for p in (flow_core, flow_typing)}
    paths = os.pathsep.join(sorted(r for r in roots if not r.endswith("site-packages")))
    result = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return result.stdout + result.stderr


def test_mypy_sees_arrays_and_finds_errors(tmp_path: Path) -> None:
    lines = check(tmp_path).splitlines()
    revealed = [m[1] for m in (re.search('Revealed type is "(.*)"', line) for line in lines) if m]
    assert len(revealed) == len(REVEALED), lines
    assert all(map(re.fullmatch, REVEALED, revealed)), lines
    codes = re.findall(r"program\.py.*error: .*\[([a-z-]+)\]$", "\n".join(lines), re.MULTILINE)
    # the call in the annotation of `original`, the wrong callback, the misspelt attribute
    assert codes == ["valid-type", "arg-type", "attr-defined"], lines
