"""Wrap the functions in plugins' records, so that errors name the record, the plugin and the line.

The records of core's own plugins are not wrapped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from operator import index
from pathlib import Path
from typing import Any, TypeVar, cast

from flow_core.base.errors import (
    FlowError,
    PluginError,
    PluginResultError,
    SourceLine,
    described,
    user_line,
)
from flow_core.device import Comm, Driver
from flow_core.ir.graph import TensorType
from flow_core.plugins.exporters import ExporterSpec
from flow_core.plugins.kinds import show
from flow_core.plugins.records import Origin
from flow_core.plugins.specs import (
    AnnotationSpec,
    Available,
    BoxingSpec,
    CommSpec,
    DeviceSpec,
    FormatSpec,
    KernelSpec,
    Lazy,
    OpSpec,
    Unavailable,
    load,
)
from flow_core.sharding.sbp import Signature, Split

Item = TypeVar("Item")
Args = tuple[Any, ...]
Result = Callable[[Any, Args], object]
"""A function that checks the result of a call, given the call's arguments, and converts it."""


class _WrongError(Exception):
    """A result is wrong; the arguments of the exception are what is allowed and what was found."""


@dataclass(frozen=True, slots=True)
class Guard:
    """A function of a record, whose failures name the record and its plugin.

    Attributes:
        target: the function, or its lazy ``"package.module:attribute"`` text.
        field: the name of the record's field.
        record: a description of the record for messages.
        origin: the record's plugin.
        result: the function that checks and converts results.
        by_op: whether the function is called for an op; its errors then get the line of the op,
            from the function's first argument or from the caller.
    """

    target: Lazy
    field: str
    record: str
    origin: Origin
    result: Result
    by_op: bool

    def __call__(self, *args: object, **options: object) -> object:
        """Call the function.

        Raises:
            PluginError: the function raises an exception.  Errors of flow, and `OSError` of file
                formats, propagate unchanged.
            PluginResultError: the function returns a value that is not allowed.
        """
        try:
            function = load(self.target, f"{self.field} of {self.record}, {self.origin}")
        except FlowError as error:
            error.with_context(at=self._line(args), hint=self.origin.remedy)
            raise
        try:
            return self.result(function(*args, **options), args)
        except (FlowError, MemoryError):
            raise
        except _WrongError as wrong:
            allowed, found = wrong.args
            raise result_error(
                self._attempted(), self.origin, found, allowed, self._line(args)
            ) from None
        except Exception as error:
            if isinstance(error, OSError) and self.field in ("reader", "writer"):
                raise
            raise plugin_error(self._attempted(), self.origin, error, self._line(args)) from error

    def _attempted(self) -> str:
        return f"calling `{self.field}` of {self.record}, {self.origin}"

    def _line(self, args: Args) -> SourceLine | None:
        if self.by_op:
            return getattr(args[0], "line", None) if args else None
        return user_line()


def plugin_error(
    attempted: str, origin: Origin | None, error: BaseException, at: SourceLine | None = None
) -> PluginError:
    """Return the error for an exception of a plugin's code.

    Args:
        attempted: the attempted action.
        origin: the plugin, None if unknown.
        error: the exception.
        at: the user's line.
    """
    hint = None if origin is None else origin.remedy
    return PluginError(attempted, at=at, found=described(error), hint=hint)


def result_error(
    attempted: str, origin: Origin | None, found: str, allowed: str, at: SourceLine | None = None
) -> PluginResultError:
    """Return the error for a wrong result of a plugin's code; arguments are the error's parts."""
    hint = None if origin is None else origin.remedy
    return PluginResultError(attempted, at=at, found=found, allowed=allowed, hint=hint)


@contextmanager
def plugin_code(attempted: str, origin: Origin | None, at: SourceLine | None) -> Iterator[None]:
    """Raise exceptions of a plugin's code as `plugin_error`; add only the line to flow's errors."""
    try:
        yield
    except FlowError as error:
        if error.at is None:
            error.with_context(at=at)
        raise
    except MemoryError:
        raise
    except Exception as error:
        raise plugin_error(attempted, origin, error, at) from error


def _any(value: object, _: Args) -> object:
    return value


def _truth(value: object, _: Args) -> bool:
    return bool(value)


def _wrong(value: object, allowed: str) -> _WrongError:
    return _WrongError(allowed, show(value))


def _sequence(value: object, allowed: str) -> tuple[object, ...]:
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise _wrong(value, allowed)
    return tuple(value)


def _sequence_of(kind: type[Item], value: object) -> tuple[Item, ...]:
    allowed = f"a sequence of {kind.__name__}"
    found: list[Item] = []
    for item in _sequence(value, allowed):
        if not isinstance(item, kind):
            raise _wrong(item, allowed)
        found.append(item)
    return tuple(found)


def _types(value: object, _: Args) -> tuple[TensorType, ...]:
    return _sequence_of(TensorType, value)


def _types_of(spec: OpSpec) -> Result:
    """Return the check of an op's inferred types; it also checks their number, if that is fixed."""
    count = len(spec.outputs)
    if any(name.endswith("*") for name in spec.outputs):
        return _types

    def check(value: object, args: Args) -> tuple[TensorType, ...]:
        found = _types(value, args)
        if len(found) != count:
            raise _WrongError(f"{count}, the number of outputs", f"{len(found)} types")
        return found

    return check


