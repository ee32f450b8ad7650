"""Signatures: the parameters and results of jobs, and the parameters of handlers."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

from flow_core.annotations.parsing import EXAMPLE, parse_placeholder, parse_result
from flow_core.annotations.records import (
    UNANNOTATED,
    Fetch,
    FetchCallback,
    FetchLeaf,
    Placeholders,
    PlaceholderSpec,
)
from flow_core.base.errors import AnnotationError, SourceLine
from flow_core.plugins.specs import AnnotationSpec


@dataclass(frozen=True, slots=True)
class JobSignature:
    """The signature of a job function.

    Attributes:
        parameters: the placeholders of each parameter by its name, in order.
        result: the parsed return annotation.
        at: the source line of the function.
        python: the Python signature, which binds the arguments of calls.
    """

    parameters: Mapping[str, Placeholders]
    result: Fetch
    at: SourceLine | None
    python: inspect.Signature

    @property
    def is_async(self) -> bool:
        """Whether calls take a callback."""
        return isinstance(self.result, FetchCallback)

    def scaled(self, factor: int) -> JobSignature:
        """Return the signature for batches that are ``factor`` times as large."""
        parameters = {name: _scaled(spec, factor) for name, spec in self.parameters.items()}
        return replace(self, parameters=parameters)


def _scaled(spec: Placeholders, factor: int) -> Placeholders:
    if isinstance(spec, PlaceholderSpec):
        sizes = [n * factor if i == spec.batch_axis else n for i, n in enumerate(spec.shape)]
        return replace(spec, shape=tuple(sizes))
    if isinstance(spec, Mapping):
        return {name: _scaled(item, factor) for name, item in spec.items()}
    return type(spec)(_scaled(item, factor) for item in spec)


def parse_signature(
    function: Callable[..., object], specs: Sequence[AnnotationSpec], *, job: str = ""
) -> JobSignature:
    """Parse the signature of a job function.

    Either all parameters are annotated, or none is and each has a `PlaceholderSpec` (or tuples,
    lists or dicts of these) as its default.  Textual annotations may use local names of the
    functions around the definition, so this must be called while they run, as a decorator is.

    Raises:
        AnnotationError: an annotation is missing, unknown or misplaced.
    """
    job = job or function.__name__
    at = _line_of(function)
    names = _names_of(function)
    try:
        python = inspect.signature(function)
    except NameError as error:  # annotations are evaluated here since Python 3.14
        raise AnnotationError(f"annotations of job {job!r}", at=at, found=str(error)) from error
    parameters = {p.name: _parameter(p, specs, job, at, names) for p in python.parameters.values()}
    _check_uniform(python, job, at)
    result = parse_result(python.return_annotation, specs, job=job, at=at, names=names)
    return JobSignature(parameters, result, at, python)


def _line_of(function: Callable[..., object]) -> SourceLine | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return SourceLine(code.co_filename, code.co_firstlineno) if code else None


def _parameter(
    p: inspect.Parameter,
    specs: Sequence[AnnotationSpec],
    job: str,
    at: SourceLine | None,
    names: Mapping[str, object],
) -> Placeholders:
    subject = f"parameter {p.name!r} of job {job!r}"
    if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
        raise AnnotationError(
            subject,
            at=at,
            found=str(p.replace(annotation=p.empty)),
            allowed="named parameters, because data are fed by name",
            hint="to feed several arrays as a tuple, annotate one parameter with "
            "Tuple[Annotated[tp.Numpy, tp.shape(4, 3)], ...]",
        )
    if p.annotation is p.empty:
        return _default(p, subject, at)
    if p.default is not p.empty:
        raise AnnotationError(
            subject, at=at, found=f"a default value {p.default!r:.60}", allowed="no default value"
        )
    return parse_placeholder(p.annotation, specs, parameter=p.name, job=job, at=at, names=names)


def _default(p: inspect.Parameter, subject: str, at: SourceLine | None) -> Placeholders:
    if p.default is p.empty or not _all_placeholders(p.default):
        raise AnnotationError(
            subject,
            at=at,
            found="no annotation" if p.default is p.empty else f"default {p.default!r:.60}",
            allowed="an annotation, or a placeholder as default value",
            hint=_advice(p),
        )
    return p.default


def _advice(p: inspect.Parameter) -> str:
    """Return a hint for a parameter that cannot be fed."""
    if p.default is not p.empty:
        return f"drop it, and let the function use the variable {p.name} of the program around it"
    if p.name in ("self", "cls"):
        return "define the job inside of a method, or of __init__, where it sees the object"
    return f"write {p.name}: {EXAMPLE}"


def _all_placeholders(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_all_placeholders, value))
    if isinstance(value, dict):
        return all(map(_all_placeholders, value.values()))
    return isinstance(value, PlaceholderSpec)


def _check_uniform(python: inspect.Signature, job: str, at: SourceLine | None) -> None:
    bare = [p.name for p in python.parameters.values() if p.annotation is p.empty]
    if bare and len(bare) < len(python.parameters):
        raise AnnotationError(
            f"parameters of job {job!r}",
            at=at,
            found=f"no annotation of {', '.join(bare)}",
            allowed="annotations of all parameters, or of no parameter",
        )


def parse_handler(function: Callable[..., object], specs: Sequence[AnnotationSpec]) -> FetchLeaf:
    """Return the form in which a handler of ``watch`` takes its argument.

    Without an annotation, the argument is a handle (kind "blob").  Further parameters must have
    defaults; programs use these to capture loop variables.  Raises `AnnotationError`.

    >>> parse_handler(lambda x, name="w": None, ())
    FetchLeaf(kind='blob')
    """
    name, at = getattr(function, "__name__", repr(function)), _line_of(function)
    parameters = list(inspect.signature(function).parameters.values())
    needed = [p for p in parameters if p.default is p.empty]
    if len(needed) != 1:
        raise AnnotationError(
            f"handler {name!r}", at=at, found=f"{len(needed)} parameters", allowed="one"
        )
    names = _names_of(function)
    annotation = needed[0].annotation
    subject = f"parameter of handler {name!r}"
    fetch = parse_result(annotation, specs, at=at, names=names, subject=subject)
    leaf = FetchLeaf("blob") if fetch == UNANNOTATED else fetch
    if not isinstance(leaf, FetchLeaf):
        raise AnnotationError(
            subject, at=at, found=str(fetch), allowed="Numpy, ListNumpy or ListListNumpy"
        )
    return leaf


def _names_of(function: Callable[..., object]) -> dict[str, object]:
    """Return what a function's annotations may name: globals, enclosing locals, the closure."""
    plain = inspect.unwrap(function)
    code = getattr(plain, "__code__", None)
    if code is None:
        return {}
    closure = zip(code.co_freevars, plain.__closure__ or (), strict=False)
    return {
        **plain.__globals__,
        **_enclosing_locals(code),
        **{name: cell.cell_contents for name, cell in closure if _is_filled(cell)},
    }


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not _is_filled
    except ValueError:
        return False


def _enclosing_locals(code: CodeType) -> dict[str, object]:
    """Return the local names of the running functions whose bodies contain ``code``.

    Names that only annotations use are not in the closure, so they are read from the frames on the
    stack; a frame encloses ``code`` if its own code object has ``code`` among its constants.
    """
    found: dict[str, Any] = {}
    frame = sys._getframe(1)
    while frame is not None:
        if any(constant is code for constant in frame.f_code.co_consts):
            if frame.f_locals is not frame.f_globals:
                found = {**frame.f_locals, **found}
            code = frame.f_code
        frame = frame.f_back  # type: ignore[assignment]  # the outermost frame has no caller
    return found
