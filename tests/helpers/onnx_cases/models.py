"""Models of single ops and of jobs, and what ONNX Runtime computes with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from flow_core.base.dtypes import as_dtype
from flow_core.ir.graph import Attrs, GraphBuilder, Op, TensorType, Value
from flow_core.plugins.exporters import ExportedJob
from flow_core.plugins.host import default_registry
from flow_core.plugins.specs import InferContext
from flow_core.sharding.topology import Placement
from flow_onnx.export import converted
from flow_onnx.options import Options

ort = pytest.importorskip("onnxruntime", reason="the wheel of onnxruntime is not installed")

CPU = Placement.parse("cpu", "0:0")


def run_model(model: Any, feeds: Mapping[str, Any]) -> list[Any]:
    """The results of a model, in memory or in a file."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    source = str(model) if isinstance(model, str | Path) else model.SerializeToString()
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    found: list[Any] = session.run(None, dict(feeds))
    return found


def job_of(type_: str, arrays: Sequence[Any], attrs: Mapping[str, Any]) -> ExportedJob:
    """A job of one op on fed arrays, which returns all of its outputs."""
    specs = default_registry().ops
    spec, builder = specs[type_], GraphBuilder()
    inputs = {}
    for i, array in enumerate(arrays):
        kind = TensorType(array.shape, as_dtype(array.dtype))
        shaped = Attrs({"shape": kind.shape, "dtype": kind.dtype.name, "batch_axis": 0})
        builder.add(Op(f"Input_{i}", "input", (), shaped, CPU), (kind,))
        inputs[f"x{i}"] = Value(f"Input_{i}", 0)
    full = Attrs({**spec.attrs, **attrs})
    types = tuple(builder.type_of(v) for v in inputs.values())
    outputs = tuple(spec.infer(InferContext(type_, type_, types, full)))
    builder.add(Op(type_, type_, tuple(inputs.values()), full, CPU), outputs)
    builder.results = tuple(Value(type_, i) for i in range(len(outputs)))
    return ExportedJob(type_, builder.build(), inputs, {}, specs)


def op_results(type_: str, arrays: Sequence[Any], attrs: Mapping[str, Any], opset: int) -> Any:
    """What ONNX Runtime makes of one op."""
    model, _ = converted(job_of(type_, arrays, attrs), Options(opset=opset))
    return run_model(model, {f"x{i}": a for i, a in enumerate(arrays)})


def loaded_results(path: Path, arrays: Sequence[Any]) -> list[Any]:
    """What a job computes that loads a model."""
    kinds = tuple(tp.Numpy.Placeholder(x.shape, dtype=as_dtype(x.dtype)) for x in arrays)

    def results(x: Any) -> Any:
        found = flow.onnx.load(path, *x)
        return list(found) if isinstance(found, tuple) else [found]

    def job(x: Any) -> Any:
        return results(x)

    def source() -> tp.Bundle[tp.Numpy]:
        return results(())

    job.__annotations__ = {"x": tp.Tuple[kinds], "return": tp.Bundle[tp.Numpy]}
    flow.clear_default_session()
    found: list[Any] = (
        flow.global_function()(job)(tuple(arrays)) if arrays else flow.global_function()(source)()
    )
    return found


def in_float32(array: Any) -> Any:
    """Samples are drawn in float64; ONNX Runtime has most operators in float32 only."""
    array = np.asarray(array)
    return array.astype(np.float32) if array.dtype == np.float64 else array
