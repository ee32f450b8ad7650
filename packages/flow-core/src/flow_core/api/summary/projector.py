"""Writers of files other than event files: graphs and projections, in OneFlow's own formats.

Args:
    logdir: the folder.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from flow_core.base.errors import FlowError
from flow_core.base.planning import end_script
from flow_core.frontend.session.session import default_session
from flow_core.ir.graph import Graph as LogicalGraph
from flow_core.summary.messages import Fields, encoded

__all__ = ["Graph", "Projector"]


class FileError(FlowError, OSError):
    """The error for a summary file that already exists, or was not created."""


def _folder(what: str, logdir: str | None, name: str) -> Path:
    if logdir is None:
        raise FileError.at_caller(f"flow.summary.{what}", found="no logdir", allowed="a path")
    end_script(f"flow.summary.{what}")
    folder = Path(logdir) / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Graph:
    """A writer of the graphs of the session's jobs, below ``logdir``.

    Raises: FileError: ``logdir`` is missing.
    """

    def __init__(self, logdir: str | None = None) -> None:
        self._folder = _folder("Graph", logdir, "graph")
        self._file: Path | None = None

    @property
    def logdir(self) -> str:
        """The folder of the file."""
        return str(self._folder)

    @property
    def structure_graph_filename(self) -> str | None:
        """The path of the file, or None before the file is written."""
        return None if self._file is None else str(self._file)

    def write_structure_graph(self) -> None:
        """Write ``structure_graph.json``: the ops of each job, with names, inputs and devices.

        Raises:
            FileError: the file was already written.
        """
        if self._file is not None and self._file.exists():
            raise FileError.at_caller(
                "flow.summary.Graph.write_structure_graph",
                found=f"{self._file} exists",
                allowed="one call per Graph object",
            )
        graphs = default_session().each(lambda job: (job.name, job.compile().logical))
        jobs = {name: _nodes(graph) for name, graph in graphs}
        self._file = self._folder / "structure_graph.json"
        self._file.write_text(json.dumps(jobs, indent=1), encoding="utf-8")


def _nodes(graph: LogicalGraph) -> list[dict[str, Any]]:
    return [
        {
            "name": op.name,
            "op": op.type,
            "input": [str(value) for value in op.inputs],
            "device": str(op.placement),
            "output_shape": [list(t.shape) for t in graph.types[op.name]],
        }
        for op in graph.ops.values()
    ]


class Projector:
    """A writer of points and samples of embeddings, or of abnormal gradients.

    Raises: FileError: ``logdir`` is missing.
    """

    def __init__(self, logdir: str | None = None) -> None:
        self._folder = _folder("Projector", logdir, "projector")
        self._files: dict[str, Path] = {}

    @property
    def logdir(self) -> str:
        """The folder of the files."""
        return str(self._folder)

    @property
    def embedding_filename(self) -> str | None:
        """The file of embeddings, or None before `create_embedding_projector`."""
        return self._name("EMBEDDING")

    @property
    def exception_filename(self) -> str | None:
        """The file of exceptions, or None before `create_exception_projector`."""
        return self._name("EXCEPTION")

    def _name(self, kind: str) -> str | None:
        return str(self._files[kind]) if kind in self._files else None

    def create_embedding_projector(self) -> None:
        """Choose the file for embeddings.

        Raises:
            FileError: the file already exists.
        """
        self._create("EMBEDDING", "projector")

    def create_exception_projector(self) -> None:
        """Choose the file for exceptions.

        Raises:
            FileError: the file already exists.
        """
        self._create("EXCEPTION", "projector.gradit")

    def _create(self, kind: str, stem: str) -> None:
        if kind in self._files and self._files[kind].exists():
            raise FileError.at_caller(
                "flow.summary.Projector",
                found=f"{self._files[kind]} exists",
                allowed="one file of a kind",
            )
        self._files[kind] = self._folder / f"{stem}.{int(time.time())}.log"

    def embedding_projector(
        self,
        value: object = None,
        label: object = None,
        tag: str | None = None,
        step: int | None = None,
        sample_name: str | None = None,
        sample_type: str | None = None,
        x: object = None,
    ) -> None:
        """Write embeddings.

        Args:
            value: array of the points.
            label: array of their labels.
            tag: name that TensorBoard shows, "embedding_projector" by default.
            step: number of the step.
            sample_name, sample_type: name and type of the samples: "image", "audio" or "text".
            x: array of the samples.

        Raises:
            FileError: `create_embedding_projector` was not called before, or the sample type is
                unknown.
        """
        shown = self.set_projector(tag or "embedding_projector", step, value, label)
        sample = self.set_sample(sample_name, x, sample_type)
        self._write("EMBEDDING", shown, sample)

    def exception_projector(
        self,
        value: object = None,
        tag: str | None = None,
        step: int | None = None,
        sample_name: str | None = None,
        sample_type: str | None = None,
        x: object = None,
    ) -> None:
        """Write abnormal gradients; arguments and errors as for `embedding_projector`."""
        shown = self.set_projector(tag or "exception_projector", step, value)
        sample = self.set_sample(sample_name, x, sample_type)
        self._write("EXCEPTION", shown, sample)

    def _write(self, kind: str, shown: Fields, sample: Fields | None) -> None:
        message: Fields = {"projector": [shown], "metadata": {"type": kind}}
        if sample is not None:
            message["sample"] = sample
        self.write_projector(self._name(kind), message)

    def write_projector(self, filename: str | None = None, projector: Fields | None = None) -> None:
        """Write the fields of a projection to a file."""
        if filename is None:
            raise FileError.at_caller(
                "flow.summary.Projector",
                found="no file",
                allowed="a preceding create_embedding_projector() or create_exception_projector()",
            )
        Path(filename).write_bytes(encoded("SummaryProjector", projector or {}))

    def set_tensor(self, value: object) -> Fields:
        """Return the fields of an array."""
        array = np.asarray(value)
        shape = {"dim": [{"size": n} for n in array.shape]}
        return {"dtype": str(array.dtype), "shape": shape, "content": array.tobytes()}

    def set_projector(
        self, tag: str, step: int | None, value: object, label: object = None
    ) -> Fields:
        """Return the fields of some points."""
        fields: Fields = {
            "tag": str(tag),
            "step": int(step or 0),
            "WALL_TIME": time.time(),
            "value": self.set_tensor(value),
        }
        return fields if label is None else {**fields, "label": self.set_tensor(label)}

    def set_sample(self, name: str | None, x: object, sample_type: str | None) -> Fields | None:
        """Return the fields of samples, or None if the name or the type is missing."""
        if name is None or sample_type is None:
            return None
        kind = str(sample_type).upper()
        if kind not in ("IMAGE", "AUDIO", "TEXT"):
            raise FileError.at_caller(
                "flow.summary.Projector",
                found=f"sample_type={sample_type!r}",
                allowed='"image", "audio" or "text"',
            )
        return {"name": name, "type": kind, "X": self.set_tensor(() if x is None else x)}
