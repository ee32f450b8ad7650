"""``flow.serving``: a session that runs saved models, without the script that defined them.

Example::

    session = flow.serving.InferenceSession()
    session.load_saved_model("models")
    session.launch()
    (scores,) = session.run("predict", images=images)
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flow_core.annotations import placeholder
from flow_core.api.arguments import checked_count
from flow_core.api.serving.batch_sizes import BatchSizes
from flow_core.api.serving.model_file import FILE, SavedGraph, Signature, read_model, versions
from flow_core.api.serving.rows import mixed_rows
from flow_core.api.session.train import checked_path
from flow_core.base.arrays import Array
from flow_core.base.dtypes import DType
from flow_core.base.errors import (
    CheckpointError,
    ConfigError,
    FlowError,
    JobError,
    SourceLine,
    described,
    located,
    user_line,
)
from flow_core.base.shapes import Shape
from flow_core.checkpoint import store
from flow_core.frontend.job.function import JobFunction
from flow_core.frontend.session.session import Session
from flow_core.frontend.trace.blob import BlobDef
from flow_core.frontend.trace.job_build import current_job
from flow_core.ir.graph import Attrs, Graph, Op, TensorType, Value
from flow_core.ir.text import parse_graph

__all__ = ["InferenceSession", "ModelVersionPolicy", "SessionOption"]


OPEN = -1
"""The batch size of jobs whose calls may have different batch sizes."""


class ModelVersionPolicy(enum.Enum):
    """The policy by which a version of a saved model is chosen."""

    LATEST = 1


class SessionOption:
    """The devices of an `InferenceSession`.

    Attributes:
        device_tag: "cpu" or "gpu".
        device_num: number of devices.
        is_mirrored_view: must be False.
    """

    def __init__(self) -> None:
        self.device_tag = "gpu"
        self.device_num = 1
        self.is_mirrored_view = False


@dataclass(slots=True)
class _Job:
    """A job of the session: its function, and the names of its data for callers."""

    function: JobFunction[Any, Any]
    inputs: tuple[str, ...]
    outputs: Mapping[str, int]
    input_types: Mapping[str, TensorType]
    output_types: Mapping[str, TensorType]


def replayed(
    graph: Graph, inputs: Mapping[str, BlobDef], attrs: Callable[[Op], Attrs]
) -> tuple[BlobDef, ...]:
    """Add the ops of a saved graph to the job being traced, and return its results.

    Args:
        graph: the graph.
        inputs: placeholders by name of their ``input`` op.
        attrs: returns the attributes of an op for the job's batch size.

    Raises:
        CheckpointError: an op of the graph cannot be added, for example because it lacks an
            attribute.
    """
    job = current_job("replaying a saved graph")
    values: dict[Value, Value] = {}
    for op in graph.ops.values():
        if op.type == "input":
            values[op.output()] = inputs[op.name].value
            continue
        try:
            made = job.add(op.type, [values[v] for v in op.inputs], attrs(op), full=op.name)
        except FlowError:
            raise
        except Exception as error:
            # the graph comes from a file: the rules of an op may raise anything for its attributes
            raise CheckpointError(
                f"replaying the op {op.name!r} of type {op.type}",
                found=described(error),
                allowed="the attributes and inputs that the op was saved with",
            ) from error
        values |= {Value(op.name, i): value for i, value in enumerate(made)}
    missing = [value for value in graph.results if value not in values]
    if missing:
        raise CheckpointError("replaying a saved graph", found=f"the result {missing[0]}")
    return tuple(BlobDef(job, values[value]) for value in graph.results)


def _attrs_for(
    job: str, batch: BatchSizes, graph: Graph, shapes: Mapping[str, Shape]
) -> Callable[[Op], Attrs]:
    """Return a function from an op to its attributes for the shapes of the ``input`` ops."""
    if all(shape == graph.types[op][0].shape for op, shape in shapes.items()):
        return lambda op: op.attrs
    size = next(shape[0] for shape in shapes.values() if shape)
    try:
        batch.check(size)
        new = {name: batch.attrs(op, size) for name, op in graph.ops.items()}
    except ValueError as error:
        raise JobError.at_caller(
            f"loading job {job!r} with a batch size of {size}",
            found=f"a job that is not defined for this batch size: {error}",
            allowed="jobs whose program defines them for any batch size",
            hint="derive sizes from blob.shape, or pass -1 to flow.reshape, and save again",
        ) from None
    return lambda op: new[op.name]


def _output_names(blobs: Sequence[BlobDef]) -> dict[str, int]:
    """Name each result by its op; if an op has several, by the op and the result's number."""
    count = Counter(blob.op_name for blob in blobs)
    return {
        blob.op_name if count[blob.op_name] == 1 else f"{blob.op_name}_{i}": i
        for i, blob in enumerate(blobs)
    }


