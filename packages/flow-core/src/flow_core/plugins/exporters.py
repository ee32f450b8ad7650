"""The records of exporters: a file format, and the job that is written to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flow_core.base.errors import SourceLine
from flow_core.base.shapes import Shape
from flow_core.ir.graph import Graph, Value
from flow_core.plugins.specs import Lazy, OpSpec


@dataclass(frozen=True, slots=True)
class ExportedJob:
    """A predict job with its weights, the argument of exporters.

    Attributes:
        name: name of the job.
        graph: the traced logical graph of its results, without boxing, including the ops that
            overwrite variables; `flow_core.authoring.bodies` has the graphs of loops and branches.
        inputs: the fed values by parameter name (with index or key for parameters that are tuples
            or dicts), in feeding order.
        variables: arrays by the names of the graph's ``variable`` ops; access may read a file.
        specs: specs of all ops.
        at: the user's line of the export.
        retrace: ``retrace(shapes)`` returns the job that the program defines for other shapes of
            some inputs, given by name; it raises the `FlowError` of a program that does not define
            one.  None if there is no program.
    """

    name: str
    graph: Graph
    inputs: Mapping[str, Value]
    variables: Mapping[str, Any]
    specs: Mapping[str, OpSpec]
    at: SourceLine | None = None
    retrace: Callable[[Mapping[str, Shape]], ExportedJob] | None = None


@dataclass(frozen=True, slots=True)
class ImportTools:
    """What importers use, beside `emit`, to add ops to the job being traced.

    Attributes:
        variable: adds a variable, or returns the existing one; called with the name, the array and
            whether the variable is trainable if the program does not freeze it.
        ops: the specs of all ops, with which constants may be computed.
        cond, scan: ``flow.cond`` and ``flow.scan``.
    """

    variable: Callable[[str, Any, bool], Any]
    ops: Mapping[str, OpSpec]
    cond: Callable[..., Any]
    scan: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class ExporterSpec:
    """A file format to which predict jobs are exported for other programs.

    Attributes:
        name: unique name; ``flow.onnx.export`` uses "onnx".
        load: lazy ``write(job: ExportedJob, path: str, **options)``; leaves a complete file or, if
            it raises, the previous state.
        importer: lazy ``read(path, inputs, tools: ImportTools, at)``; it adds a file's ops to the
            job and returns a blob, or a tuple of blobs.
    """

    name: str
    load: Lazy
    importer: Lazy | None = None
