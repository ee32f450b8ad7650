"""Variables: named tensors that a session keeps between steps and shares among its jobs."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import DType, as_dtype, float32, int64
from flow_core.base.errors import SourceLine, VariableError, shown, user_line
from flow_core.base.host_arrays import host_array
from flow_core.checkpoint.layout import NAMES_ALLOWED, name_problem
from flow_core.frontend.config.function_config import initializer_attr
from flow_core.frontend.config.scope import current_scope, enter
from flow_core.frontend.trace.blob import BlobDef
from flow_core.frontend.trace.emit import emit
from flow_core.frontend.trace.job_build import JobBuild, current_job
from flow_core.frontend.trace.sbp_hints import either, reshaped, scope_placement
from flow_core.frontend.trace.sbp_request import (
    Distribution,
    decode_distribution,
    decode_nd_sbp,
    over_placement,
)
from flow_core.frontend.trace.variable_info import VariableInfo
from flow_core.ir.graph import Attrs, AttrValue, Value, tensor_type
from flow_core.ir.initializers import VALUES, Initializer
from flow_core.sharding.sbp import Sbp

DEFAULT_INITIALIZER = ("constant", 0.0)


def check_savable(info: VariableInfo) -> None:
    """Raise `VariableError` early for a name that could not be saved to a checkpoint."""
    problem = name_problem(info.name)
    if problem:
        raise VariableError(
            f"variable {info.name!a:.120} in job {info.job!r}",
            at=info.line,
            found=f"a name with {problem}",
            allowed=NAMES_ALLOWED,
            hint="rename the variable, or the name scope that its name begins with",
        )


def get_variable(
    name: str,
    shape: Sequence[int] | None = None,
    dtype: DType | None = float32,
    initializer: Initializer | Array | tuple[AttrValue, ...] | None = None,
    regularizer: Any = None,
    trainable: bool | None = None,
    model_name: str | None = None,
    random_seed: int | None = None,
    distribute: Distribution | None = None,
    reuse: bool = True,
    parallel_distribution: Sequence[str] | None = None,
    parallel_hierarchy: Sequence[int] | None = None,
    nd_sbp: Sequence[str] | None = None,
) -> BlobDef:
    """Create a variable, or return the existing one of that name.

    Args:
        name: unique name within the current name scope.
        shape: logical shape; by default that of an array ``initializer``.
        dtype: element type; if None, the job's ``default_data_type``.
        initializer: one of ``flow.*_initializer``, or an array with the initial values; if None,
            the job's default, or zeros.
        regularizer: one of ``flow.regularizers``.
        trainable: whether optimizers update the variable; None means True.
        model_name: accepted for compatibility; has no effect.
        random_seed: seed of a random initializer.
        distribute: requested distribution over the devices.
        reuse: whether to return a variable of that name that this job has already.
        parallel_distribution: requested SBP per hierarchy dimension, such as ``["S(0)", "B"]``,
            instead of ``distribute``; an empty list requests nothing.
        parallel_hierarchy: another hierarchy of the same devices, instead of the placement's.
        nd_sbp: the name of ``parallel_distribution`` in later versions of OneFlow.

    Returns:
        A blob, the value of the variable at the start of the step.

    Raises:
        VariableError: no shape is given, another op has the name, the variable exists and
            ``reuse`` is False, or another request for the name conflicts.
        JobError: the distribution does not match the shape or the devices.

    Example:
        >>> @flow.global_function()
        ... def job() -> tp.Numpy:
        ...     return flow.get_variable("w", (2,), initializer=flow.ones_initializer())
        >>> job()
        array([1., 1.], dtype=float32)
    """
    job, line = current_job("get_variable"), user_line(2)
    full = _full_name(name, line)
    element = as_dtype(job.config.get("default_data_type") if dtype is None else dtype)
    values = _initial_values(initializer, element)
    if shape is None and values is not None:
        shape = values.shape
    sizes = _sizes(full, shape, line)
    _check_values(full, values, sizes, line)
    attrs = {
        "shape": sizes,
        "dtype": element.name,
        "initializer": _initializer(job, initializer) if values is None else _digest(values),
        "trainable": True if trainable is None else bool(trainable),
        "regularizer": _regularizer(full, regularizer, line),
        "seed": _seed(full, random_seed, line),
    }
    info = VariableInfo(full, tensor_type(sizes, element), Attrs(attrs), job.name, line, values)
    value = _known(job, info, reuse or current_scope().reuse)
    job.session.declare_variable(info)
    attempted = f"distribution of {full!r} in job {job.name!r}"
    sbp = decode_distribution(distribute, info.type.shape, attempted, line)
    if value is None:
        texts = either("get_variable", parallel_distribution, nd_sbp, line)
        request = _Request(distribute, sbp, texts, parallel_hierarchy)
        value = _new_variable(job, info, name, request)
    blob = BlobDef(job, value).with_request(distribute, sbp)
    return stale_value(blob, current_scope().stale) if _used_stale(job, info) else blob


def _full_name(name: str, line: SourceLine | None) -> str:
    """Return the name with the prefix of the current name scope."""
    if not isinstance(name, str) or not name:
        raise VariableError("get_variable", at=line, found=f"name {name!r}", allowed="a text")
    return current_scope().prefix + name


def _initial_values(initializer: object, element: DType) -> Array | None:
    """Return a copy of an initializer that is an array, None for others."""
    if initializer is None or isinstance(initializer, Initializer | dict | tuple | str):
        return None
    is_array = hasattr(initializer, "__array__") or hasattr(initializer, "__dlpack__")
    return np.array(host_array(initializer), element.numpy, order="C") if is_array else None


def _check_values(
    name: str, values: Array | None, sizes: tuple[int, ...], line: SourceLine | None
) -> None:
    if values is not None and values.shape != sizes:
        raise VariableError(
            f"variable {name!r}",
            at=line,
            found=f"an initializer of shape {values.shape}",
            allowed=f"an array of the variable's shape {sizes}",
        )


def _digest(values: Array) -> tuple[AttrValue, ...]:
    """Return the literal that stands for an array in the attributes of a variable."""
    data = values.reshape(-1).view(np.uint8).data
    return (VALUES, hashlib.sha256(data).hexdigest())


def _used_stale(job: JobBuild, info: VariableInfo) -> bool:
    """Return whether the job uses an earlier (stale) value of a variable; see `stale_value`."""
    is_enabled = job.config.is_set("enable_ssp") and job.config.get("enable_ssp")
    trained = job.kind == "train" and info.attrs["trainable"]
    return bool(is_enabled and trained and current_scope().stale > 1)


def stale_value(variable: BlobDef, size: int) -> BlobDef:
    """Return the value of a variable ``size - 1`` steps ago; the variable itself for a size of 1.

    A ring buffer, which is a variable itself, holds the values at the start of the last
    ``size - 1`` steps.
    """
    job = variable.job
    known: BlobDef | None = job.stale.get(variable.value)
    if known is not None or size == 1:
        return known or variable
    name = variable.op_name
    ring = _state(f"{name}-ssp_ring", (size - 1, *variable.shape), variable.dtype)
    count = _state(f"{name}-ssp_count", (1,), int64)
    value: BlobDef = emit("ssp_variable_proxy", variable, ring, count)
    job.stale[variable.value] = value
    return value


def _state(name: str, shape: Sequence[int], dtype: DType) -> BlobDef:
    """Return a non-trainable variable that starts at zero, given its full name."""
    job = current_job("get_variable")
    with enter(replace(current_scope(), names=())):
        given = Attrs({
            "shape": tuple(shape), "dtype": dtype.name, "initializer": ("constant", 0),
            "trainable": False, "regularizer": None, "seed": None,
        })  # fmt: skip
        line = user_line(3)
        info = VariableInfo(name, tensor_type(tuple(shape), dtype), given, job.name, line)
        job.session.declare_variable(info)
        return BlobDef(job, _new_variable(job, info, name, _Request(None, None, None, None)))


@dataclass(frozen=True, slots=True)
class _Request:
    """A requested distribution and its SBP, or the text of an SBP per hierarchy dimension."""

    distribute: Distribution | None
    sbp: Sbp | None
    texts: Sequence[str] | None
    hierarchy: Sequence[int] | None


def _sizes(name: str, shape: Any, line: SourceLine | None) -> tuple[int, ...]:
    try:
        sizes = tuple(operator.index(n) for n in shape)
    except TypeError:
        sizes = (-1,)
    if any(n < 0 for n in sizes):
        raise VariableError(
            f"variable {name!r}",
            at=line,
            found="no shape" if shape is None else f"shape {shown(shape)}",
            allowed="a shape: integers of at least 0",
        )
    return sizes


def _seed(name: str, seed: object, line: SourceLine | None) -> int | None:
    if seed is not None and not hasattr(seed, "__index__"):
        found = f"random_seed {shown(seed)}"
        raise VariableError(f"variable {name!r}", at=line, found=found, allowed="an integer, None")
    return None if seed is None else operator.index(seed)


def _initializer(job: JobBuild, initializer: object) -> tuple[AttrValue, ...]:
    if initializer is not None:
        return initializer_attr(initializer)
    return job.config.get("default_initializer_conf") or DEFAULT_INITIALIZER


def _regularizer(name: str, regularizer: object, line: SourceLine | None) -> Any:
    if regularizer is None:
        return None
    if not hasattr(regularizer, "to_attr") or isinstance(regularizer, Initializer):
        raise VariableError(
            f"variable {name!r}",
            at=line,
            found=f"regularizer {regularizer!r:.60}",
            allowed="None or what flow.regularizers.* returns",
        )
    return regularizer.to_attr()


def _known(job: JobBuild, info: VariableInfo, reuse: bool) -> Value | None:
    """Return the job's variable of a name, None if the job has none."""
    value = job.variables.get(info.name)
    if value is not None and not reuse:
        raise VariableError(
            f"variable {info.name!r} in job {job.name!r}",
            at=info.line,
            found=f"a variable of that name, made at {job.builder.lines.get(value.op)}",
            allowed="a new name, since reuse=False",
            hint='give each layer a name of its own: name="..."; to share the weights, call the '
            "layers in `with flow.scope.reuse_variables():`",
        )
    return value


def _new_variable(job: JobBuild, info: VariableInfo, name: str, request: _Request) -> Value:
    """Add a ``variable`` op under the variable's name and return its output."""
    existing = job.builder.ops.get(info.name)
    if existing is not None:
        raise VariableError(
            f"variable {info.name!r} in job {job.name!r}",
            at=info.line,
            found=f"another op of that name ({existing.type}), made at "
            f"{job.builder.lines.get(info.name)}",
            allowed="a name that no op of the job has",
        )
    placement = reshaped("get_variable", scope_placement(job), request.hierarchy, info.line)
    rank = len(info.type.shape)
    if request.texts is not None and request.distribute is not None:
        raise VariableError(
            f"variable {info.name!r} in job {job.name!r}",
            at=info.line,
            found=f"distribute={request.distribute!r} and parallel_distribution={request.texts!r}",
            allowed="one of them",
        )
    if request.texts is None:
        sbp = over_placement(request.sbp, scope_placement(job))
    else:
        sbp = decode_nd_sbp("get_variable", request.texts, placement, rank, info.line)
    (value,) = job.add(
        "variable", (), info.attrs, name=name, line=info.line, sbp=sbp, placement=placement
    )
    job.variables[info.name] = value
    return value