class InferenceSession:
    """A session that runs the jobs of a saved model.

    Load a model, call `launch`, then `run`; `close` frees the memory and ends the threads.  A
    session that is dropped without `close` is closed in the background.

    Args:
        option: the devices; by default one GPU.

    Raises: DeviceUnavailableError: the devices do not exist.
    """

    def __init__(self, option: SessionOption | None = None) -> None:
        option = option or SessionOption()
        if option.device_tag not in ("cpu", "gpu") or option.is_mirrored_view:
            raise ConfigError.at_caller(
                "flow.serving.InferenceSession",
                found=f"{option.device_tag!r}, is_mirrored_view={option.is_mirrored_view}",
                allowed='"cpu" or "gpu", and is_mirrored_view=False',
            )
        count = checked_count("SessionOption.device_num", option.device_num)
        self._session = Session()
        if option.device_tag == "gpu":
            self._session.registry.require_device("gpu", count, user_line(2))
            self._session.resources.gpu_device_num = count
        else:
            self._session.resources.gpu_device_num = 0
            self._session.resources.cpu_device_num = count
        self._finalizer = weakref.finalize(self, _close_later, self._session, os.getpid())
        self._finalizer.atexit = False  # the threads end with the process
        self._checkpoint: str | None = None
        self._batch: dict[str, int] = {}
        self._signatures: dict[str, Signature | None] = {}
        self._jobs: dict[str, _Job] = {}
        self._opened: str | None = None
        self._running = False

    # ------------------------------------------------------------------------------- loading

    def load_saved_model(
        self,
        saved_model_dir: str,
        model_version: int | ModelVersionPolicy = ModelVersionPolicy.LATEST,
        saved_model_meta_file_basename: str = "saved_model",
        graph_name: str | None = None,
        signature_name: str | None = None,
    ) -> None:
        """Load one job of a saved model.

        Args:
            saved_model_dir: the folder of the model.
            model_version: a version, or the policy to choose one.
            saved_model_meta_file_basename: has no effect.
            graph_name: name of the job; by default the model's first job.
            signature_name: name of the signature; by default the job's default signature.

        Raises:
            CheckpointError: the model, version, job or signature does not exist.
        """
        at = user_line(2)
        path = checked_path("InferenceSession.load_saved_model", saved_model_dir, folder=True)
        folder = _version_folder(Path(path), model_version)
        with located(at):
            model = read_model(folder)
        name = graph_name or model.default_graph_name
        graph: SavedGraph = _chosen("job", name, model.graphs, folder)
        chosen = signature_name or graph.default_signature
        signature = _chosen("signature", chosen, graph.signatures, folder) if chosen else None
        self.set_checkpoint_path(str(folder / model.checkpoint_dir))
        with self.open(name, signature), _of_file(folder / FILE, at):
            self.compile(graph)

    def set_checkpoint_path(self, checkpoint_path: str) -> None:
        """Set the checkpoint that `launch` reads."""
        what = "InferenceSession.set_checkpoint_path"
        self._checkpoint = checked_path(what, checkpoint_path)

    def set_job_batch_size(self, job_name: str, batch_size: int) -> None:
        """Set the size of the first axis of all inputs of a job that is not loaded yet.

        Loading the job, or with -1 a call of `run`, raises `JobError` if the job's program does not
        define a job of this size.

        Args:
            job_name: name of the job.
            batch_size: a size, or -1 for that of the arrays of each call: the session then has a
                plan per size, made by the first call of that size.

        Raises: ConfigError: the size is neither -1 nor a positive integer.
        """
        what = "InferenceSession.set_job_batch_size"
        is_open = type(batch_size) is int and batch_size == OPEN
        self._batch[job_name] = OPEN if is_open else checked_count(what, batch_size, most=1 << 40)

    @contextmanager
    def open(
        self, job_name: str, signature: Signature | None = None, batch_size: int | None = None
    ) -> Iterator[InferenceSession]:
        """Begin the definition of a job, which `compile` completes.

        Args:
            job_name: name of the job.
            signature: names of its inputs and outputs; by default those of its parameters.
            batch_size: see `set_job_batch_size`.
        """
        if batch_size is not None:
            self.set_job_batch_size(job_name, batch_size)
        self._signatures[job_name], self._opened = signature, job_name
        try:
            yield self
        finally:
            self._opened = None

    def compile(self, graph: SavedGraph) -> None:
        """Define the opened job by a saved graph.

        Raises:
            JobError: no job is opened.
            GraphError: an op of the graph belongs to a plugin that is not installed.
        """
        name = self._opened
        if name is None:
            raise _wrong("InferenceSession.compile", "no opened job", "a call in `with open(...)`")
        parsed = parse_graph(graph.text)
        _check_inputs(parsed, graph)
        parameters = {f"input{i}": op for i, op in enumerate(graph.inputs.values())}
        types = {op: self._resized(name, parsed.types[op][0]) for op in parameters.values()}
        if self._batch.get(name) != OPEN:
            _attrs_for(name, graph.batch, parsed, {op: t.shape for op, t in types.items()})

        def run(**blobs: BlobDef) -> tuple[BlobDef, ...]:
            given = {op: blobs[key] for key, op in parameters.items()}
            shapes = {op: blob.shape for op, blob in given.items()}
            return replayed(parsed, given, _attrs_for(name, graph.batch, parsed, shapes))

        run.__name__ = run.__qualname__ = name
        run.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
            inspect.Parameter(
                key,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=placeholder("numpy", self._declared(name, types[op]), types[op].dtype, 0),
            )
            for key, op in parameters.items()
        ])  # fmt: skip
        function = JobFunction(run, "predict", session=self._session)
        self._jobs[name] = self._named(name, graph, types, function)

    def _resized(self, job: str, type_: TensorType) -> TensorType:
        batch = self._batch.get(job)
        if batch is None or not type_.shape:
            return type_
        return TensorType((1 if batch == OPEN else batch, *type_.shape[1:]), type_.dtype)

    def _declared(self, job: str, type_: TensorType) -> tuple[int | None, ...]:
        """Return the shape of a placeholder."""
        is_open = type_.shape and self._batch.get(job) == OPEN
        return (None, *type_.shape[1:]) if is_open else type_.shape

    def _named(
        self,
        name: str,
        graph: SavedGraph,
        types: Mapping[str, TensorType],
        function: JobFunction[Any, Any],
    ) -> _Job:
        """Trace a job, and return it with the names of its data."""
        blobs = function.prepare().returned.blobs
        signature = self._signatures.get(name)
        given = {parameter: types[op] for parameter, op in graph.inputs.items()}
        names = {p: p for p in given} | {
            p: called for called, p in (signature.inputs if signature else {}).items()
        }
        outputs = dict(signature.outputs) if signature else {}
        outputs = outputs or _output_names(blobs)
        twice = [called for called, n in Counter(names.values()).items() if n > 1]
        wrong = [called for called, i in outputs.items() if i not in range(len(blobs))]
        if twice or wrong:
            what = f"{twice[0]!r} for two inputs" if twice else f"{wrong[0]!r} for no result"
            raise CheckpointError.at_caller(
                f"use of the signature of job {name!r}",
                found=f"the name {what}",
                allowed=f"names of {len(given)} inputs and {len(blobs)} results",
                hint="save the model with other names in SignatureBuilder.Input and Output",
            )
        made = {k: TensorType(blobs[i].shape, blobs[i].dtype) for k, i in outputs.items()}
        return _Job(
            function,
            tuple(names[p] for p in given),
            outputs,
            {names[p]: type_ for p, type_ in given.items()},
            made,
        )

    def launch(self) -> None:
        """Read the weights and compile all jobs.

        Raises:
            CheckpointError: there is no checkpoint, or it does not fit the jobs.
        """
        with located(user_line(2)):
            self._launch()

    def _launch(self) -> None:
        wanted = self._session.types()
        if wanted:
            if self._checkpoint is None:
                allowed = "a call of set_checkpoint_path"
                raise _wrong("InferenceSession.launch", "no checkpoint", allowed)
            formats = tuple(self._session.registry.formats.values())
            found = store.load(self._checkpoint, formats, wanted, strict=False)
            store.match(wanted, found, attempted=f"loading {self._checkpoint}")
            self._session.assign({name: found[name] for name in wanted})
        for job in self._jobs.values():
            job.function.compile()
        self._running = True

    # ------------------------------------------------------------------------------- running

    def run(self, job_name: str, **kwargs: Array) -> tuple[Array, ...]:
        """Run one step of a job.

        Args:
            job_name: name of the job.
            kwargs: arrays by name of the input.

        Returns:
            The outputs, in the order of `list_outputs`.

        Raises:
            JobError: the session is not launched, or the inputs are not those of the job.
        """
        job = self._running_job(job_name)
        if set(kwargs) != set(job.inputs):
            found = f"inputs {', '.join(kwargs) or 'none'}"
            raise _wrong(f"InferenceSession.run of {job_name!r}", found, ", ".join(job.inputs))
        handle: Any = job.function(*(kwargs[name] for name in job.inputs))
        results = handle.get()
        return tuple(np.asarray(results[i].numpy()) for i in job.outputs.values())

    async def async_run(self, job_name: str, **kwargs: Array) -> tuple[Array, ...]:
        """Run one step of a job in another thread; see `run`."""
        return await asyncio.to_thread(self.run, job_name, **kwargs)

    def _running_job(self, name: str) -> _Job:
        if not self._running:
            found = "a session that is not running"
            raise _wrong(f"running job {name!r}", found, "launch() before, and no close()")
        return self._job(name)

    def _job(self, name: str | None) -> _Job:
        if name is None and len(self._jobs) == 1:
            return next(iter(self._jobs.values()))
        if name not in self._jobs:
            raise _wrong("use of a saved job", repr(name), ", ".join(self._jobs) or "no jobs")
        return self._jobs[name]

    def list_jobs(self) -> list[str]:
        """Return the names of the jobs."""
        return list(self._jobs)

    def list_inputs(self) -> tuple[str, ...]:
        """Return the names of the inputs of all jobs."""
        return tuple(name for job in self._jobs.values() for name in job.inputs)

    def list_outputs(self) -> tuple[str, ...]:
        """Return the names of the outputs of all jobs."""
        return tuple(name for job in self._jobs.values() for name in job.outputs)

    def input_info(self, input_name: str, job_name: str | None = None) -> dict[str, Any]:
        """Return the shape and the dtype of an input, as a dict."""
        return _info(self._job(job_name).input_types, input_name)

    def output_info(self, output_name: str, job_name: str | None = None) -> dict[str, Any]:
        """Return the shape and the dtype of an output, as a dict."""
        return _info(self._job(job_name).output_types, output_name)

    def mixed_rows(self, job_name: str) -> str:
        """Return the first op of a job that may mix the rows of a batch, or "" if there is none.

        Without such an op, a batch may have rows of several callers, or rows that no caller reads.
        """
        return mixed_rows(self._job(job_name).function)

    def print_job_set(self) -> None:
        """Print the names of the jobs and their ops."""
        for name, job in self._jobs.items():
            print("job_name:", name)  # noqa: T201 - the purpose of the method
            for op in job.function.prepare().build.builder.ops:
                print("\top_name:", op)  # noqa: T201

    def close(self) -> None:
        """Free the memory of the session; calling it again does nothing."""
        self._finalizer.detach()
        self._running = False
        self._jobs.clear()
        self._session.close()

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def _of_file(path: Path, at: SourceLine | None) -> Iterator[None]:
    """Add the user's line to errors, and the path of the saved model to those of its graph."""
    try:
        yield
    except FlowError as error:
        attempted = f"loading the saved model {path}: {error.attempted}"
        error.with_context(at=error.at or at, attempted=attempted)
        raise


