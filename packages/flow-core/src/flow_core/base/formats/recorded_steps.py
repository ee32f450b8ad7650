"""Files of recorded steps: fed arrays, results, and the variables before some of the steps.

A file is an uncompressed zip archive: ``header`` is JSON text, and each other member holds the
bytes of an array whose type and shape are in the header, since NumPy's format lacks bfloat16.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import ReplayError

VERSION = 1


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A step."""

    job: str
    step: int
    feeds: tuple[Array, ...]  # the fed arrays, in the order of the job's inputs
    # In the order of the plan, None for large ones; None if the step failed.
    results: tuple[Array | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """Steps that can be replayed."""

    count: int  # how many of the steps were asked for; those before lead from the variables to them
    steps: tuple[RecordedStep, ...]  # in the order in which they ran
    # Before some steps, by position of the step, with the first one; nothing but recorded steps has
    # changed them from one of these steps to the next.
    variables: Mapping[int, Mapping[str, Array]]


def write_recording(file: Path, recording: Recording) -> None:
    """Write a file; another file of that name is replaced at once."""
    arrays: list[Array] = []
    types: list[tuple[str, list[int]]] = []

    def kept(array: Array | None) -> int | None:
        if array is None:
            return None
        types.append((array.dtype.name, list(array.shape)))
        arrays.append(array)
        return len(arrays) - 1

    steps = [
        {
            "job": step.job,
            "step": step.step,
            "feeds": [kept(x) for x in step.feeds],
            "results": None if step.results is None else [kept(x) for x in step.results],
        }
        for step in recording.steps
    ]
    variables = [
        [position, {name: kept(array) for name, array in values.items()}]
        for position, values in recording.variables.items()
    ]
    header = {"version": VERSION, "count": recording.count, "steps": steps}
    header |= {"variables": variables, "arrays": types}
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    with zipfile.ZipFile(partial, "w") as archive:
        archive.writestr(zipfile.ZipInfo("header"), json.dumps(header))
        for i, array in enumerate(arrays):
            archive.writestr(zipfile.ZipInfo(f"a{i}"), np.ascontiguousarray(array).tobytes())
    partial.replace(file)


def read_recording(file: Path) -> Recording:
    """Read a file; raise `ReplayError` if it is no file of recorded steps."""
    try:
        with zipfile.ZipFile(file) as archive:
            header = json.loads(_member(archive, "header"))
            if header["version"] != VERSION:
                raise ReplayError(
                    f"reading {file}",
                    found=f"version {header['version']!s:.20}",
                    allowed=str(VERSION),
                )
            arrays = [
                np.frombuffer(_member(archive, f"a{i}"), as_dtype(str(dtype)).numpy)
                .reshape(shape)
                .copy()
                for i, (dtype, shape) in enumerate(header["arrays"])
            ]
        return _decoded(header, arrays)
    except ReplayError:
        raise
    except Exception as error:  # readers of archives, JSON and arrays raise many types
        raise ReplayError(
            f"reading {file}",
            found=f"{type(error).__name__}: {error!s:.200}",
            allowed="a file that a program wrote with FLOW_REPLAY",
            hint="flow run --record FILE SCRIPT.PY",
        ) from error


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return the bytes of a member, which must not be compressed: it is as large as it says."""
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"compressed member {name!r}")
    return archive.read(info)


def _decoded(header: Any, arrays: list[Array]) -> Recording:
    def array(index: int | None) -> Any:
        return None if index is None else arrays[index]

    steps = tuple(
        RecordedStep(
            str(s["job"]),
            int(s["step"]),
            tuple(map(array, s["feeds"])),
            None if s["results"] is None else tuple(map(array, s["results"])),
        )
        for s in header["steps"]
    )
    variables = {
        int(position): {name: array(index) for name, index in values.items()}
        for position, values in header["variables"]
    }
    return Recording(int(header["count"]), steps, variables)
