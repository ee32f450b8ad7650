"""The kit for shape and type inference: subclass `InferKit`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import pytest

from flow_core.base.arrays import Array
from flow_core.base.dtypes import DType, as_dtype, float64
from flow_core.base.errors import FlowError, PluginError
from flow_core.ir.graph import AttrValue, TensorType, tensor_type
from flow_core.plugins.specs import KernelQuery, OpSpec, Sample
from flow_core.testing.checks import cast_sample, evaluate_op, query, written
from flow_core.testing.kit import Exceptions, Kit, Parameters, floating_inputs, is_castable
from flow_core.testing.prover_cases import NONSENSE, REFUSED, arrays_of, asked_of, larger
from flow_rules.draws import draw

AS_GIVEN = "as_given"
"""Stands for an element type in test parameters: samples without floating point inputs, uncast."""


RESIZED = 4
"""How often the sizes of a sample are replaced, each time by even and by odd ones."""


class InferKit(Kit):
    """Tests that inferred types and shapes are those of the references' results.

    Shapes are compared on all samples, and again with each size of a sample replaced by another, so
    that they depend on sizes as the reference does.  Element types are compared with those of a
    reference that runs in the type of its inputs.  A reference may compute in float64: a result of
    a floating point type has the type of the inputs, or a type that an attribute names.

    Attributes:
        dtypes: element types to which floating point samples are cast.
        other_types: deliberate exceptions: why an op's results have other element types than the
            reference's, such as sums that are always float64.  Tests fail for entries that are not
            needed.
    """

    draws = 1
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64", "float16", "bfloat16", "int32")
    other_types: ClassVar[Exceptions] = {}

    def parameters(self, check: str) -> Iterator[Parameters]:
        """Return the ops of the plugin under test, for types with each element type."""
        for op in self.own_ops():
            spec = self.shared_registry().ops[op]
            if check == "types":
                yield from ((op, dtype) for dtype in self.dtypes_of(spec))
            elif check != "other_types_are_needed" or op in self.other_types:
                yield (op,)

    def dtypes_of(self, spec: OpSpec) -> tuple[str, ...]:
        """Return the element types for an op; passes create internal ops for floating types."""
        kinds = {floating_inputs(sample) for sample in self.drawn_or_none(spec.type)}
        known = (d for d in self.dtypes if as_dtype(d).is_floating or not spec.internal)
        return (*(known if True in kinds else ()), *((AS_GIVEN,) if False in kinds else ()))

    def queries(self, op: str, dtype: str) -> Iterator[tuple[KernelQuery, tuple[Array, ...]]]:
        """Yield the samples of an op with an element type that the op accepts."""
        spec = self.shared_registry().ops[op]
        for sample in self.drawn(op):
            wanted = as_dtype("float32" if dtype == AS_GIVEN else dtype)
            if floating_inputs(sample) == (dtype == AS_GIVEN) or not is_castable(sample, wanted):
                continue
            cast = cast_sample(sample, wanted)
            try:
                yield query(spec, cast, sample.attrs), cast
            except FlowError:
                assert dtype not in (AS_GIVEN, "float64"), f"{op} refuses its sample {sample}"

    # ------------------------------------------------------------------------------- tests

    def test_there_is_something_to_test(self) -> None:
        """Check that the plugin has ops."""
        assert self.own_ops(), f"plugin {self.plugin!r} registers no ops"

    def test_types(self, name: str, dtype: str) -> None:
        """Check that types and shapes are those of the reference's results."""
        found = dict.fromkeys(self._differences(name, dtype))
        wrong = [t for t, kind in found if kind == "shape" or name not in self.other_types]
        assert not wrong, "\n".join(wrong[:10])

    def test_shapes_at_other_sizes(self, name: str) -> None:
        """Check that shapes follow the reference if the sizes of samples change."""
        spec = self._with_reference(name)
        if spec.internal:
            pytest.skip("passes alone create the op, with attributes that depend on its sizes")
        for asked, arrays in (row for s in self.drawn(name) for row in _resized(spec, s)):
            try:
                found = evaluate_op(spec, asked, arrays)
            except REFUSED:
                continue  # drawn values may contradict the sizes
            for result, type_ in zip(found, written(spec, asked), strict=True):
                text = f"{name} of {_text(asked.inputs)} with {dict(asked.attrs)}"
                assert np.shape(result) == type_.shape, f"{text}: {_contrast(result, type_)}"

    def test_repeats(self, name: str) -> None:
        """Check that equal ops have equal types, whatever was inferred in between."""
        spec = self.shared_registry().ops[name]
        kinds = self.dtypes_of(spec)
        first, second = ([q for t in kinds for q, _ in self.queries(name, t)] for _ in range(2))
        assert first == second, f"{name}: a second inference gives other types"

    def test_refuses_with_flow_errors(self, name: str) -> None:
        """Check that wrong ranks, sizes, types and attributes raise a `FlowError`, if anything."""
        spec = self.shared_registry().ops[name]
        if spec.internal:
            pytest.skip("passes alone create the op")
        for asked, _ in (q for t in self.dtypes_of(spec)[:1] for q in self.queries(name, t)):
            rows = [(types, asked.attrs) for types in _others(asked.inputs)]
            rows += [(asked.inputs, attrs) for attrs in _other_attrs(asked.attrs)]
            for types, attrs in rows:
                blank = [np.broadcast_to(np.zeros((), t.dtype.numpy), t.shape) for t in types]
                try:
                    query(spec, blank, attrs)
                except Exception as error:
                    if isinstance(error, PluginError) or not isinstance(error, FlowError):
                        text = f"{name} of {_text(types)} with {dict(attrs)} raises {error!r}"
                        raise AssertionError(text) from error

    def test_other_types_are_needed(self, name: str) -> None:
        """Check that each entry of `other_types` covers a difference."""
        kinds = self.dtypes_of(self.shared_registry().ops[name])
        found = [kind for dtype in kinds for _, kind in self._differences(name, dtype)]
        assert "type" in found, f"no longer needed: other_types[{name!r}]"

    def test_exceptions_are_known(self) -> None:
        """Check that the ops in `other_types` exist."""
        assert set(self.other_types) <= set(self.own_ops()), self.other_types

    # ----------------------------------------------------------------------------- helpers

    def _with_reference(self, op: str) -> OpSpec:
        spec = self.shared_registry().ops[op]
        if spec.reference is None:
            pytest.skip("the results of this op are not in memory: it has no reference")
        return spec

    def _differences(self, op: str, dtype: str) -> Iterator[tuple[str, str]]:
        """Yield a text for each difference, and whether it is one of "type" or "shape"."""
        spec = self._with_reference(op)
        cast = None if dtype == AS_GIVEN else as_dtype(dtype)
        for asked, arrays in self.queries(op, dtype):
            try:
                found = evaluate_op(spec, asked, arrays)
            except NONSENSE:
                assert cast is not None, f"the reference of {op} refuses its sample"
                assert cast not in (float64, as_dtype("float32")), f"{op}: no reference in {dtype}"
                continue  # numpy lacks some functions of half types
            for result, type_ in zip(found, written(spec, asked), strict=True):
                text = f"{op} of {_text(asked.inputs)} with {dict(asked.attrs)}: "
                if np.shape(result) != type_.shape:
                    yield text + _contrast(result, type_), "shape"
                elif not _is_type(type_.dtype, np.asarray(result).dtype, cast, asked):
                    yield text + _contrast(result, type_), "type"


