"""Variables: session state that jobs share by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flow_core.dtypes import DType, as_dtype, float32
from flow_core.errors import SourceLine, VariableError, user_line
from flow_core.frontend.blob import BlobDef
from flow_core.frontend.jobs import current_job
from flow_core.frontend.scope import current_scope
from flow_core.ir import Attrs, TensorType, tensor_type

DEFAULT_INITIALIZER = ("constant", 0.0)


@dataclass(frozen=True, slots=True)
class VariableInfo:
    """What the jobs of a session agree on about a variable.

    Attributes:
        name: its name, unique in the session.
        type: logical shape and element type.
        attrs: attributes of its ``variable`` op (initializer, trainable ...).
        job: the job that first asked for it.
        line: the user's line there.
    """

    name: str
    type: TensorType
    attrs: Attrs
    job: str
    line: SourceLine | None

    def check_same(self, other: VariableInfo) -> None:
        """Raises `VariableError` naming both lines when two requests disagree."""
        checks = [("type", self.type, other.type)]
        checks += [
            (key, self.attrs.get(key), other.attrs.get(key)) for key in ("initializer", "seed")
        ]
        for what, mine, theirs in checks:
            if mine != theirs:
                raise VariableError(
                    f"variable {self.name!r} in job {other.job!r}",
                    at=other.line,
                    found=f"{what} {theirs}",
                    allowed=f"{what} {mine}, as in job {self.job!r} at {self.line}",
                    hint="give it another name, or make both requests the same",
                )


def get_variable(
    name: str,
    shape: Sequence[int] | None = None,
    dtype: DType = float32,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool | None = None,
    model_name: str | None = None,
    random_seed: int | None = None,
    distribute: Any = None,
    reuse: bool = True,
) -> BlobDef:
    """Creates a variable, or gives the one of that name.

    Args:
        name: unique name below the current name scope.
        shape: logical shape.
        dtype: element type.
        initializer: one of ``flow.*_initializer``; the job's default or zeros when None.
        regularizer: one of ``flow.regularizers``.
        trainable: whether optimizers update it; True when None.
        model_name: kept for OneFlow's programs; has no effect.
        random_seed: seed of a random initializer.
        distribute: requested distribution over the devices.
        reuse: whether a variable of that name in this job may be used again.

    Raises:
        VariableError: no shape, a second use with ``reuse=False``, or a conflict with another
            request for the same name.
    """
    job = current_job("get_variable")
    line = user_line(2)
    full = current_scope().prefix + name
    if shape is None:
        raise VariableError(f"variable {full!r}", at=line, found="no shape", allowed="a shape")
    attrs = {
        "shape": tuple(int(n) for n in shape),
        "dtype": as_dtype(dtype).name,
        "initializer": _initializer(job, initializer),
        "trainable": True if trainable is None else bool(trainable),
        "regularizer": None if regularizer is None else regularizer.to_attr(),
        "seed": random_seed,
    }
    info = VariableInfo(
        full, tensor_type(attrs["shape"], as_dtype(dtype)), Attrs(attrs), job.name, line
    )
    if full in job.variables:
        return _reuse(job, info, reuse, line)
    job.session.declare_variable(info)
    (value,) = job.add("variable", (), attrs, name=name, line=line)
    job.variables[full] = value
    blob = BlobDef(job, value)
    return blob if distribute is None else blob.with_distribute(distribute)


def _initializer(job: Any, initializer: Any) -> tuple[Any, ...]:
    if initializer is None:
        initializer = getattr(job.config, "default_initializer", None)
    if initializer is None:
        return DEFAULT_INITIALIZER
    attr: tuple[Any, ...] = initializer.to_attr()
    return attr


def _reuse(job: Any, info: VariableInfo, reuse: bool, line: SourceLine | None) -> BlobDef:
    value = job.variables[info.name]
    if not reuse:
        raise VariableError(
            f"variable {info.name!r} in job {job.name!r}",
            at=line,
            found=f"a variable of that name, made at {job.builder.lines.get(value.op)}",
            allowed="a new name, since reuse=False",
        )
    job.session.declare_variable(info)
    return BlobDef(job, value)