def _signatures(value: object, args: Args) -> tuple[Signature, ...]:
    found = _sequence_of(Signature, value)
    inputs, outputs = args[0].inputs, args[0].outputs
    for rule in found:
        counts = len(rule.inputs), len(rule.outputs)
        if counts[0] != len(inputs) or (outputs and counts[1] != len(outputs)):
            raise _wrong(str(rule), f"an SBP for each of {len(inputs)} inputs and of the outputs")
        for sbp, type_ in (*zip(rule.inputs, inputs), *zip(rule.outputs, outputs)):  # noqa: B905
            if isinstance(sbp, Split) and not 0 <= sbp.axis < len(type_.shape):
                raise _wrong(str(rule), f"splits of an axis of {type_}")
    return found


def _attrs(value: object, args: Args) -> Mapping[str, object]:
    known = args[0].attrs
    allowed = f"a mapping of attributes: {', '.join(known) or 'the op has none'}"
    if not isinstance(value, Mapping) or not {*value} <= {*known}:
        raise _wrong(value, allowed)
    return value


def _gradients(value: object, args: Args) -> tuple[object, ...]:
    count = len(args[0].inputs)
    allowed = f"a gradient or None for each of {count} inputs"
    found = _sequence(value, allowed)
    if len(found) != count:
        raise _WrongError(allowed, f"{len(found)} gradients")
    for grad in found:
        if grad is not None and not hasattr(grad, "value"):
            raise _wrong(grad, allowed)
    return found


def _bytes(value: object, _: Args) -> int:
    if not hasattr(value, "__index__") or index(value) < 0:
        raise _wrong(value, "a number of bytes, at least 0")
    return index(value)


def _number(value: Any, _: Args) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = -1.0
    if not found >= 0:
        raise _wrong(value, "a number, at least 0")
    return found


def _launches(value: object, _: Args) -> object:
    bound = value if isinstance(value, tuple | list) else (value,)
    for launch in bound:
        if not callable(launch):
            raise _wrong(launch, "a launch (a callable without arguments), or a sequence of them")
    return value


def _instance(*kinds: type) -> Result:
    def check(value: object, _: Args) -> object:
        if not isinstance(value, kinds):
            raise _wrong(value, " or ".join(kind.__name__ for kind in kinds))
        return value

    return check


def _layouts(value: object, _: Args) -> tuple[object, ...]:
    allowed = "a sequence of (placement, SBP) pairs"
    found = _sequence(value, allowed)
    for pair in found:
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise _wrong(pair, allowed)
    return found


def _files_of(spec: FormatSpec) -> Result:
    """Return the check that a writer, called with a folder and variables, has written files."""

    def check(value: object, args: Args) -> object:
        folder, variables = Path(args[0]), args[1]
        found = ", ".join(sorted(path.name for path in folder.iterdir())) or "no file"
        if spec.file is not None and not (folder / spec.file).is_file():
            raise _WrongError(f"the file {spec.file!r} in the folder given to it", found)
        if spec.file is None and variables and found == "no file":
            raise _WrongError("files in the folder given to it", found)
        return value

    return check


_RESULTS: Mapping[type, Mapping[str, Result]] = {
    OpSpec: {
        "infer": _types,
        "sbp": _signatures,
        "localize": _attrs,
        "gradient": _gradients,
        "work": _number,
    },
    KernelSpec: {"load": _launches, "accepts": _truth, "workspace": _bytes, "batchable": _truth},
    DeviceSpec: {"driver": _instance(Driver)},
    CommSpec: {
        "bootstrap": _instance(Available, Unavailable),
        "load": _instance(Comm),
        "world": _any,
        "static_bootstrap": _any,
    },
    BoxingSpec: {"cost": _number, "load": _layouts},
    AnnotationSpec: {"matches": _truth, "placeholder": _any, "fetch": _any},
    FormatSpec: {"can_open": _truth, "reader": _instance(Mapping), "writer": _any},
    ExporterSpec: {"load": _any},
}
"""The guarded fields of each type of record, and the check of each field's results."""

_DEFAULTS = {kind: {f.name: f.default for f in fields(kind)} for kind in _RESULTS}


def guarded(spec: object, record: str, origin: Origin) -> object:
    """Return a record whose functions are guarded; fields with default values are unchanged.

    Args:
        spec: the record.
        record: a description of the record for errors.
        origin: the record's plugin.
    """
    defaults = _DEFAULTS.get(type(spec), {})
    by_op = isinstance(spec, OpSpec | KernelSpec)
    guards: dict[str, Guard] = {}
    for name, result in _RESULTS.get(type(spec), {}).items():
        target = getattr(spec, name)
        if target is not None and target is not defaults[name]:
            if isinstance(spec, OpSpec) and name == "infer":
                result = _types_of(spec)
            if isinstance(spec, FormatSpec) and name == "writer":
                result = _files_of(spec)
            guards[name] = Guard(target, name, record, origin, result, by_op)
    return replace(cast(Any, spec), **guards) if guards else spec


def guarded_hook(call: Callable[..., object], hook: str, origin: Origin) -> Callable[..., object]:
    """Wrap a hook implementation, called after loading, so that errors name the hook and plugin."""

    def guarded_call(*arguments: object) -> object:
        try:
            return call(*arguments)
        except FlowError:
            raise
        except Exception as error:
            attempted = f"calling hook {hook} of {origin}"
            raise plugin_error(attempted, origin, error, user_line()) from error

    return guarded_call