def _resized(spec: OpSpec, sample: Sample) -> Iterator[tuple[KernelQuery, list[Array]]]:
    """Yield queries with some sizes of a sample replaced, as the op accepts them, and inputs."""
    own, rng = arrays_of(sample), np.random.default_rng(17)
    for more in (0, 1) if all(x.size for x in own) else ():
        given = larger(own, sample.attrs, more)
        rows = ((shapes, asked_of(spec, own, shapes, attrs)) for shapes, attrs in given)
        for shapes, asked in islice((row for row in rows if row[1] is not None), RESIZED):
            pairs = zip(own, shapes, strict=True)
            arrays = [x if x.shape == s else draw(x, s, False, rng) for x, s in pairs]
            assert asked is not None
            yield asked, arrays


def _is_type(inferred: DType, found: Any, cast: DType | None, asked: KernelQuery) -> bool:
    """Return whether a type is that of a reference's result, given that of floating inputs."""
    is_same = bool(found == inferred.numpy)
    if not inferred.is_floating:
        return is_same or bool(cast and cast.is_integer and found.kind == inferred.kind)
    if cast is None:
        return is_same or bool(found == np.float64)
    named = {
        a.name if isinstance(a, DType) else a
        for a in asked.attrs.values()
        if isinstance(a, DType | str)
    }
    if inferred is cast or inferred.name in named:
        return is_same or bool(found.kind == "f" or found == cast.numpy)
    return is_same and inferred is not float64


def _contrast(result: Array, type_: TensorType) -> str:
    shape = ",".join(map(str, np.shape(result)))
    return f"infers {type_}, the reference returns {np.asarray(result).dtype}[{shape}]"


def _text(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types)) or "nothing"


def _others(types: tuple[TensorType, ...]) -> Iterator[tuple[TensorType, ...]]:
    """Yield the types with one or all inputs of another rank, size or element type."""
    columns = [_other(t) for t in types]
    for i, (t, column) in enumerate(zip(types, columns, strict=True)):
        yield from ((*types[:i], other, *types[i + 1 :]) for other in column if other != t)
    yield from zip(*columns, strict=True)


def _other(t: TensorType) -> list[TensorType]:
    larger, none = (tuple(map(change, t.shape)) for change in (lambda n: n + 1, lambda n: 0))
    shapes = ((), t.shape[1:], (*t.shape, 2), larger, none)
    dtypes = map(as_dtype, ("bool", "int8", "float64"))
    return [*(tensor_type(s, t.dtype) for s in shapes), *(tensor_type(t.shape, d) for d in dtypes)]


def _other_attrs(attrs: Mapping[str, AttrValue]) -> Iterator[Mapping[str, AttrValue]]:
    """Yield the attributes with other numbers, lengths or texts."""
    for key, value in attrs.items():
        others: tuple[AttrValue, ...] = ()
        if isinstance(value, tuple) and value and all(isinstance(n, int) for n in value):
            moved = (tuple(n + d for n in value) for d in (-99, -1, 99))
            others = ((), value[1:], (*value, value[0]), *moved)
        elif isinstance(value, int) and not isinstance(value, bool):
            others = (value - 99, -1, 0, value + 99)
        elif isinstance(value, float):
            others = (-1.0, 0.0, np.inf, np.nan)
        elif isinstance(value, str):
            others = ("", "nonsense")
        yield from ({**attrs, key: other} for other in others)
