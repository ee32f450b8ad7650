"""Feeding: conversion of a call's arguments to host arrays, checked against the placeholders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any, NoReturn

import numpy as np

from flow_core.annotations import JobSignature, PlaceholderSpec
from flow_core.base.arrays import Array
from flow_core.base.dtypes import bfloat16
from flow_core.base.errors import FeedError, FlowError
from flow_core.base.host_arrays import host_array
from flow_core.base.shapes import Shape
from flow_core.frontend.job.partial_feeds import LocalRows, RowsFunction, partial_feed

Shapes = tuple[tuple[Shape, ...], ...]
"""The shapes that may differ between calls: for each placeholder with an open size, the shape of
its array, and for each placeholder of a list, one shape per device."""


_NUMBERS = "biuf"
"""The values of ``dtype.kind`` for numpy types whose elements are numbers."""

_UNKNOWN_BFLOAT16 = "numpy has no bfloat16: feed the numbers as float32, such as tensor.float()"

RAGGED = -1
"""Stands for the shapes of a list of several tensors, as in ``(count, RAGGED)``."""


def _is_numeric(array: Array) -> bool:
    return array.dtype.kind in _NUMBERS or array.dtype == bfloat16.numpy


def _shape(array: Array) -> Shape:
    return (len(array), RAGGED) if array.dtype == object else array.shape


def is_list(spec: PlaceholderSpec) -> bool:
    """Return whether a placeholder takes a list with an array per device."""
    return spec.kind in ("list", "list_list")


def declared_shapes(placeholders: Any, devices: int) -> list[tuple[Shape, ...]]:
    """Return the shapes with which nested placeholders are traced before the first call, in order.

    Lists have their largest shapes; an open size is 1 per device.
    """
    if isinstance(placeholders, PlaceholderSpec):
        if placeholders.is_open:
            return [((devices, *placeholders.shape[1:]),)]
        return [(placeholders.shape,) * devices] if is_list(placeholders) else []
    nested = placeholders.values() if isinstance(placeholders, Mapping) else placeholders
    return [shapes for spec in nested for shapes in declared_shapes(spec, devices)]


class Feeding:
    """The conversion of the arguments of a job's calls to a flat list of arrays.

    Args:
        devices: the number of arrays in a list, one per device.

    Attributes:
        declared: the shapes, of those that may differ between calls, that a job without a call
            has; see `declared_shapes`.
        names: the names of the fed arrays in user notation: ``x``, ``pair[0]``.
    """

    __slots__ = (
        "_devices", "_feeders", "_job", "_python", "_types", "_varying", "declared", "names",
    )  # fmt: skip

    def __init__(self, job: str, signature: JobSignature, devices: int) -> None:
        self._job = job
        self._python = signature.python
        self._devices = devices
        parameters = signature.parameters.items()
        self._feeders = [Feeder(job, name, spec, devices) for name, spec in parameters]
        self._types = [feeder.type for feeder in self._feeders]
        ends = list(accumulate((n for _, spec in parameters for n, _ in _counts(spec, devices))))
        varies = [v for _, spec in parameters for _, v in _counts(spec, devices)]
        spans = map(slice, [0, *ends], ends)
        self._varying = [span for span, varied in zip(spans, varies, strict=True) if varied]
        self.names = [path for name, spec in parameters for path in _paths(name, spec, devices)]
        self.declared: Shapes = tuple(
            shapes for _, spec in parameters for shapes in declared_shapes(spec, devices)
        )

    def feed(self, args: tuple[Any, ...], kwargs: Mapping[str, object]) -> Sequence[Array]:
        """Return the checked host arrays of one call, in the order of the job's inputs."""
        given: Sequence[Any] = args
        if len(args) != len(self._feeders) or kwargs:
            given = self._bind(args, kwargs)
        for value, (shape, dtype) in zip(given, self._types, strict=True):
            if type(value) is not np.ndarray or value.shape != shape or value.dtype != dtype:
                break
        else:  # as usual, all of them are arrays of the types of their placeholders
            return given
        arrays: list[Any] = []
        for feeder, value in zip(self._feeders, given, strict=True):
            feeder.collect(value, arrays)
        return arrays

    def shapes(self, arrays: Sequence[Array]) -> Shapes:
        """Return the shapes of the arrays whose shapes may differ between calls."""
        return tuple([tuple([_shape(x) for x in arrays[span]]) for span in self._varying])

    def _bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[object]:
        unfed = [
            p.replace(default=p.empty) for p in self._python.parameters.values()
        ]  # placeholders given as defaults are not values
        try:
            bound = self._python.replace(parameters=unfed).bind(*args, **kwargs)
        except TypeError as error:
            unknown = [name for name in kwargs if name not in self._python.parameters]
            named = f"no parameter {', '.join(unknown)}; " if unknown else ""
            raise FeedError.at_caller(
                f"calling job {self._job!r}",
                found=f"{named}{error}",
                allowed=f"{self._job}({', '.join(self._python.parameters)})",
            ) from None
        return [bound.arguments[name] for name in self._python.parameters]


