"""The kinds of records that plugins register, and the validation of each record."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from flow_core.base.alignment import ALIGNMENT
from flow_core.base.config import HOST_FALLBACK
from flow_core.base.errors import PluginResultError, shown
from flow_core.plugins.exporters import ExporterSpec
from flow_core.plugins.records import Origin
from flow_core.plugins.specs import (
    AnnotationSpec,
    BoxingSpec,
    CommSpec,
    DecoderSpec,
    DeviceSpec,
    FormatSpec,
    KernelSpec,
    OpSpec,
    PassSpec,
    ReaderSpec,
)

STAGES = ("logical", "train", "lower", "legalize", "physical")
"""Stages of passes, in execution order."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of record.

    Attributes:
        hook: the hook that returns such records.
        table: name of the registry's table of these records.
        spec: type of the records.
        noun: term for such a record in messages.
        key: field with the unique name; the key of a kernel combines several fields.
        names: other fields that are non-empty strings.
        lazy: fields that are ``"package.module:attribute"`` strings or callables.
        imports: fields that are ``"package.module:attribute"`` strings, because plans contain them.
        optional: lazy fields that may be None.
        calls: fields that are callables, never strings.
        optional_calls: fields that are callables or None.
        tuples: fields that are tuples of texts.
        alignments: fields that are alignments in bytes.
        choices: fields that are one of some words.
    """

    hook: str
    table: str
    spec: type
    noun: str
    key: str = "name"
    names: tuple[str, ...] = ()
    lazy: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    optional_calls: tuple[str, ...] = ()
    tuples: tuple[str, ...] = ()
    alignments: tuple[str, ...] = ()
    choices: tuple[tuple[str, tuple[str, ...]], ...] = ()


KINDS: tuple[Kind, ...] = (
    Kind(
        "flow_register_ops", "ops", OpSpec, "op", "type", calls=("infer", "sbp", "localize"),
        optional_calls=("gradient", "reference", "samples", "work"), tuples=("inputs", "outputs"),
    ),
    Kind(
        "flow_register_kernels", "kernels", KernelSpec, "kernel", "op", ("device",), ("load",),
        optional_calls=("accepts", "workspace", "batchable"),
    ),
    Kind(
        "flow_register_devices", "devices", DeviceSpec, "device", "type",
        lazy=("probe", "driver"), alignments=("alignment",),
        choices=(("host_fallback", HOST_FALLBACK),),
    ),
    Kind(
        "flow_register_comms", "comms", CommSpec, "comm",
        lazy=("bootstrap", "load"), optional=("world", "static_bootstrap"),
        tuples=("device_types",),
    ),
    Kind(
        "flow_register_boxing", "boxing", BoxingSpec, "boxing",
        names=("source", "target"), lazy=("cost", "load"), tuples=("device_types",),
    ),
    Kind("flow_register_readers", "readers", ReaderSpec, "reader", imports=("load",)),
    Kind("flow_register_decoders", "decoders", DecoderSpec, "decoder", imports=("load",)),
    Kind(
        "flow_register_annotations", "annotations", AnnotationSpec, "annotation",
        optional=("placeholder", "fetch"), calls=("matches",),
    ),
    Kind(
        "flow_register_passes", "passes", PassSpec, "pass", lazy=("load",),
        tuples=("before", "after"), choices=(("stage", STAGES),),
    ),
    Kind(
        "flow_register_checkpoint_formats", "formats", FormatSpec, "checkpoint format",
        lazy=("reader",), optional=("writer",), calls=("can_open",),
    ),
    Kind(
        "flow_register_exporters", "exporters", ExporterSpec, "exporter", lazy=("load",),
        optional=("importer",),
    ),
)  # fmt: skip

_LAZY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def checked_records(kind: Kind, origin: Origin, result: object) -> tuple[Any, ...]:
    """Validate and return the records that a hook returned.

    Raises:
        PluginResultError: the result or one of its elements has the wrong type or value.
    """
    if result is None:
        return ()
    if isinstance(result, str | dict) or not isinstance(result, Iterable):
        raise _wrong(kind, origin, f"{show(result)}", f"an iterable of {kind.spec.__name__}")
    records, rules = tuple(result), tuple(_rules(kind))
    for index, record in enumerate(records):
        if not isinstance(record, kind.spec):
            raise _wrong(kind, origin, f"element {index} is {show(record)}", kind.spec.__name__)
        for field, good, allowed in rules:
            value = getattr(record, field)
            if not good(value):
                where = f"element {index}: {kind.spec.__name__}.{field} is {show(value)}"
                raise _wrong(kind, origin, where, allowed)
    return records


def _rules(kind: Kind) -> Iterable[tuple[str, Callable[[object], object], str]]:
    """Yield (field, predicate, allowed values) for all fields of a kind."""
    for field in (kind.key, *kind.names):
        yield field, _is_name, "a non-empty text"
    for field in kind.lazy:
        yield field, _is_lazy, 'a callable or "package.module:attribute"'
    for field in kind.imports:
        allowed = '"package.module:attribute", a text that plans store for other processes'
        yield field, _is_import, allowed
    for field in kind.optional:
        yield field, _is_optional_lazy, 'a callable, "package.module:attribute" or None'
    for field in kind.calls:
        yield field, callable, "a callable"
    for field in kind.optional_calls:
        yield field, lambda value: value is None or callable(value), "a callable or None"
    for field in kind.tuples:
        yield field, _is_names, "a tuple of texts"
    if kind.spec is KernelSpec:
        yield "priority", lambda value: isinstance(value, int), "an integer"
    for field in kind.alignments:
        yield field, _is_alignment, f"a power of two, at least {ALIGNMENT}"
    if kind.spec is FormatSpec:
        yield "file", _is_optional_file, "a file name with a suffix, or None"
    for field, words in kind.choices:
        yield field, words.__contains__, f"one of {', '.join(words)}"


def _is_alignment(value: object) -> bool:
    return type(value) is int and value >= ALIGNMENT and value & (value - 1) == 0


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_names(value: object) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(name, str) for name in value)


def _is_optional_file(value: object) -> bool:
    return value is None or (isinstance(value, str) and bool(re.fullmatch(r"[^/\\]+\.\w+", value)))


def _is_import(value: object) -> bool:
    return isinstance(value, str) and bool(_LAZY.fullmatch(value))


def _is_lazy(value: object) -> bool:
    return _is_import(value) if isinstance(value, str) else callable(value)


def _is_optional_lazy(value: object) -> bool:
    return value is None or _is_lazy(value)


def show(value: object) -> str:
    """Return a text with a value and its type, for an error.

    >>> show("cube")
    "'cube' (a str)"
    """
    text = shown(value, 61)
    return f"{text if len(text) <= 60 else text[:57] + '...'} (a {type(value).__name__})"


def _wrong(kind: Kind, origin: Origin, found: str, allowed: str) -> PluginResultError:
    return PluginResultError(
        f"hook {kind.hook} of {origin}", found=found, allowed=allowed, hint=origin.remedy
    )
