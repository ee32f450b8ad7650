"""The kit for SBP rules: subclass `SbpRuleKit`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pytest

from flow_core.dtypes import as_dtype, float64
from flow_core.errors import InferenceError
from flow_core.ir import TensorType, tensor_type
from flow_core.plugins.specs import (
    InferContext,
    KernelQuery,
    LocalContext,
    OpSpec,
    Part,
    SbpContext,
    local_attrs,
)
from flow_core.sbp import B, Broadcast, P, Partial, S, Sbp, Signature, Split, local_region
from flow_core.shapes import balanced_range
from flow_core.testing.checks import (
    TOLERANCE,
    as_tuple,
    cast_sample,
    is_floating,
    query,
    reference_outputs,
)
from flow_core.testing.kit import Kit, Parameters

COMBINE: Mapping[str, Any] = {
    "sum": np.add.reduce, "max": np.maximum.reduce, "min": np.minimum.reduce
}  # fmt: skip
"""How the parts of a partial tensor make up the whole."""


TRIES = 3
"""How often inputs are taken apart, by other random numbers, before a signature is believed."""

Logical = tuple[OpSpec, KernelQuery, tuple[Any, ...]]
"""An op with the types and values of its logical inputs."""


class CannotForm(Exception):
    """There is no such op per device, or no such tensor."""


# ------------------------------------------------------------------------------------- tensors


def scatter(array: Any, sbp: Sbp, parts: int, rng: Any) -> list[Any]:
    """What each of some devices holds of a logical array.

    Partial sums are random numbers that add up to it, partial maxima are random numbers below
    it but on one random device per element.  Truth values add up by "or".

    >>> [x.tolist() for x in scatter(np.arange(5), S(0), 2, None)]
    [[0, 1, 2], [3, 4]]
    >>> sum(scatter(np.arange(3), P, 3, np.random.default_rng(0))).tolist()
    [0, 1, 2]
    """
    if isinstance(sbp, Split):
        ranges = (balanced_range(array.shape[sbp.axis], parts, i) for i in range(parts))
        return [array.take(range(*bounds), sbp.axis) for bounds in ranges]
    if isinstance(sbp, Broadcast):
        return [array] * parts
    if sbp.op == "sum" and array.dtype.kind != "b":
        shape = (parts - 1, *array.shape)
        noise = _noise(array, shape, rng) - _noise(array, shape, rng)
        return [array - noise.sum(0, dtype=array.dtype), *noise]
    owner = rng.integers(0, parts, array.shape)
    return [np.where(owner == i, array, _worse(array, sbp.op, rng)) for i in range(parts)]


def _noise(array: Any, shape: tuple[int, ...], rng: Any) -> Any:
    if array.dtype.kind == "f":
        return rng.uniform(0.5, 4.5, shape)
    return rng.integers(1, 5, shape).astype(array.dtype)


def _worse(array: Any, op: str, rng: Any) -> Any:
    """Numbers that lose against an array's; truth values add up by "or", as numpy's do."""
    if array.dtype.kind == "b":
        chance = rng.integers(0, 2, array.shape).astype(bool)
        return array | chance if op == "min" else array & chance
    noise = _noise(array, array.shape, rng)
    if array.dtype.kind != "f":  # do not wrap around
        bounds = np.iinfo(array.dtype)
        room = bounds.max - array if op == "min" else array - bounds.min
        noise = np.minimum(noise, room.astype(array.dtype) if op == "min" else abs(room))
    return array + noise if op == "min" else array - noise


def gather(parts: Sequence[Any], sbp: Sbp) -> Any:
    """The logical array of what the devices hold.

    Raises:
        CannotForm: the devices should hold the same, and do not.

    >>> gather([np.ones(2), np.ones(2)], P).tolist(), gather([np.ones(2), np.ones(2)], B).tolist()
    ([2.0, 2.0], [1.0, 1.0])
    """
    if isinstance(sbp, Split):
        return np.concatenate(parts, sbp.axis)
    if isinstance(sbp, Partial):
        return COMBINE[sbp.op](np.stack(parts), 0, parts[0].dtype)
    if not all(is_close(part, parts[0]) for part in parts):
        raise CannotForm("the devices hold different tensors")
    return parts[0]


def is_close(found: Any, wanted: Any) -> bool:
    """Equal shapes, and equal elements but for the rounding of a few operations."""
    if np.shape(found) != np.shape(wanted):
        return False
    dtype = as_dtype(np.asarray(wanted).dtype)
    if not dtype.is_floating:
        return bool(np.array_equal(found, wanted))
    bounds = (1e-7, 1e-8) if dtype is float64 else TOLERANCE[dtype]
    have, want = (np.asarray(x, np.float64) for x in (found, wanted))
    return bool(np.allclose(have, want, *bounds, equal_nan=True))


def local_context(asked: KernelQuery, rule: Signature, parts: int, rank: int) -> LocalContext:
    """What one device holds of an op's tensors."""

    def of(types: Sequence[TensorType], sbps: Sequence[Sbp]) -> tuple[Part, ...]:
        rows = zip(types, sbps, strict=True)
        return tuple(Part(t, local_region(t.shape, (sbp,), (parts,), rank)) for t, sbp in rows)

    return LocalContext(asked.attrs, of(asked.inputs, rule.inputs), of(asked.outputs, rule.outputs))


