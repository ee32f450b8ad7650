"""Export of predict jobs: ``flow.onnx.export`` and ``flow.checkpoint.export``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path

from flow_core.base.arrays import Array
from flow_core.base.errors import (
    ConfigError,
    FlowError,
    SourceLine,
    UnsupportedError,
    install_command,
    nearest,
    user_line,
)
from flow_core.base.planning import end_script
from flow_core.checkpoint import store
from flow_core.frontend.job.exported import traced_for_export
from flow_core.frontend.session.rank_zero import run_on_rank_zero
from flow_core.frontend.session.session import default_session
from flow_core.plugins.exporters import ExportedJob, ExporterSpec
from flow_core.plugins.specs import load

__all__ = ["export", "export_onnx"]


def export_onnx(
    job_func: object,
    model_save_dir: str | Path,
    onnx_filename: str | PathLike[str],
    continue_on_error: bool = False,
    opset: int | None = None,
    extra_opset: int | None = None,
    shape_override: object = None,
    external_data: bool = False,
) -> None:
    """Write a predict job, with the weights of a checkpoint, as an ONNX model.

    In the model, inputs have the names of the job's parameters, weights those of its variables, and
    results those of their ops.  If there are several processes, the first one writes the file.

    Args:
        job_func: a predict job.
        model_save_dir: a checkpoint of the job's variables, as ``flow.train.CheckPoint().save`` or
            ``flow.checkpoint.save`` writes them; other variables are ignored.
        onnx_filename: path of the file; an existing file is replaced.
        continue_on_error: whether to write ops without a counterpart in ONNX under their own names,
            in the domain ``flow`` (or the first domain of ``extra_opset``), with a warning.
        opset: the version of ONNX's operators.
        extra_opset: further domains to declare in the model, as (domain, version) pairs.
        shape_override: shapes of inputs by name; a string or None instead of a size declares a
            dynamic size, such as that of a batch.
        external_data: whether to store large weights in a separate file.

    Raises:
        UnsupportedError: flow-onnx is not installed, or ops have no counterpart in ONNX; the error
            lists all such ops with their source lines.
        JobError: the job is not a predict job.
        CheckpointError: the checkpoint does not exist, or its variables do not fit.
        ConfigError: an option is invalid.
    """
    attempted, at = f"flow.onnx.export to {onnx_filename}", user_line(2)
    _check_path("model_save_dir", model_save_dir, attempted, at)
    _check_path("onnx_filename", onnx_filename, attempted, at)
    found = exporter("onnx", attempted, at)
    options = {
        "continue_on_error": continue_on_error,
        "opset": opset,
        "extra_opset": extra_opset,
        "shape_override": shape_override,
        "external_data": external_data,
    }
    _export(found, job_func, model_save_dir, onnx_filename, options, attempted, at)


def export(
    job_func: object,
    checkpoint: str | Path,
    path: str | PathLike[str],
    *,
    format: str,
    **options: object,
) -> None:
    """Write a predict job, with the weights of a checkpoint, in a format that a plugin provides.

    If there are several processes, the first one writes the file.

    Args:
        job_func: a predict job.
        checkpoint: a checkpoint of the job's variables; other variables are ignored.
        path: path of the file.
        format: name of the plugin's exporter.
        options: arguments of the exporter.

    Raises:
        UnsupportedError: no plugin provides the exporter.
        JobError: the job is not a predict job.
        CheckpointError: the checkpoint does not exist, or its variables do not fit.
        ConfigError: ``path`` or ``checkpoint`` is not a path.
    """
    attempted, at = f"flow.checkpoint.export to {path}", user_line(2)
    _check_path("checkpoint", checkpoint, attempted, at)
    _check_path("path", path, attempted, at)
    found = exporter(format, attempted, at)
    _export(found, job_func, checkpoint, path, options, attempted, at)


def _export(
    exporter: ExporterSpec,
    job_func: object,
    checkpoint: str | Path,
    path: str | PathLike[str],
    options: Mapping[str, object],
    attempted: str,
    at: SourceLine | None,
) -> None:
    """Trace a job, read its weights, and call an exporter in the first process."""
    end_script(attempted)
    job = traced_for_export(job_func, attempted, at)

    def write() -> None:
        load(exporter.load)(_with_weights(job, checkpoint), fspath(path), **options)

    _once(write, attempted)


def exporter(name: str, attempted: str, at: SourceLine | None) -> ExporterSpec:
    """Return an exporter; raise `UnsupportedError` if no plugin provides it."""
    exporters = default_session().registry.exporters
    if name not in exporters:
        install = f"{install_command('flow-onnx')}; " if name == "onnx" else ""
        raise UnsupportedError(
            attempted,
            at=at,
            found=f"no exporter named {name!r}",
            allowed=f"exporters of plugins: {', '.join(exporters) or 'none'}",
            hint=nearest(str(name), exporters) or f"{install}see `flow doctor` if it is installed",
        )
    return exporters[name]


def _check_path(name: str, path: object, attempted: str, at: SourceLine | None) -> None:
    if not isinstance(path, str | PathLike):
        found = f"{name}={path!r:.60}"
        raise ConfigError(attempted, at=at, found=found, allowed="a path, as text or os.PathLike")


def _once(export: Callable[[], None], attempted: str) -> None:
    world = default_session().world
    if world is None:
        export()
    else:
        run_on_rank_zero(world, export, attempted)


def _with_weights(job: ExportedJob, path: str | Path) -> ExportedJob:
    """Return the job with the arrays of a checkpoint, whose types must match those of its
    variables.
    """
    formats = tuple(default_session().registry.formats.values())
    wanted = {op.name: job.graph.types[op.name][0] for op in job.graph.of_type("variable")}

    def read() -> dict[str, Array]:
        found = store.load(path, formats, wanted, strict=False)
        store.match(wanted, found, attempted=f"exporting the variables in {path}", at=job.at)
        return {name: found[name] for name in wanted}

    try:
        variables = store.steadily(path, read)
    except FlowError as error:
        raise error.with_context(at=job.at) from None
    return replace(job, variables=variables)
