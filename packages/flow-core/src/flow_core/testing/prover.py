"""Prove SBP rules by brute force: every listed rule holds, and no valid rule is missing.

For each case of an op and for 1 to 4 devices, the prover tries all combinations of S(i), B and the
three kinds of P on the inputs.  It splits the inputs, computes each device's part with the op's
reference and the attributes of `OpSpec.localize`, and tries every SBP to reassemble each output.  A
combination that yields the logical result for all numbers of devices and all draws of the inputs is
a rule; it need not be listed if another rule `implies` it.

The prover does not try the following combinations:

* P for truth values, which have no sum.
* P(max) and P(min) for inputs of which only the shape is read: both are equivalent to P.
* Different SBP for the inputs of a variadic op of which only the shape is read.
* P for a variable that an op overwrites, unless a rule lists it.
* P(max) and P(min) for gradients: the dual of a maximum is not a maximum.
* P(max) and P(min) for an input for which B is not valid: B is a special case of both.
* Rules that hold only for unsigned numbers, because these are never negative.
* S and P for tensors with few integers, such as a count: rules would hold for them by chance.
* Splits of axes with fewer elements than devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, product
from math import prod
from typing import Any

import numpy as np

from flow_core.base.arrays import Array
from flow_core.base.shapes import Shape
from flow_core.ir.graph import AttrValue, TensorType, tensor_type
from flow_core.plugins.specs import (
    InferContext,
    KernelQuery,
    LocalContext,
    OpSpec,
    Part,
    SbpContext,
    local_attrs,
    local_shape,
)
from flow_core.sharding.sbp import (
    EXTREMES,
    B,
    P,
    S,
    Sbp,
    Signature,
    Split,
    local_region,
    region_shape,
)
from flow_core.testing.checks import evaluate_op, input_name, overwritten
from flow_core.testing.prover_cases import NONSENSE, UNIT, Arrays, Case
from flow_core.testing.scattering import CannotForm, gather, is_close, is_exact, largest, scatter

DEVICES = (1, 2, 3, 4)
TRIED = (2, 3, 4, 1)
"""Numbers of devices, in the order that tends to find errors soonest."""
FEW = 32
"""Results with fewer elements are drawn more often."""
FEW_WHOLE = 12
"""Inputs with fewer integers are not split, because rules would hold for them by chance."""
WORST = 1e4
"""Largest ratio of the terms of a sum to the sum for which a comparison is meaningful."""
MOST = 200_000
"""Cases with more combinations of inputs' SBP are skipped, and counted as skipped."""

