"""Cases for the prover of SBP rules, with shapes that split unevenly and varied data.

A wrong rule may hold by chance because an axis has fewer elements than devices.  Therefore, the
samples of an op are enlarged (each size is consistently replaced by another size), and their values
are drawn again several times; see `flow_rules.draws`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.dtypes import float64
from flow_core.base.errors import FlowError
from flow_core.ir.graph import AttrValue, TensorType, tensor_type
from flow_core.plugins.specs import (
    InferContext,
    KernelQuery,
    LocalContext,
    OpSpec,
    Part,
    Sample,
    SbpContext,
    local_attrs,
    local_shape,
)
from flow_core.testing.checks import (
    cast_sample,
    evaluate_op,
    input_name,
    overwritten,
    query,
    written,
)
from flow_rules.draws import Tells, conclusive, drawn, multiples, not_zero, varied
from flow_rules.layouts import Place, Rule, parse_layout
from flow_rules.layouts import TensorType as PlainType
from flow_rules.prover import NONSENSE as PLAIN_NONSENSE
from flow_rules.prover import Arrays, Case

SIZES = (5, 6, 7, 9, 10, 11, 13)
"""The sizes that replace those of a sample, in ascending order: some are even, and none is a
multiple of all numbers of devices."""
FLAT_SIZES = (13, 14, 15, 17, 19, 21, 22)
"""The sizes that replace those of vectors and matrices, which would have too few elements with
the other sizes."""
LARGEST = 4000
"""Largest number of elements of a tensor of a case."""
NONSENSE: tuple[type[Exception], ...] = (*PLAIN_NONSENSE, FlowError)
"""The exceptions that numpy references raise for invalid inputs."""
REFUSED: tuple[type[Exception], ...] = (AssertionError, *NONSENSE)
"""These, and the failed checks of kernels that refuse such inputs."""


def cases(spec: OpSpec, samples: Iterable[Sample], seed: int = 0) -> Iterator[Case]:
    """Yield the cases of an op, which differ in types or attributes.

    Samples without elements are skipped.  Inconclusive samples, with a result whose elements are
    all equal (such as the softmax of one class), are skipped unless the op has no other samples.
    """
    samples = tuple(samples)
    yield from _cases(spec, samples, seed, varied) or _cases(spec, samples, seed, not_zero)


def _cases(spec: OpSpec, samples: Iterable[Sample], seed: int, tells: Tells) -> list[Case]:
    found: dict[object, Case] = {}
    for number, sample in enumerate(samples):
        case = _case(spec, sample, np.random.default_rng((seed, number)), tells)
        if case is not None:
            found.setdefault((case.inputs, repr(case.attributes)), case)
    return list(found.values())


def _case(spec: OpSpec, sample: Sample, rng: np.random.Generator, tells: Tells) -> Case | None:
    own = arrays_of(sample)
    if any(x.size == 0 for x in own):
        return None
    for shapes, attrs in larger(own, sample.attrs):
        asked = asked_of(spec, own, shapes, attrs)
        if asked is None:
            continue
        first = (own,) if shapes == [x.shape for x in own] else ()
        changed = () if asked.outputs else overwritten(spec, asked)
        sizes = [t.shape for t in written(spec, asked)]
        computed = partial(evaluate_parts, spec, asked.inputs, attrs=asked.attrs)
        draws = conclusive((*first, *drawn(own, shapes, rng)), computed, sizes, changed, tells)
        if draws:
            return case_of(spec, asked, draws)
    return None


# --------------------------------------------------------------------------- for the prover


def case_of(spec: OpSpec, asked: KernelQuery, draws: tuple[Arrays, ...]) -> Case:
    """Return an op as a case of the prover, whose parts the op's reference computes."""
    count, last = len(asked.inputs), len(spec.inputs) - 1
    gradient = "_grad" in spec.type
    names = [input_name(spec, i) for i in range(count)]
    types = ", ".join(map(str, asked.inputs))
    localized = spec.localize is not local_shape or "shape" in asked.attrs
    return Case(
        name=f"{spec.type} of {types or 'nothing'} with {dict(asked.attrs)}",
        inputs=plain_types(asked.inputs),
        outputs=plain_types(asked.outputs),
        attributes=asked.attrs,
        evaluate=partial(evaluate_parts, spec, asked.inputs),
        draws=draws,
        rules=partial(_rules, spec, asked),
        localize=partial(localize, spec, asked) if localized else None,
        overwrites=overwritten(spec, asked),
        variables=spec.mutates,
        gradients=tuple(i for i in range(count) if gradient or names[i] == "model_diff"),
        variadic=tuple(range(last, count)) if spec.inputs and spec.inputs[-1][-1] == "*" else (),
    )


