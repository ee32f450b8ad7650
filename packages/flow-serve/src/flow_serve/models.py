"""Loads the models of a worker: saved models, and ONNX models where flow-onnx is installed.

    python -m flow_serve.models FD

is a worker process; FD is the number of its socket.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

import oneflow as flow
import oneflow.typing as tp
from flow_core.api.serving.rows import mixed_rows
from flow_core.base.errors import ConfigError, FlowError, UnsupportedError, install_command
from flow_serve.info import NAMES, OPEN, ModelInfo, Source, TensorInfo
from flow_serve.settings import Batching
from flow_serve.worker import Array, Run, main

Type = tuple[np.dtype[Any], tuple[int, ...]]
Types = Mapping[str, Type]
"""Element type and shape by name; the first size of an open shape is `OPEN`."""


@dataclass(frozen=True, slots=True)
class _Job:
    """A job to serve."""

    inputs: Types  # their types by name
    outputs: Sequence[str]  # names of the results
    run: Callable[[Mapping[str, Array]], Sequence[Array]]  # computes arrays by name of the input
    mixed: Callable[[], str]  # first op that may mix rows, "" if there is none; see `mixed_rows`


def load_model(source: Source, batching: Batching, device: str) -> tuple[ModelInfo, Run]:
    """Load a version of a model, and compile it for the sizes of batches.

    Raises: FlowError: it cannot be loaded or run.
    """
    find = _saved if source.platform == "flow_saved_model" else _onnx
    job = find(source, device, OPEN)
    note = "the model has one batch size"
    if job is not None:
        outputs, note = _batched(job, batching.sizes)
        if not note:
            return _described(source, job, outputs, batching.rows, ""), _runner(job)
    job = find(source, device, None)
    if job is None:
        raise ConfigError(
            f"serving {source.folder}",
            found=f"inputs of open sizes, and rows that cannot be computed alone: {note}",
            allowed="a model whose rows are independent, or one of fixed sizes",
        )
    return _described(source, job, _types(job.run(_zeros(job, 0))), 0, note), _runner(job)


def _batched(job: _Job, sizes: Sequence[int]) -> tuple[list[Type], str]:
    """Compile a job for several batch sizes.

    Returns:
        The types of its outputs and "", or no types and the reason why rows cannot form a batch.
    """
    found: list[Type] = []
    try:
        mixed = job.mixed()
        if mixed:
            return [], f"{mixed} may mix rows"
        for size in sizes:
            found = _types(job.run(_zeros(job, size)))
            if any(shape[:1] != (size,) for _, shape in found):
                return [], "an output has other rows than the inputs"
    except FlowError as error:
        return [], f"{error.attempted}: {error.found}"
    return [(dtype, (OPEN, *shape[1:])) for dtype, shape in found], ""


def _zeros(job: _Job, rows: int) -> dict[str, Array]:
    """Return inputs with which a job is compiled."""
    shapes = {k: (rows, *s[1:]) if s[:1] == (OPEN,) else s for k, (_, s) in job.inputs.items()}
    return {name: np.zeros(shape, job.inputs[name][0]) for name, shape in shapes.items()}


def _types(arrays: Sequence[Array]) -> list[Type]:
    return [(array.dtype, array.shape) for array in arrays]


def _described(
    source: Source, job: _Job, outputs: Sequence[Type], rows: int, note: str
) -> ModelInfo:
    found = zip(job.outputs, outputs, strict=True)
    ins = tuple(TensorInfo(n, _datatype(n, t), s) for n, (t, s) in job.inputs.items())
    outs = tuple(TensorInfo(n, _datatype(n, t), s) for n, (t, s) in found)
    return ModelInfo(
        source.name, source.version, source.platform, ins, outs, rows, bool(rows), note
    )


def _runner(job: _Job) -> Run:
    names, run = tuple(job.inputs), job.run
    return lambda arrays: run(dict(zip(names, arrays, strict=True)))


def _datatype(name: str, dtype: np.dtype[Any]) -> str:
    if dtype.name not in NAMES:
        allowed = ", ".join(NAMES.values())
        raise UnsupportedError(f"serving {name!r}", found=f"{dtype}", allowed=allowed)
    return NAMES[dtype.name]


# ------------------------------------------------------------------------------------ saved models


def _saved(source: Source, device: str, batch: int | None) -> _Job | None:
    """Open a saved model with its default job and signature; None if its batch size is fixed."""
    option = flow.serving.SessionOption()
    option.device_tag = device
    folder, version = str(Path(source.folder).parent), int(source.version)
    session = flow.serving.InferenceSession(option)
    session.load_saved_model(folder, version)
    (name,) = session.list_jobs()
    if batch is not None:
        session.close()
        session = flow.serving.InferenceSession(option)
        session.set_job_batch_size(name, batch)
        try:
            session.load_saved_model(folder, version)
        except FlowError:
            session.close()
            return None
    session.launch()

    def shape(info: Mapping[str, Any]) -> tuple[int, ...]:
        sizes: tuple[int, ...] = tuple(info["shape"])
        return (OPEN, *sizes[1:]) if batch is not None and sizes else sizes

    infos = {n: session.input_info(n, name) for n in session.list_inputs()}
    inputs = {n: (np.dtype(i["dtype"].numpy), shape(i)) for n, i in infos.items()}
    return _Job(
        inputs,
        session.list_outputs(),
        lambda arrays: session.run(name, **arrays),
        lambda: session.mixed_rows(name),
    )


# ------------------------------------------------------------------------------------- ONNX models


def _onnx(source: Source, device: str, batch: int | None) -> _Job | None:
    """Open an ONNX model; None if its batch size is fixed, or if it is to be fixed and is open."""
    if importlib.util.find_spec("flow_onnx") is None:
        raise UnsupportedError(
            f"serving {source.folder}", found="an ONNX model", allowed="saved models",
            hint=install_command("flow-onnx"),
        )  # fmt: skip
    path = str(Path(source.folder, "model.onnx"))
    inputs, outputs = _signature(path)
    is_open = all(shape[:1] == (OPEN,) for _, shape in inputs.values())
    if is_open != (batch is not None):
        return None
    flow.config.gpu_device_num(int(device == "gpu"))
    job = _onnx_job(path, inputs, len(outputs))

    def run(arrays: Mapping[str, Array]) -> Sequence[Array]:
        found = job(*(arrays[name] for name in inputs))
        return found if isinstance(found, tuple) else (found,)

    return _Job(inputs, outputs, run, lambda: mixed_rows(job))


def _signature(path: str) -> tuple[Types, list[str]]:
    """Return the types of the inputs of an ONNX model, and the names of its outputs."""
    from onnx import helper

    from flow_onnx.reading import UnreadableModel, read_model

    attempted = f"serving the ONNX model {path}"
    try:
        graph = read_model(path).graph
    except UnreadableModel as error:
        raise ConfigError(attempted, found=str(error), allowed="an ONNX model") from error
    weights = {tensor.name for tensor in graph.initializer}
    inputs = {}
    for value in graph.input:
        if value.name not in weights:
            tensor = value.type.tensor_type
            sizes = [d.dim_value if d.HasField("dim_value") else OPEN for d in tensor.shape.dim]
            if OPEN in sizes[1:] or not value.type.HasField("tensor_type"):
                raise UnsupportedError(
                    attempted,
                    found=f"input {value.name!r} of shape {sizes}",
                    allowed="tensors of which only the first size is open",
                )
            dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
            inputs[value.name] = (dtype, tuple(sizes))
    return inputs, [value.name for value in graph.output]


_numbers = count()


def _onnx_job(path: str, inputs: Types, results: int) -> Any:
    """Define the job of an ONNX model; its variables are in a name scope of their own."""
    name = f"onnx{next(_numbers)}"

    def model(**blobs: Any) -> Any:
        with flow.scope.namespace(name):
            return flow.onnx.load(path, *blobs.values(), trainable=False)

    model.__name__ = model.__qualname__ = name
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        inspect.Parameter(f"input{i}", kind, annotation=_placeholder(*given))
        for i, given in enumerate(inputs.values())
    ]
    many: Any = tuple
    result = tp.Numpy if results == 1 else many[(tp.Numpy,) * results]
    signature = inspect.Signature(parameters, return_annotation=result)
    model.__signature__ = signature  # type: ignore[attr-defined]
    return flow.global_function()(model)


def _placeholder(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    sizes = tuple(None if n == OPEN else n for n in shape)
    numpy: Any = tp.Numpy
    return numpy.Placeholder(sizes, dtype=flow.int8 if dtype == np.bool_ else dtype)


if __name__ == "__main__":
    main(load_model)