Rules = Mapping[int, tuple[Signature, ...]]
"""The rules for each number of devices."""
Wrong = tuple[Signature, int, str]
"""A rule, a number of devices, and the reason why the rule does not hold on that number."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One draw of a case's inputs, split over a number of devices.

    Attributes:
        case: the case.
        arrays: the logical inputs.
        parts: number of devices.
        seed: seed of the random terms of partial sums.
        localized: whether a device's computation may depend on the position of its part.
        held, done, logical, shapes: caches of the parts of inputs, the results of devices, the
            logical results, and the shapes of the parts of results.
    """

    case: Case
    arrays: Arrays
    parts: int
    seed: int = 0
    localized: bool = field(init=False)
    held: dict[tuple[int, Sbp], list[Any]] = field(default_factory=dict)
    done: dict[Any, Any] = field(default_factory=dict)
    logical: list[Any] = field(default_factory=list)
    shapes: dict[tuple[int, Sbp], tuple[Shape, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        depends = self.case.spec.localize is not local_shape or "shape" in self.case.asked.attrs
        object.__setattr__(self, "localized", depends)

    @property
    def want(self) -> Sequence[Array]:
        """Return the logical outputs, then the overwritten variables."""
        if not self.logical:
            self.logical.extend(self._compute(self.arrays, self.case.asked))
        return self.logical

    def _compute(self, inputs: Sequence[Array], asked: KernelQuery) -> tuple[Array, ...]:
        return evaluate_op(self.case.spec, asked, inputs)

    def part(self, index: int, sbp: Sbp, rank: int) -> Any:
        """Return a device's part of an input."""
        if (index, sbp) not in self.held:
            rng = np.random.default_rng((self.seed, self.parts, index))
            self.held[index, sbp] = scatter(self.arrays[index], sbp, self.parts, rng, 1 / UNIT)
        return self.held[index, sbp][rank]

    def local(self, rule: Signature, rank: int) -> tuple[Array, ...]:
        """Compute the results of a device.

        Raises:
            CannotForm: the op rejects the parts of its inputs.
        """
        attrs = self._attrs(rule, rank)
        key = rule.inputs, rank, attrs
        if key not in self.done:
            inputs = [self.part(i, sbp, rank) for i, sbp in enumerate(rule.inputs)]
            self.done[key] = self._local(inputs, attrs)
        found: tuple[Any, ...] | CannotForm = self.done[key]
        if isinstance(found, CannotForm):
            raise found
        return found

    def _attrs(self, rule: Signature, rank: int) -> Mapping[str, AttrValue]:
        if not self.localized:
            return self.case.asked.attrs
        return local_attrs(self.case.spec, local_context(self.case.asked, rule, self.parts, rank))

    def _local(self, inputs: Sequence[Array], attrs: Mapping[str, AttrValue]) -> Any:
        asked, spec = self.case.asked, self.case.spec
        rows = zip(inputs, asked.inputs, strict=True)
        types = tuple(tensor_type(x.shape, t.dtype) for x, t in rows)
        try:
            outputs = tuple(spec.infer(InferContext("local", spec.type, types, attrs)))
            return self._compute(inputs, KernelQuery(spec.type, attrs, types, outputs))
        except NONSENSE as error:
            return CannotForm(f"{', '.join(map(str, types))}: {type(error).__name__}: {error}")

    def gathered(self, index: int, sbp: Sbp, rule: Signature) -> tuple[Array, Sequence[Array]]:
        """Reassemble a result from its parts with a given SBP; return the result and the parts.

        Raises:
            CannotForm: the parts are not valid for the SBP.
        """
        found = []
        for rank, wanted in enumerate(self._shapes(index, sbp)):
            piece = self.local(rule, rank)[index]
            if np.shape(piece) != wanted:
                raise CannotForm(f"a device has shape {np.shape(piece)} instead of {wanted}")
            found.append(piece)
        return gather(found, sbp), found

    def _shapes(self, index: int, sbp: Sbp) -> tuple[Shape, ...]:
        """Return the shapes of a result's parts."""
        if (index, sbp) not in self.shapes:
            logical, ranks = np.shape(self.want[index]), range(self.parts)
            regions = (local_region(logical, (sbp,), (self.parts,), rank) for rank in ranks)
            self.shapes[index, sbp] = tuple(map(region_shape, regions))
        return self.shapes[index, sbp]

    def agrees(self, index: int, sbp: Sbp, rule: Signature) -> bool:
        """Return whether a result's parts are parts of the logical result with a given SBP."""
        try:
            whole, found = self.gathered(index, sbp, rule)
        except CannotForm:
            return False
        want = self.want[index]
        if np.array_equal(whole, want):
            return True
        scale = min(largest(found), WORST * largest([want]) or np.inf) if sbp == P else 1.0
        return is_close(whole, want, scale) and not all(map(is_exact, (want, *found)))

    def holds(self, rule: Signature) -> bool:
        """Return whether a rule yields the logical results."""
        rows = enumerate(results_of(self.case, rule))
        return all(self.agrees(index, sbp, rule) for index, sbp in rows)

    def why(self, rule: Signature) -> str:
        """Describe the wrong result of a rule that does not hold."""
        for index, sbp in enumerate(results_of(self.case, rule)):
            if not self.agrees(index, sbp, rule):
                try:
                    whole, _ = self.gathered(index, sbp, rule)
                except CannotForm as error:
                    return str(error)
                return f"result {index} is\n{whole}\ninstead of\n{self.want[index]}"
        return "it holds"

    def completions(self, inputs: tuple[Sbp, ...]) -> Iterator[Signature]:
        """Yield all valid rules with the given SBP of the inputs."""
        types = self.case.asked.outputs
        keeps = not overwritten(self.case.spec, self.case.asked)
        options = [kinds(t, self.parts) for t in types]
        if not self.localized and options:
            blank = Signature(inputs, (B,) * len(types))
            options = [
                tuple(sbp for sbp in row if self.agrees(i, sbp, blank))
                for i, row in enumerate(options)
            ]
        for outputs in product(*options):
            rule = Signature(inputs, outputs)
            if (options and not self.localized and keeps) or self.holds(rule):
                yield rule

    def ignores(self, index: int) -> bool:
        """Return whether the results do not depend on the values of an input."""
        x = self.arrays[index]
        for other in (np.zeros_like(x), x[::-1] if x.ndim else x, x + np.ones_like(x)):
            arrays = (*self.arrays[:index], other, *self.arrays[index + 1 :])
            try:
                results = self._compute(arrays, self.case.asked)
            except NONSENSE:
                return False
            if not all(map(partial(np.array_equal, equal_nan=True), results, self.want)):
                return False
        return True

    def forget(self) -> None:
        """Clear the caches."""
        for table in (self.held, self.done, self.logical, self.shapes):
            table.clear()


def results_of(case: Case, rule: Signature) -> tuple[Sbp, ...]:
    """Return the SBP of all results: of the outputs, then of overwritten inputs, which keep it."""
    return (*rule.outputs, *(rule.inputs[i] for i in overwritten(case.spec, case.asked)))


def local_context(asked: KernelQuery, rule: Signature, parts: int, rank: int) -> LocalContext:
    """Return the context that describes one device's parts of an op's tensors."""

    def of(types: Sequence[TensorType], sbps: Sequence[Sbp]) -> tuple[Part, ...]:
        rows = zip(types, sbps, strict=True)
        return tuple(Part(t, local_region(t.shape, (sbp,), (parts,), rank)) for t, sbp in rows)

    return LocalContext(asked.attrs, of(asked.inputs, rule.inputs), of(asked.outputs, rule.outputs))


def kinds(type_: TensorType, parts: int) -> tuple[Sbp, ...]:
    """Return all SBP of a tensor with which every device has a non-empty part.

    >>> from flow_core.base.dtypes import float32
    >>> [str(sbp) for sbp in kinds(tensor_type((5, 1), float32), 2)]
    ['B', 'P', 'P(max)', 'P(min)', 'S(0)']
    """
    partial_ = () if type_.dtype.kind == "b" else (P, *EXTREMES)
    return (B, *partial_, *(S(i) for i, n in enumerate(type_.shape) if n >= parts))


def listed(case: Case, parts: int | None) -> tuple[Signature, ...]:
    """Return the op's rules for a number of devices."""
    asked = case.asked
    return tuple(case.spec.sbp(SbpContext(asked.inputs, asked.outputs, asked.attrs, parts)))


def all_broadcast(case: Case) -> Signature:
    """Return the all-broadcast rule, which always holds."""
    return Signature((B,) * len(case.asked.inputs), (B,) * len(case.asked.outputs))


def formable(case: Case, rule: Signature, parts: int) -> bool:
    """Return whether every device has a non-empty part of each axis that a rule splits."""
    rows = zip(
        (*rule.inputs, *rule.outputs), (*case.asked.inputs, *case.asked.outputs), strict=True
    )
    return all(t.shape[s.axis] >= parts for s, t in rows if isinstance(s, Split))


def is_gradient(spec: OpSpec, index: int) -> bool:
    """Return whether an input is a gradient, or a saved value that a gradient op reads.

    >>> is_gradient(OpSpec("relu_grad", ("y", "dy"), infer=lambda ctx: ctx.inputs), 0)
    True
    """
    return "_grad" in spec.type or input_name(spec, index) == "model_diff"


def implies(rule: Signature, other: Signature) -> bool:
    """Return whether a rule implies another rule.

    The reason is that a replicated value is the maximum and the minimum of its replicas.

    >>> greatest, _ = EXTREMES
    >>> implies(Signature((B,), (B,)), Signature((B,), (greatest,)))
    True
    >>> implies(Signature((greatest,), (greatest,)), Signature((B,), (greatest,)))
    True
    """
    inputs = zip(other.inputs, rule.inputs, strict=True)
    outputs = zip(rule.outputs, other.outputs, strict=True)
    return all(a == b or (a == B and b in EXTREMES) for a, b in (*inputs, *outputs))


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of the prover for one case.

    Attributes:
        case: the case.
        wrong: listed rules that do not hold, each with a number of devices and the reason.
        missing: valid rules that are not listed.
        checks: total number of trials, for all rules, numbers of devices and draws.
    """

    case: Case
    wrong: tuple[Wrong, ...]
    missing: tuple[Signature, ...]
    checks: int

    def __bool__(self) -> bool:
        return not self.wrong and not self.missing

    def __str__(self) -> str:
        lines = [f"{self.case}:"]
        lines += [f"  wrong on {n} devices: {rule}: {why}" for rule, n, why in self.wrong]
        lines += [f"  missing: {rule}" for rule in self.missing]
        return "\n".join(lines)


class Prover:
    """The prover for one case, which finds the valid rules once and compares lists with them."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.trials = {
            parts: [
                Trial(case, arrays, parts, seed)
                for seed, arrays in enumerate(case.draws * self._tries(case))
            ]
            for parts in DEVICES
        }
        self.checks = 0
        self.rules = {parts: listed(case, parts) for parts in DEVICES}
        self.known: dict[tuple[Signature, int], bool] = {}
        self._valid: tuple[Signature, ...] | None = None

    @staticmethod
    def _tries(case: Case) -> int:
        """Return how often to split a draw, which is more often for draws with few elements."""
        smallest = min((t.size for t in case.asked.inputs), default=FEW)
        return max(1, FEW // max(smallest, 1) // 4)

    def holds(self, rule: Signature, parts: int) -> bool:
        """Return whether a rule holds on a number of devices."""
        if (rule, parts) not in self.known:
            self.known[rule, parts] = all(t.holds(rule) for t in self._counted(parts))
        return self.known[rule, parts]

    def _counted(self, parts: int) -> Iterator[Trial]:
        for trial in self.trials[parts]:
            self.checks += 1
            yield trial

    def holds_wherever(self, rule: Signature) -> bool:
        """Return whether a rule holds on all numbers of devices with which no part is empty."""
        return all(self.holds(rule, n) for n in TRIED if formable(self.case, rule, n))

    def forget(self) -> None:
        """Clear the caches of trials, but keep the results for rules."""
        for trial in chain.from_iterable(self.trials.values()):
            trial.forget()

    @cached_property
    def unread(self) -> tuple[int, ...]:
        """Return the inputs of which only the shape is read."""
        return tuple(i for i in range(len(self.case.asked.inputs)) if self._is_unread(i))

    def _is_unread(self, index: int) -> bool:
        if index in self.case.spec.mutates:
            return False
        return all(trial.ignores(index) for trial in self.trials[1])

    def choices(self, index: int, parts: int) -> tuple[Sbp, ...]:
        """Return the SBP to try for an input, except P(max) and P(min)."""
        if not self.is_conclusive(index):
            return (B,)
        row = (s for s in kinds(self.case.asked.inputs[index], parts) if s not in EXTREMES)
        return tuple(s for s in row if s != P or self.may_be(index, P))

    def extremes(self, index: int) -> tuple[Sbp, ...]:
        """Return those of P(max) and P(min) that are to be tried for an input."""
        spec, type_ = self.case.spec, self.case.asked.inputs[index]
        if index in self.unread or is_gradient(spec, index) or not self.is_conclusive(index):
            return ()
        row = (s for s in EXTREMES if s in kinds(type_, 2))
        return tuple(s for s in row if self.may_be(index, s))

    def may_be(self, index: int, sbp: Sbp) -> bool:
        """Return whether an input or output may be partial; a variable only if a rule lists it."""
        if index not in self.case.spec.mutates:
            return True
        return any(rule.inputs[index] == sbp for rule in self.rules[2])

    def searches(self, rule: Signature) -> bool:
        """Return whether a rule is among the rules to try."""
        return self.is_comparable(rule) and all(
            sbp in (*self.choices(i, 2), *self.extremes(i)) for i, sbp in enumerate(rule.inputs)
        )

    def input_kinds(self, parts: int) -> Iterator[tuple[Sbp, ...]]:
        """Yield the combinations of the inputs' SBP to try, except with P(max) and P(min)."""
        spec, count = self.case.spec, len(self.case.asked.inputs)
        variadic = [i for i in self.unread if spec.inputs[-1][-1] == "*"]
        alike = [i for i in variadic if i >= len(spec.inputs) - 1]
        for inputs in product(*(self.choices(i, parts) for i in range(count))):
            if len({inputs[i] for i in alike}) <= 1:
                yield inputs

    @property
    def combinations(self) -> int:
        """Return the number of combinations of the inputs' SBP on two devices."""
        return prod(len(self.choices(i, 2)) for i in range(len(self.case.asked.inputs)))

    def valid(self) -> tuple[Signature, ...]:
        """Return all rules that hold on every number of devices and that no other rule implies."""
        if self._valid is None:
            self._valid = tuple(self._find_valid())
        return self._valid

    def _find_valid(self) -> Iterator[Signature]:
        found = tuple(self._hold())
        whole = all_broadcast(self.case)
        return (r for r in found if r != whole and not any(implies(s, r) for s in found if s != r))

    def _hold(self) -> Iterator[Signature]:
        first = self.trials[2][0]
        found: dict[Signature, None] = {}
        for inputs in self.input_kinds(2):
            self.checks += 1
            found.update((r, None) for r in first.completions(inputs) if self._holds_everywhere(r))
        queue = list(found)
        for rule in queue:
            more = [r for r in self._with_extremes(rule) if r not in found]
            right = [r for r in more if self._holds_everywhere(r)]
            found.update((r, None) for r in right)
            queue.extend(right)
        return iter(queue)

    def _with_extremes(self, rule: Signature) -> Iterator[Signature]:
        """Yield the rule with one input changed from B to P(max) or P(min).

        B is a special case of P(max) and P(min), so only rules derived from valid rules have them.
        """
        for i, sbp in enumerate(rule.inputs):
            for extreme in self.extremes(i) if sbp == B else ():
                inputs = (*rule.inputs[:i], extreme, *rule.inputs[i + 1 :])
                yield Signature(inputs, rule.outputs)

    def _holds_everywhere(self, rule: Signature) -> bool:
        """Return whether a rule has no empty parts on 3 devices, and holds wherever it has none."""
        return formable(self.case, rule, 3) and self.holds_wherever(rule)

    def prove(self) -> Proof:
        """Compare the op's rules with the valid rules."""
        return self.judge(self.listed())

    def listed(self) -> Rules:
        """Return the op's rules for each number of devices."""
        return self.rules

    def judge(self, rules: Rules) -> Proof:
        """Compare given rules with the valid rules."""
        return Proof(self.case, self.wrong(rules), self.missing(rules), self.checks)

    def wrong(self, rules: Rules) -> tuple[Wrong, ...]:
        """Return the given rules that do not hold."""
        rows = ((rule, parts) for parts, row in rules.items() for rule in row)
        return tuple(
            (rule, parts, self.why(rule, parts))
            for rule, parts in rows
            if formable(self.case, rule, parts) and not self.holds(rule, parts)
        )

    def why(self, rule: Signature, parts: int) -> str:
        """Describe why a rule does not hold on a number of devices."""
        return next(t.why(rule) for t in self.trials[parts] if not t.holds(rule))

    def is_conclusive(self, index: int) -> bool:
        """Return whether an input has enough elements; with few integers, rules hold by chance."""
        type_ = self.case.asked.inputs[index]
        return not type_.dtype.is_integer or type_.size >= FEW_WHOLE

    def is_comparable(self, rule: Signature) -> bool:
        """Return whether a rule is searched for with the types of the case.

        Unsigned numbers are never negative, so more rules hold for their maximum than in general.
        If an input has few indices, these may happen to be distinct or out of range.
        """
        types = self.case.asked.inputs
        if any(t.size > 1 and not self.is_conclusive(i) for i, t in enumerate(types)):
            return False
        unsigned = any(t.dtype.kind == "u" for t in types)
        return not unsigned or not {*rule.inputs, *rule.outputs} & set(EXTREMES)

    def missing(self, rules: Rules) -> tuple[Signature, ...]:
        """Return the valid rules that are missing among the given rules for 2 and 3 devices."""
        lacked = (r for r in self.valid() if any(r not in rules[n] for n in (2, 3)))
        return tuple(filter(self.is_comparable, lacked))
