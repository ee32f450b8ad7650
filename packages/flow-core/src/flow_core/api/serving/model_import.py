"""Models of other programs as parts of jobs: ``flow.onnx.load``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from os import PathLike, fspath
from typing import Any

from flow_core.api.array.conditional import cond
from flow_core.api.array.scanning import scan
from flow_core.api.session.export import exporter
from flow_core.base.arrays import Array
from flow_core.base.dtypes import as_dtype
from flow_core.base.errors import ConfigError, SourceLine, UnsupportedError, shown, user_line
from flow_core.frontend.session.session import default_session
from flow_core.frontend.session.variables import get_variable
from flow_core.frontend.trace.blob import Blob, BlobDef
from flow_core.frontend.trace.job_build import current_job
from flow_core.plugins.exporters import ImportTools
from flow_core.plugins.specs import load as load_target

__all__ = ["load"]


def load(
    path: str | PathLike[str],
    *inputs: Blob,
    trainable: bool | str | Sequence[str] = True,
    **named: Blob,
) -> Any:  # a blob, or a tuple of blobs
    """Add the ops of an ONNX model to the job being traced.

    The model's weights become variables with the names that they have in the model (within the
    current name scope), and start with the model's values.  Jobs that load the same model share
    these variables.

    Args:
        path: the model.
        inputs: a blob for each input of the model, in the model's order.
        trainable: whether a train job updates the weights; or regular expressions, one of which
            the name of a weight that it updates must match.  Moving averages are never updated.
        named: the inputs by name, instead of ``inputs``.

    Returns: The result of the model, or a tuple of its results.

    Raises:
        UnsupportedError: flow-onnx is not installed, or operators have no counterpart; the error
            lists all of these.
        ConfigError: the file is not a model, or the inputs do not fit it.
        JobError: no job is being traced.
    """
    attempted, at = f"flow.onnx.load of {path!s:.200}", user_line(2)
    current_job("flow.onnx.load")
    if inputs and named:
        allowed = "the inputs in order, or all by name"
        raise ConfigError(attempted, at=at, found="inputs of both kinds", allowed=allowed)
    spec = exporter("onnx", attempted, at)
    if spec.importer is None:
        raise UnsupportedError(attempted, at=at, found="an exporter of ONNX models only")
    if not isinstance(path, str | PathLike):
        raise ConfigError(attempted, at=at, found=shown(path), allowed="the path of a model")
    is_trained = _chosen(trainable, attempted, at)

    def variable(name: str, array: Array, may_train: bool) -> BlobDef:
        chosen = may_train and is_trained(name)
        kind = as_dtype(array.dtype)
        return get_variable(name, dtype=kind, initializer=array, trainable=chosen)

    tools = ImportTools(variable, default_session().registry.ops, cond, scan)
    return load_target(spec.importer)(fspath(path), named or inputs, tools, at)


def _chosen(
    trainable: bool | str | Sequence[str], attempted: str, at: SourceLine | None
) -> Callable[[str], bool]:
    """Return the function that tells whether a weight of a name is trained."""
    if isinstance(trainable, bool):
        return lambda _: trainable
    try:
        patterns = list(map(re.compile, [trainable] if isinstance(trainable, str) else trainable))
    except (TypeError, re.error) as error:
        found = f"trainable={shown(trainable)}: {error}"
        allowed = "true, false, a regular expression or several"
        raise ConfigError(attempted, at=at, found=found, allowed=allowed) from error
    return lambda name: any(pattern.search(name) for pattern in patterns)