class Feeder:
    """The conversion of the argument of one parameter to a flat list of arrays."""

    __slots__ = ("_devices", "_job", "_name", "_placeholders", "type")

    def __init__(self, job: str, name: str, placeholders: object, devices: int) -> None:
        self._job = job
        self._name = name
        self._placeholders = placeholders
        self._devices = devices
        self.type: tuple[Shape | None, Any] = (None, None)  # of arrays that are fed as they are
        if isinstance(placeholders, PlaceholderSpec) and placeholders.kind == "numpy":
            self.type = placeholders.shape, placeholders.dtype.numpy

    def collect(self, value: object, arrays: list[Array]) -> None:
        """Append the arrays of a fed value."""
        self._walk(self._placeholders, value, self._name, arrays)

    def _walk(self, spec: Any, value: Any, path: str, arrays: list[Any]) -> None:
        if isinstance(spec, PlaceholderSpec):
            self._leaf(spec, value, path, arrays)
        elif isinstance(spec, Mapping):
            if not isinstance(value, Mapping) or set(value) != set(spec):
                self._fail(path, _describe(value), f"a dict with keys {', '.join(spec)}")
            for key, part in spec.items():
                self._walk(part, value[key], f"{path}[{key!r}]", arrays)
        else:
            if not isinstance(value, list | tuple) or len(value) != len(spec):
                self._fail(path, _describe(value), f"{len(spec)} values")
            for i, part in enumerate(spec):
                self._walk(part, value[i], f"{path}[{i}]", arrays)

    def _leaf(self, spec: PlaceholderSpec, value: object, path: str, arrays: list[Array]) -> None:
        if not is_list(spec):
            if isinstance(value, LocalRows | RowsFunction):
                if spec.is_open:
                    self._fail(path, "rows of a batch", f"a whole array, because {spec} is open")
                arrays.append(self._partial(spec, value, path))
                return
            value = self._array(spec, value, path)
            first = value.shape[:1] if spec.is_open and value.size else spec.shape[:1]
            if value.shape != (*first, *spec.shape[1:]):
                hint = _about_size(spec, value.shape)
                self._fail(path, f"shape {value.shape}", f"shape {spec.sizes}", hint)
            arrays.append(value)
            return
        if not isinstance(value, list | tuple) or len(value) != self._devices:
            wanted = "one for the one device" if self._devices == 1 else f"{self._devices} of them"
            self._fail(path, _describe(value), f"a list of arrays, one per device: {wanted}")
        for device, item in enumerate(value):
            arrays.append(self._item(spec, item, f"{path}[{device}]"))

    def _partial(self, spec: PlaceholderSpec, value: LocalRows | RowsFunction, path: str) -> Any:
        """Return a feed that a step can slice like the whole array."""
        convert = partial(self._array, spec, path=path)
        return partial_feed(value, spec, f"feeding {path!r} of job {self._job!r}", convert)

    def _item(self, spec: PlaceholderSpec, value: object, path: str) -> Array:
        """Return the array of one device for a list placeholder."""
        if spec.kind == "list_list":
            if not isinstance(value, list | tuple) or not value:
                self._fail(path, _describe(value), "a list of arrays")
            if len(value) > 1:
                return self._tensors(spec, value, path)
            value, path = value[0], f"{path}[0]"
        value = self._array(spec, value, path)
        if len(value.shape) != len(spec.shape) or prod(value.shape) > prod(spec.shape):
            allowed = f"{len(spec.shape)} axes and at most {prod(spec.shape)} elements, as {spec}"
            self._fail(path, f"shape {value.shape}", allowed)
        return value

    def _tensors(self, spec: PlaceholderSpec, tensors: Sequence[object], path: str) -> Array:
        """Copy the tensors of a list, without their leading axes of size 1."""
        count, bound = spec.shape[0], spec.shape[1:]
        if len(tensors) != count:
            self._fail(path, _describe(tensors), f"a list of {count} arrays")
        copies = np.empty(count, object)
        for i, given in enumerate(tensors):
            x = self._array(spec, given, f"{path}[{i}]")
            if x.ndim != len(spec.shape) or len(x) != 1 or x.size > prod(bound):
                allowed = f"(1, ...), {len(spec.shape)} axes, at most {prod(bound)} elements"
                self._fail(f"{path}[{i}]", f"shape {x.shape}", allowed)
            copies[i] = x[0].copy()
        return copies

    def _array(self, spec: PlaceholderSpec, value: object, path: str) -> Array:
        """Return an array of the placeholder's element type: the value, or a cast copy of it."""
        if not isinstance(value, np.ndarray):
            value = self._converted(spec, value, path)
        masks = type(value) is not np.ndarray  # only then, because np.ma takes 40 ms to import
        if masks and isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
            masked = int(np.ma.getmaskarray(value).sum())
            found = f"an array of which {masked} elements are masked"
            self._fail(path, found, "an array without a mask", f"{path}.filled(0)")
        if value.dtype == spec.dtype.numpy:
            return value
        if spec.dtype.is_object or not _is_numeric(value):
            self._fail(path, f"an array of {value.dtype}", f"{spec.dtype}")
        return self._cast(spec, value, path)

    def _converted(self, spec: PlaceholderSpec, value: object, path: str) -> Array:
        """Convert numbers, or an object with an array interface, to an array."""
        try:
            array, problem = host_array(value), ""
        except FlowError:
            raise
        except Exception as error:  # noqa: BLE001 - the object's methods may raise anything
            array, problem = None, f", whose conversion ends with {type(error).__name__}: {error}"
        if array is None or (not _is_numeric(array) and array.dtype != spec.dtype.numpy):
            self._fail(
                path,
                _describe(value) + problem,
                f"a numpy array for {spec}, nested lists of numbers, or an object with __array__, "
                "__dlpack__ or a buffer",
                _UNKNOWN_BFLOAT16 if "bfloat16" in str(getattr(value, "dtype", "")) else None,
            )
        return array

    def _cast(self, spec: PlaceholderSpec, value: Array, path: str) -> Array:
        """Cast to the placeholder's element type; only floating point types may round values."""
        try:
            with np.errstate(invalid="ignore", over="raise"):
                cast = value.astype(spec.dtype.numpy)
        except FloatingPointError:
            largest = np.abs(value[np.isfinite(value)]).max()
            found = f"an array of {value.dtype} with a number of size {largest}"
            self._fail(path, found, f"numbers that {spec.dtype} has, or inf")
        if not spec.dtype.is_floating and not np.array_equal(cast, value):
            lost = value[cast != value].flat[0]
            hint = f"{path}.astype(numpy.{spec.dtype}) cuts it"
            found = f"an array of {value.dtype} with the number {lost}"
            self._fail(path, found, f"{spec.dtype}, or numbers that it has", hint)
        cast.flags.writeable = False  # so that a recorder of steps keeps it without a copy
        return cast

    def _fail(self, path: str, found: str, allowed: str, hint: str | None = None) -> NoReturn:
        raise FeedError.at_caller(
            f"feeding {path!r} of job {self._job!r}", found=found, allowed=allowed, hint=hint
        )