def plain_types(types: Iterable[TensorType]) -> tuple[PlainType, ...]:
    """Return types as the prover has them."""
    return tuple(PlainType(t.shape, np.dtype(t.dtype.numpy)) for t in types)


def _rules(spec: OpSpec, asked: KernelQuery, parts: int) -> tuple[Rule, ...]:
    """Return the rules of an op for a number of devices."""
    found = spec.sbp(SbpContext(asked.inputs, asked.outputs, asked.attrs, parts))
    return tuple(
        Rule(*(tuple(parse_layout(str(x)) for x in row) for row in (rule.inputs, rule.outputs)))
        for rule in found
    )


def localize(spec: OpSpec, asked: KernelQuery, place: Place) -> Mapping[str, AttrValue]:
    """Return the attributes for one device's parts of an op."""
    inputs, outputs = (
        tuple(map(Part, types, regions))
        for types, regions in (
            (asked.inputs, place.input_regions),
            (asked.outputs, place.output_regions),
        )
    )
    return local_attrs(spec, LocalContext(asked.attrs, inputs, outputs))


def evaluate_parts(
    spec: OpSpec, types: Sequence[TensorType], arrays: Sequence[Array], attrs: Any
) -> tuple[Array, ...]:
    """Compute the results of an op on parts of inputs of the given types.

    Raises `ValueError` if the op does not accept the parts.
    """
    own = tuple(tensor_type(np.shape(x), t.dtype) for x, t in zip(arrays, types, strict=True))
    try:
        outputs = tuple(spec.infer(InferContext("local", spec.type, own, attrs)))
        return evaluate_op(spec, KernelQuery(spec.type, attrs, own, outputs), arrays)
    except FlowError as error:
        raise ValueError(str(error)) from error


def arrays_of(sample: Sample) -> Arrays:
    """Return the inputs of a sample, rounded to multiples of 1 / `UNIT`."""
    return tuple(map(multiples, cast_sample(sample, float64)))


# ------------------------------------------------------------------------------------- larger


def larger(
    arrays: Arrays, attrs: Mapping[str, AttrValue], more: int = 0
) -> Iterator[tuple[list[Any], Any]]:
    """Yield shapes and attributes: first with most sizes replaced, last with none replaced.

    The new sizes are ``more`` larger than those of `SIZES`.
    """
    shapes = [x.shape for x in arrays]
    given = {n for shape in shapes for n in shape} | set(numbers(attrs.get("shape")))
    sizes = sorted(n for n in given if n > 1)[: len(SIZES)]
    flat = max(map(len, shapes), default=0) <= 2
    for count in range(len(sizes), 0, -1):
        for chosen in combinations(range(len(sizes)), count):
            new = {sizes[i]: (FLAT_SIZES if flat else SIZES)[i] + more for i in chosen}
            larger = [tuple(new.get(n, n) for n in shape) for shape in shapes]
            yield larger, attrs
            yield larger, {k: replaced(v, new) for k, v in attrs.items()}
    yield shapes, attrs


def numbers(value: Any) -> Iterator[int]:
    """Yield the positive integers of an attribute: of a tuple, or the value itself."""
    for n in value if isinstance(value, tuple) else (value,):
        if type(n) is int and n > 0:
            yield n


def replaced(value: Any, new: Mapping[int, int]) -> Any:
    """Replace sizes in an attribute.

    >>> replaced((2, (3, -1)), {3: 67}), replaced("max", {3: 67})
    ((2, (67, -1)), 'max')
    """
    if isinstance(value, tuple):
        return tuple(replaced(v, new) for v in value)
    return new.get(value, value) if type(value) is int else value


def asked_of(
    spec: OpSpec, own: Arrays, shapes: Sequence[Array], attrs: AttrValue
) -> KernelQuery | None:
    """Return the query for given shapes; None if too large, or if the op rejects the shapes."""
    try:
        asked = query(spec, [np.empty(s, x.dtype) for s, x in zip(shapes, own, strict=True)], attrs)
    except NONSENSE:
        return None
    types = (*asked.inputs, *asked.outputs)
    return asked if all(0 < t.size <= LARGEST for t in types) else None