# ------------------------------------------------------------------------------------ the kit


class SbpRuleKit(Kit):
    """Rules hold when they are brute-forced by the ops' own references, and none is missing.

    Inputs are split, repeated or taken apart as a rule says, the op's reference computes each
    device's outputs, and these are put together again.

    Attributes:
        parts: numbers of devices.
        complete: ops of which no rule may be missing; None for all that have at most
            ``max_inputs`` inputs.
        max_inputs: see ``complete``.
        cases: how many samples are searched for missing rules, which takes time.
    """

    draws = 1
    parts: ClassVar[tuple[int, ...]] = (2, 3)
    complete: ClassVar[tuple[str, ...] | None] = None
    max_inputs: ClassVar[int] = 3
    cases: ClassVar[int] = 8

    def parameters(self, check: str) -> Iterator[Parameters]:
        """The ops of the plugin under test."""
        for op in self.own_ops():
            if check != "no_rule_is_missing" or self._enumerated(op):
                yield (op,)

    def _enumerated(self, op: str) -> bool:
        if self.complete is not None:
            return op in self.complete
        return all(len(s.inputs) <= self.max_inputs for s in self.drawn_or_none(op))

    def logical(self, op: str) -> Iterator[Logical]:
        """The op with the types and inputs of each sample, in float64."""
        spec = self.shared_registry().ops[op]
        for sample in self.drawn(op):
            arrays = cast_sample(sample, float64)
            yield spec, query(spec, arrays, sample.attrs), arrays

    def local_outputs(
        self,
        spec: OpSpec,
        asked: KernelQuery,
        inputs: Sequence[Any],
        local: LocalContext,
    ) -> tuple[Any, ...]:
        """What one device computes.

        Args:
            spec, asked: the logical op.
            inputs: what the device holds.
            local: its parts of inputs and outputs.

        Raises:
            CannotForm: there is no such op.
        """
        rows = zip(inputs, asked.inputs, strict=True)
        types = tuple(tensor_type(x.shape, t.dtype) for x, t in rows)
        outputs = tuple(tensor_type(part.shape, part.type.dtype) for part in local.outputs)
        attrs = local_attrs(spec, local)
        try:
            found = tuple(spec.infer(InferContext("local", spec.type, types, attrs)))
        except InferenceError as error:
            raise CannotForm(f"the op refuses {', '.join(map(str, types))}: {error}") from error
        if found != outputs:
            raise CannotForm(
                f"{', '.join(map(str, types))} give {', '.join(map(str, found))} instead of "
                f"{', '.join(map(str, outputs))}"
            )
        assert spec.reference is not None, f"{spec.type} has no reference to brute-force"
        with np.errstate(all="ignore"):
            return as_tuple(spec.reference(*inputs, **attrs))

    def problem(
        self,
        spec: OpSpec,
        asked: KernelQuery,
        arrays: Sequence[Any],
        rule: Signature,
        parts: int,
        seed: int = 0,
    ) -> str | None:
        """Why a rule is wrong for some inputs on some devices, None when it holds."""
        rng = np.random.default_rng((parts, seed))
        try:
            rows = zip(arrays, rule.inputs, strict=True)
            held = [scatter(*row, parts, rng) for row in rows]
            local = []
            for rank in range(parts):
                mine = local_context(asked, rule, parts, rank)
                local.append(self.local_outputs(spec, asked, [h[rank] for h in held], mine))
            for k, want in enumerate(reference_outputs(spec, asked, arrays)):
                found = gather([outputs[k] for outputs in local], rule.outputs[k])
                if not is_close(found, want):
                    return f"output {k} is\n{found}\ninstead of\n{want}"
        except CannotForm as error:
            return str(error)
        return None

    # ------------------------------------------------------------------------------- tests

    def test_there_is_something_to_test(self) -> None:
        """The plugin has ops."""
        assert self.own_ops(), f"plugin {self.plugin!r} registers no ops"

    def test_rules_are_well_formed(self, name: str) -> None:
        """Each rule has an entry per tensor and existing axes; none is there twice or all B."""
        for spec, asked, _ in self.logical(name):
            rules = listed(spec, asked)
            assert len(set(rules)) == len(rules), f"a rule of {name} is there twice: {_text(rules)}"
            for rule in rules:
                assert len(rule.inputs) == len(asked.inputs), f"{name}: {rule}"
                assert len(rule.outputs) == len(asked.outputs), f"{name}: {rule}"
                assert all(_exists(*row) for row in tensors(asked, rule)), f"{name}: {rule}"
                assert rule != all_broadcast(asked), f"{name} lists {rule}, which always holds"

    def test_rules_hold(self, name: str) -> None:
        """Every listed rule gives the logical result, also for uneven splits."""
        checked = 0
        for spec, asked, arrays in self.logical(name):
            for rule, parts in product(listed(spec, asked), self.parts):
                if can_split(asked, rule, parts):
                    found = self.problem(spec, asked, arrays, rule, parts)
                    assert found is None, (
                        f"{name} of {', '.join(map(str, asked.inputs))} with {asked.attrs} on "
                        f"{parts} devices: rule {rule} is wrong: {found}"
                    )
                    checked += 1
        if not checked:
            pytest.skip("all-broadcast is the only rule for the samples of this op")

    def test_no_rule_is_missing(self, name: str) -> None:
        """Every signature that holds on a sample which is no special case is listed."""
        cases = generic(self.logical(name), max(self.parts))
        if not cases:
            pytest.skip("all samples of this op are special cases")
        for spec, asked, arrays in cases[:: -(-len(cases) // self.cases)]:
            known = {*listed(spec, asked), all_broadcast(asked)}
            missing = [rule for rule in self.valid(spec, asked, arrays) if rule not in known]
            assert not missing, (
                f"{name} of {', '.join(map(str, asked.inputs))} with {asked.attrs} lacks "
                f"{_text(missing)}; it has {_text(known)}"
            )

    def valid(self, spec: OpSpec, asked: KernelQuery, arrays: Sequence[Any]) -> Iterator[Signature]:
        """All signatures of S, B and P that hold on every number of devices.

        Axes that have fewer elements than there are devices are not split.
        """
        size = max(self.parts)
        for inputs in product(*(_kinds(t, size) for t in asked.inputs)):
            for outputs in product(*(_kinds(t, size) for t in asked.outputs)):
                rule = Signature(inputs, outputs)
                tries = product(self.parts, range(TRIES))
                if all(self._holds(spec, asked, arrays, rule, *how) for how in tries):
                    yield rule

    def _holds(self, *case: Any) -> bool:
        try:
            return self.problem(*case) is None
        except (ArithmeticError, LookupError, ValueError):  # references of nonsense
            return False


def listed(spec: OpSpec, asked: KernelQuery) -> tuple[Signature, ...]:
    """The rules of an op for some types and attributes."""
    return tuple(spec.sbp(SbpContext(asked.inputs, asked.outputs, asked.attrs)))


def all_broadcast(asked: KernelQuery) -> Signature:
    """The rule that always holds: every device computes everything."""
    return Signature((B,) * len(asked.inputs), (B,) * len(asked.outputs))


def can_split(asked: KernelQuery, rule: Signature, parts: int) -> bool:
    """Whether every device gets some of each split axis: references need not take no elements."""
    rows = tensors(asked, rule)
    return all(type_.shape[sbp.axis] >= parts for sbp, type_ in rows if isinstance(sbp, Split))


def tensors(asked: KernelQuery, rule: Signature) -> Iterator[tuple[Sbp, TensorType]]:
    """The SBP and the type of each input and output."""
    types = (*asked.inputs, *asked.outputs)
    return zip((*rule.inputs, *rule.outputs), types, strict=True)


def generic(cases: Iterable[Logical], size: int) -> list[Logical]:
    """The cases in which rules hold in general, if they hold.

    Rules hold by chance where results are zero, or counts or truth values that are all equal,
    and on small axes: cases that have some are left out if there are others.
    """
    full = (case for case in cases if all(x.size for x in case[2]))
    varied = [case for case in full if all(map(_is_varied, reference_outputs(*case)))]
    return [case for case in varied if _smallest(case[1]) >= size] or varied


def _smallest(asked: KernelQuery) -> int:
    shapes = [t.shape for t in (*asked.inputs, *asked.outputs)]
    return min((n for shape in shapes for n in shape or (0,)), default=0)


def _is_varied(result: Any) -> bool:
    array = np.asarray(result)
    return bool(array.any()) and (is_floating(array) or len(np.unique(array)) > 1)


def _kinds(type_: TensorType, size: int) -> tuple[Sbp, ...]:
    partial = () if type_.dtype.kind == "b" else (P,)
    return (B, *partial, *(S(i) for i, n in enumerate(type_.shape) if n >= size))


def _exists(sbp: Sbp, type_: TensorType) -> bool:
    return not isinstance(sbp, Split) or 0 <= sbp.axis < len(type_.shape)


def _text(rules: Any) -> str:
    return "; ".join(sorted(map(str, rules)))
