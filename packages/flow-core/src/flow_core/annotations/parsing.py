"""Parsing of annotations to records: core parses the structure, specs of plugins the leaves."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, NoReturn

import numpy as np

from flow_core.annotations.records import (
    KIND_NAMES,
    UNANNOTATED,
    FedShape,
    Fetch,
    FetchBundle,
    FetchCallback,
    FetchDict,
    FetchLeaf,
    FetchList,
    FetchNone,
    FetchOf,
    FetchTuple,
    Kind,
    Placeholders,
    PlaceholderSpec,
    placeholder,
)
from flow_core.base.dtypes import DType, float32
from flow_core.base.errors import AnnotationError, FlowError, SourceLine, install_command
from flow_core.plugins.specs import AnnotationSpec, load

EXAMPLE = "Annotated[tp.Numpy, tp.shape(4, 3), flow.float32]"
"""The annotation of a parameter in hints."""

_MOST_QUOTES = 16
"""The largest depth to which textual annotations may be nested."""


@dataclass(frozen=True, slots=True)
class _Parse:
    """The visitor of an annotation: specs of leaves, and context for messages."""

    specs: Sequence[AnnotationSpec]
    subject: str
    at: SourceLine | None
    names: Mapping[str, Any] = field(default_factory=dict)

    def fail(self, found: object, allowed: str, hint: str | None = None) -> NoReturn:
        raise self._wrong(found, allowed, hint)

    def _wrong(self, found: object, allowed: str, hint: str | None = None) -> AnnotationError:
        what = found if isinstance(found, str) else annotation_name(found)
        return AnnotationError(self.subject, at=self.at, found=what, allowed=allowed, hint=hint)

    def evaluated(self, annotation: object) -> Any:
        """Evaluate a textual (or quoted) annotation to the object it names."""
        for _ in range(_MOST_QUOTES):
            text = getattr(annotation, "__forward_arg__", annotation)
            if not isinstance(text, str):
                return annotation
            annotation = self._named(text)
        self.fail("a text that names a text, and so on", "a text that names an annotation")

    def _named(self, text: str) -> Any:
        """Evaluate a text; report any error as an error of the annotation."""
        try:
            return eval(text, dict(self.names))
        except FlowError:
            raise
        except Exception as error:
            why = str(error) or type(error).__name__
            allowed = "names that are known where the job function is defined"
            raise self._wrong(f"{text!r:.200}: {why}", allowed) from error

    def spec(self, annotation: object) -> AnnotationSpec | None:
        """Return the only spec that matches an annotation, None for none; several are an error."""
        known = [spec for spec in self.specs if spec.matches(annotation)]
        if len(known) > 1:
            self.fail(
                annotation, "one meaning", f"claimed by {', '.join(sorted(s.name for s in known))}"
            )
        return known[0] if known else None


def annotation_name(annotation: object) -> str:
    """Return the text of an annotation for messages.

    >>> annotation_name(int), annotation_name(typing.Tuple[int, int])
    ('int', 'Tuple[int, int]')
    """
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__qualname__
    return str(annotation).removeprefix("typing.")


def _bare(annotation: Any) -> Any:
    """Return the annotation without ``Annotated``."""
    return annotation.__origin__ if hasattr(annotation, "__metadata__") else annotation


def parse_result(
    annotation: object,
    specs: Sequence[AnnotationSpec],
    *,
    job: str = "",
    at: SourceLine | None = None,
    names: Mapping[str, object] | None = None,
    subject: str | None = None,
) -> Fetch:
    """Parse a return annotation; raises `AnnotationError`.

    Args:
        annotation: the annotation, `inspect.Signature.empty` for none.
        job: name of the job, for messages.
        at: the user's source line, for messages.
        names: the objects to which names in textual annotations refer.
        subject: how messages refer to the annotation; by default, as the job's result annotation.

    >>> print(parse_result(None, ()))
    None
    """
    subject = subject or f"return annotation of job {job!r}"
    parse = _Parse(specs, subject, at, names or {})
    if annotation is inspect.Signature.empty:
        return UNANNOTATED
    annotation = _bare(parse.evaluated(annotation))
    fetch = _own_fetch(parse, annotation)
    if isinstance(fetch, FetchCallback):
        return FetchCallback(_fetch(parse, fetch.result))
    return _fetch(parse, fetch)


def _fetch(parse: _Parse, fetch: Fetch) -> Fetch:
    """Check a fetch at the top of a result, where None is allowed but callbacks are not."""
    if isinstance(fetch, FetchOf):
        annotation = _bare(parse.evaluated(fetch.annotation))
        return _fetch(parse, _own_fetch(parse, annotation))
    return fetch if isinstance(fetch, FetchNone) else _nested(parse, fetch)


def _nested(parse: _Parse, fetch: Fetch) -> Fetch:
    """Return a fetch inside another fetch, with every `FetchOf` resolved."""
    match fetch:
        case FetchOf(annotation):
            return _nested(parse, _own_fetch(parse, _bare(parse.evaluated(annotation))))
        case FetchTuple(items):
            return FetchTuple(tuple(_nested(parse, item) for item in items))
        case FetchList(item):
            return FetchList(_nested(parse, item))
        case FetchDict(key, item):
            return FetchDict(key, _nested(parse, item))
        case FetchBundle(leaf):
            return _bundle(parse, _nested(parse, leaf))
        case FetchCallback():
            parse.fail("a Callback inside of another annotation", "Callback[...] around the whole")
        case FetchNone():
            parse.fail("None inside of another annotation", "None as the whole annotation")
    return fetch


def _bundle(parse: _Parse, leaf: Fetch) -> FetchBundle:
    if not isinstance(leaf, FetchLeaf):
        parse.fail(f"Bundle[{leaf}]", "Bundle of Numpy, ListNumpy or ListListNumpy")
    return FetchBundle(leaf)


def _own_fetch(parse: _Parse, annotation: object) -> Fetch:
    """Parse one level of an annotation."""
    if annotation is None or annotation is NoneType:
        return FetchNone()
    container = typing.get_origin(annotation) or annotation
    build = _CONTAINERS.get(container) if isinstance(container, type) else None
    if build is not None:
        return build(parse, annotation, typing.get_args(annotation))
    spec = parse.spec(annotation)
    if spec is None or spec.fetch is None:
        _unknown(parse, annotation)
    fetch: Fetch = load(spec.fetch)(annotation)
    return fetch


def _tuple(parse: _Parse, annotation: object, args: tuple[object, ...]) -> Fetch:
    if not args or Ellipsis in args:
        parse.fail(annotation, "Tuple[T, ...] with each of its types written out")
    return FetchTuple(tuple(FetchOf(a) for a in args))


def _list(parse: _Parse, annotation: object, args: tuple[object, ...]) -> Fetch:
    if len(args) != 1:
        parse.fail(annotation, "List[T]")
    return FetchList(FetchOf(args[0]))


def _dict(parse: _Parse, annotation: object, args: tuple[object, ...]) -> Fetch:
    if len(args) != 2 or not isinstance(args[0], type):
        parse.fail(annotation, "Dict[K, T] with a type of keys, such as Dict[str, Numpy]")
    return FetchDict(args[0], FetchOf(args[1]))


_CONTAINERS: Mapping[type, Callable[[_Parse, Any, tuple[Any, ...]], Fetch]] = {
    tuple: _tuple,
    list: _list,
    dict: _dict,
}


def _unknown(parse: _Parse, annotation: object) -> NoReturn:
    known = [s.name for s in parse.specs if s.fetch is not None]
    hint = None
    if isinstance(annotation, PlaceholderSpec):
        hint = f"placeholders are for parameters; write -> tp.{KIND_NAMES[annotation.kind]}"
    elif getattr(annotation, "__module__", "") == "numpy" or annotation is list:
        hint = "for a numpy array write -> tp.Numpy"
    elif not known:
        hint = f"annotations come with flow-typing: {install_command('flow-typing')}"
    parse.fail(annotation, f"{', '.join([*known, 'Tuple, List, Dict of these', 'None'])}", hint)


def parse_placeholder(
    annotation: object,
    specs: Sequence[AnnotationSpec],
    *,
    parameter: str = "",
    job: str = "",
    at: SourceLine | None = None,
    names: Mapping[str, object] | None = None,
) -> Placeholders:
    """Parse the annotation of a parameter; raises `AnnotationError`.

    Returns:
        A `PlaceholderSpec`, or a tuple of these for ``Tuple[...]``.

    >>> from flow_core.annotations import placeholder
    >>> parse_placeholder(typing.Annotated[int, placeholder("numpy", (2,))], ()).shape
    (2,)
    """
    subject = f"annotation of parameter {parameter!r} of job {job!r}"
    return _placeholder(_Parse(specs, subject, at, names or {}), annotation)


def _placeholder(parse: _Parse, annotation: object) -> Placeholders:
    annotation = parse.evaluated(annotation)
    if isinstance(annotation, PlaceholderSpec):
        return annotation
    if hasattr(annotation, "__metadata__"):
        return _annotated(parse, annotation)
    args = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple and args and Ellipsis not in args:
        return tuple(_placeholder(parse, a) for a in args)
    spec = parse.spec(annotation)
    if spec is None or spec.placeholder is None:
        _no_placeholder(parse, annotation, spec)
    return load(spec.placeholder)(annotation)


def _annotated(parse: _Parse, annotation: Any) -> Placeholders:
    """Parse ``Annotated[tp.Numpy, tp.shape(4, 3), dtype]`` or ``Annotated[T, placeholder]``.

    The form of the fed value is `T` or, if that is Any, an annotation class of the metadata.
    """
    metadata = annotation.__metadata__
    found = [m for m in metadata if isinstance(m, PlaceholderSpec)]
    shapes = [m for m in metadata if isinstance(m, FedShape)]
    if len(found) == 1 and not shapes:
        return found[0]
    dtypes = [m for m in metadata if _is_dtype(m)]
    kinds = [k for k in (_kind(parse, a) for a in (annotation.__origin__, *metadata)) if k]
    if found or len(shapes) != 1 or len(kinds) != 1 or len(dtypes) > 1:
        parse.fail(annotation, f"{EXAMPLE}, with one shape")
    dtype = dtypes[0] if dtypes else float32
    return placeholder(kinds[0], shapes[0].sizes, dtype, shapes[0].batch_axis)


def _is_dtype(value: object) -> bool:
    number = isinstance(value, type) and issubclass(value, np.generic)
    return number or isinstance(value, DType | np.dtype)


def _kind(parse: _Parse, annotation: object) -> Kind | None:
    """Return the form of one value that an annotation names, None for others."""
    spec = parse.spec(annotation)
    fetch = spec.fetch and load(spec.fetch)(annotation) if spec else None
    return fetch.kind if isinstance(fetch, FetchLeaf) else None


def _no_placeholder(parse: _Parse, annotation: object, spec: AnnotationSpec | None) -> NoReturn:
    hint = None
    if spec is not None:
        hint = f"{spec.name} is for results; write {EXAMPLE.replace('Numpy', spec.name)}"
    elif not parse.specs:
        hint = f"annotations come with flow-typing: {install_command('flow-typing')}"
    elif getattr(annotation, "__module__", "") == "numpy":
        hint = f"shapes are part of a job: write {EXAMPLE}"
    parse.fail(
        annotation,
        f"{EXAMPLE}, tp.Numpy.Placeholder((4, 3)), the same with tp.ListNumpy or tp.ListListNumpy, "
        "or a Tuple of these",
        hint,
    )