def _check_inputs(graph: Graph, saved: SavedGraph) -> None:
    """Raise `CheckpointError` unless the ``input`` ops are those of the job's parameters."""
    found = {op.name for op in graph.of_type("input") if len(graph.types[op.name]) == 1}
    wanted = list(saved.inputs.values())
    odd = sorted(found.symmetric_difference(wanted))
    if odd or len(set(wanted)) < len(wanted):
        raise CheckpointError(
            "matching parameters and ops",
            found=f"{odd[0]!r:.80} in one of them" if odd else "two parameters with one op",
            allowed="one op of type input for each parameter",
        )


def _close_later(session: Session, process: int) -> None:
    """Close a session in a thread of its own.

    The garbage collector may call this in any thread, also in one that `Session.close` joins.
    """
    if os.getpid() == process:
        threading.Thread(target=session.close, name="flow-close", daemon=True).start()


def _info(types: Mapping[str, TensorType], name: str) -> dict[str, tuple[int, ...] | DType]:
    type_: TensorType = _chosen("name", name, types, None)
    return {"shape": tuple(type_.shape), "dtype": type_.dtype}


def _wrong(attempted: str, found: str, allowed: str) -> FlowError:
    return JobError.at_caller(attempted, found=found, allowed=allowed)


def _chosen(what: str, name: str, known: Mapping[str, Any], folder: Path | None) -> Any:
    if name not in known:
        raise CheckpointError.at_caller(
            f"use of the saved model{f' in {folder}' if folder else ''}",
            found=f"no {what} {name!r}",
            allowed=", ".join(known),
        )
    return known[name]


def _version_folder(path: Path, version: int | ModelVersionPolicy) -> Path:
    """Return the folder of a version; of the highest complete one for the policy `LATEST`."""
    found = versions(path)
    wanted = found[0] if version is ModelVersionPolicy.LATEST and found else version
    if isinstance(wanted, bool) or wanted not in found:
        raise CheckpointError.at_caller(
            f"loading the saved model in {path}",
            found=f"no version {wanted}" if found else "no version",
            allowed=", ".join(map(str, found)) or "a folder of flow.saved_model.ModelBuilder",
        )
    return path / str(wanted)