class StagingBuffers:
    """Copies of the fed arrays of asynchronous steps, with one set of buffers per token of the job.

    A token permits a step to be in flight.  A set of buffers belongs to the step that holds its
    token, because the order in which steps of several threads enter the pipeline may differ from
    the order in which their arrays were copied.
    """

    __slots__ = ("_sets",)

    def __init__(self) -> None:
        self._sets: dict[int, list[Any]] = {}

    def copy(
        self, slot: int, arrays: Sequence[Array], windows: Sequence[tuple[int, Any]]
    ) -> list[Array]:
        """Copy the windows that this process reads; allocate the set of buffers at its first use.

        Args:
            slot: `Step.slot` of a step that holds a token.
        """
        buffers = self._sets.get(slot)
        if buffers is None:
            buffers = self._sets[slot] = [
                np.empty_like(x, order="C")
                if isinstance(x, np.ndarray)
                else x.staging([window for of, window in windows if of == index])
                for index, x in enumerate(arrays)
            ]
        for index, window in windows:
            np.copyto(buffers[index][window], arrays[index][window])
        return buffers


def _counts(placeholders: Any, devices: int) -> list[tuple[int, bool]]:
    """Return the number of arrays of each nested placeholder, and whether their shapes may vary."""
    if isinstance(placeholders, PlaceholderSpec):
        listed = is_list(placeholders)
        return [(devices if listed else 1, listed or placeholders.is_open)]
    nested = placeholders.values() if isinstance(placeholders, Mapping) else placeholders
    return [count for spec in nested for count in _counts(spec, devices)]


def _paths(path: str, placeholders: Any, devices: int) -> Iterator[str]:
    """Yield the names of the arrays of nested placeholders, in order."""
    if isinstance(placeholders, PlaceholderSpec):
        yield from [f"{path}[{i}]" for i in range(devices)] if is_list(placeholders) else [path]
        return
    nested = placeholders if isinstance(placeholders, Mapping) else dict(enumerate(placeholders))
    for key, part in nested.items():
        yield from _paths(f"{path}[{key!r}]", part, devices)


def _about_size(spec: PlaceholderSpec, shape: Shape) -> str | None:
    """Return a hint if a batch differs from its placeholder only in size; None for other errors."""
    if not shape or len(shape) != len(spec.shape) or shape[1:] != spec.shape[1:] or spec.is_open:
        return None
    sizes = ", ".join(map(str, (None, *spec.shape[1:])))
    return (
        "shapes are fixed when a job is compiled: leave the batch out or fill it up; "
        f"tp.Numpy.Placeholder(({sizes}{',' if len(shape) == 1 else ''})) takes any number of rows"
    )


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} and shape {value.shape}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{type(value).__name__} {value!r:.60}"
