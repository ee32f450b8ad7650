"""Predict jobs for exporters: the part of the graph that the results need, and the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flow_core.annotations import PlaceholderSpec
from flow_core.base.errors import JobError, SourceLine, UnsupportedError
from flow_core.base.shapes import Shape
from flow_core.frontend.job.function import AnyJob, JobFunction
from flow_core.frontend.job.tracing import Traced
from flow_core.frontend.trace.blob import BlobDef
from flow_core.ir.graph import Graph, TensorType, Value, rebuild
from flow_core.plugins.exporters import ExportedJob
from flow_core.plugins.specs import OpSpec

PREFIX = "Input_"


def traced_for_export(job: Any, attempted: str, at: SourceLine | None) -> ExportedJob:
    """Return a traced predict job, without the arrays of its variables.

    Raises:
        JobError: ``job`` is not a job function, is a train job, or returns nothing.
        UnsupportedError: a parameter or result is not a single array.
    """
    _check_job(job, attempted, at)
    return _exported(job, job.prepare(), attempted, at)


def _exported(job: AnyJob, traced: Traced, attempted: str, at: SourceLine | None) -> ExportedJob:
    build, blobs = traced.build, traced.returned.blobs
    fed = {name.removeprefix(PREFIX): Value(name, 0) for name in traced.inputs}
    for blob in blobs:
        _check_array(blob, attempted, at, job)
    results = tuple(build.rounded.get(blob.parts[0], blob.parts[0]) for blob in blobs)
    if not results:
        found = f"job {job.name!r}, which returns nothing"
        raise JobError(attempted, at=at, found=found, allowed="jobs that return blobs")
    graph = _cut(replace(build.builder.build(), results=results), fed, build.emitter.specs)
    for name, value in fed.items():
        _check_type(graph.type_of(value), f"parameter {name!r}", attempted, at)

    def retrace(shapes: Mapping[str, Shape]) -> ExportedJob:
        parameters = {k: _resized(k, v, shapes) for k, v in job.signature.parameters.items()}
        return _exported(job, job.retraced(parameters, build.builder), attempted, at)

    return ExportedJob(job.name, graph, fed, {}, build.emitter.specs, at, retrace)


def _resized(path: str, spec: Any, shapes: Mapping[str, Shape]) -> Any:
    """Return the placeholders of a parameter with other shapes, by path of the placeholder."""
    if isinstance(spec, PlaceholderSpec):
        shape = shapes.get(path)
        return spec if shape is None else replace(spec, shape=tuple(shape), is_open=False)
    if isinstance(spec, Mapping):
        return {k: _resized(f"{path}-{k}", v, shapes) for k, v in spec.items()}
    return type(spec)(_resized(f"{path}-{i}", v, shapes) for i, v in enumerate(spec))


def _check_job(job: object, attempted: str, at: SourceLine | None) -> None:
    if not isinstance(job, JobFunction):
        raise JobError(
            attempted,
            at=at,
            found=f"{job!r:.60}",
            allowed="a function decorated with @flow.global_function",
        )
    if job.kind != "predict":
        raise JobError(
            attempted,
            at=at,
            found=f"job {job.name!r} of type {job.kind!r}",
            allowed='jobs of type "predict"',
            hint="define a predict job that calls the same model; jobs share variables by name",
        )


def _check_array(blob: BlobDef, attempted: str, at: SourceLine | None, job: AnyJob) -> None:
    """Require that a result is a single array without invalid rows."""
    if len(blob.parts) != 1 or blob.rows is not None:
        many = "an array per device" if len(blob.parts) != 1 else "rows whose number the data say"
        raise UnsupportedError(
            attempted,
            at=at,
            found=f"result {blob.op_name!r} of job {job.name!r}, with {many}",
            allowed="results that are one array each, in the consistent view",
        )
    _check_type(TensorType(blob.shape, blob.dtype), f"result {blob.op_name!r}", attempted, at)


def _check_type(kind: TensorType, what: str, attempted: str, at: SourceLine | None) -> None:
    if kind.dtype.is_object:
        raise UnsupportedError(attempted, at=at, found=f"{what} of type {kind}", allowed="numbers")


def _cut(graph: Graph, fed: Mapping[str, Value], specs: Mapping[str, OpSpec]) -> Graph:
    """Return the graph without ops that neither results nor variables need; keep all inputs."""
    effects = tuple(
        name
        for name in graph.effects
        if specs[graph.ops[name].type].overwrites(graph.ops[name].attrs)
    )
    needed = {value.op for value in (*graph.results, *fed.values())} | set(effects)
    for name in reversed(list(graph.ops)):
        if name in needed:
            needed |= {value.op for value in graph.ops[name].inputs}
    kept = (op for name, op in graph.ops.items() if name in needed)
    return rebuild(graph, (replace(op, control=()) for op in kept), effects=effects)
