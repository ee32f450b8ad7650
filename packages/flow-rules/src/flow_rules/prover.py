"""Prove rules by brute force: every listed rule holds, and no valid rule is missing.

For each case of an op and for several numbers of devices, the prover tries all combinations of
S(i), B and the kinds of P on the inputs.  It splits the inputs, computes each device's part, and
tries every layout to reassemble each output.  A combination that yields the result of the whole
inputs for all numbers of devices and all draws of the inputs is a rule; it need not be listed if
another rule `implies` it.

The prover does not try the following combinations:

* P for truth values, which have no sum.
* P(max) and P(min) for inputs of which only the shape is read: both are equivalent to P.
* Different layouts for the inputs of a variadic op of which only the shape is read.
* P for a variable that an op overwrites, unless a rule lists it.
* P(max) and P(min) for gradients: the dual of a maximum is not a maximum.
* P(max) and P(min) for an input for which B is not valid: B is a special case of both.
* Listed that hold only for unsigned numbers, because these are never negative.
* S and P for tensors with few integers, such as a count: rules would hold for them by chance.
* Splits of axes with fewer elements than devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, product
from math import prod
from typing import Any

import numpy as np

from flow_rules.layouts import (
    EXTREMES,
    REPEATABLE,
    Array,
    B,
    Layout,
    P,
    Partial,
    Place,
    Ranges,
    Rule,
    S,
    Shape,
    Split,
    TensorType,
    balanced,
    region_of,
    shape_of,
)
from flow_rules.scattering import CannotForm, gather, is_close, is_exact, largest, scatter

UNIT = 16
"""Floating point values are multiples of the reciprocal of this number."""
FEW = 32
"""Results with fewer elements are drawn more often."""
FEW_WHOLE = 12
"""Inputs with fewer integers are not split, because rules would hold for them by chance."""
WORST = 1e4
"""Largest ratio of the terms of a sum to the sum for which a comparison is meaningful."""
MOST = 200_000
"""Cases with more combinations of inputs' layouts are skipped, and counted as skipped."""

Listed = Mapping[int, tuple[Rule, ...]]
"""The rules for each number of devices."""
Wrong = tuple[Rule, int, str]
"""A rule, a number of devices, and the reason why the rule does not hold on that number."""
Arrays = tuple[Any, ...]
NONSENSE: tuple[type[Exception], ...] = (
    ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""The exceptions that computations raise for invalid inputs."""


@dataclass(frozen=True, slots=True)
class Case:
    """An op with types and attributes, and several draws of its inputs."""

    name: str  # the op, and what distinguishes the case
    inputs: tuple[TensorType, ...]  # types of the whole tensors
    outputs: tuple[TensorType, ...]  # likewise
    attributes: Any  # hashable
    # Computes the outputs, then the new values of overwritten inputs, from inputs and attributes;
    # raises one of `NONSENSE` if it does not accept them.
    evaluate: Callable[[Sequence[Array], Any], Sequence[Array]]
    draws: tuple[Arrays, ...]  # the arrays of the inputs, for each draw
    rules: Callable[[int], tuple[Rule, ...]]  # returns the listed rules for a number of devices
    # Returns the attributes for a device's parts; None if these are the whole's.
    localize: Callable[[Place], Any] | None = None
    overwrites: tuple[int, ...] = ()  # inputs that the op overwrites
    variables: tuple[int, ...] = ()  # inputs that are P only if a listed rule says so
    # Inputs that are gradients, or saved values that gradient ops read.
    gradients: tuple[int, ...] = ()
    variadic: tuple[int, ...] = ()  # inputs that have the same layout if only their shapes are read
    # Numbers of devices, in the order that tends to find errors soonest.
    devices: tuple[int, ...] = (2, 3, 4, 1)
    repeatable: tuple[Partial, ...] = EXTREMES  # partial layouts other than P
    ranges: Ranges = balanced  # how axes are split

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Trial:
    """One draw of a case's inputs, split over a number of devices."""

    case: Case
    arrays: Arrays
    parts: int  # number of devices
    seed: int = 0  # seed of the random terms of partial sums
    # Caches of the parts of inputs, the results of devices, the logical results, and the shapes of
    # the parts of results.
    held: dict[tuple[int, Layout], list[Any]] = field(default_factory=dict)
    done: dict[Any, Any] = field(default_factory=dict)
    logical: list[Any] = field(default_factory=list)
    shapes: dict[tuple[int, Layout], tuple[Shape, ...]] = field(default_factory=dict)

    @property
    def want(self) -> Sequence[Array]:
        """Return the logical outputs, then the overwritten variables."""
        if not self.logical:
            self.logical.extend(self.case.evaluate(self.arrays, self.case.attributes))
        return self.logical

    def part(self, index: int, layout: Layout, rank: int) -> Any:
        """Return a device's part of an input."""
        if (index, layout) not in self.held:
            rng = np.random.default_rng((self.seed, self.parts, index))
            given = self.arrays[index], layout, self.parts, rng, 1 / UNIT, self.case.ranges
            self.held[index, layout] = scatter(*given)
        return self.held[index, layout][rank]

    def local(self, rule: Rule, rank: int) -> tuple[Array, ...]:
        """Compute the results of a device.

        Raises `CannotForm` if the op rejects the parts of its inputs.
        """
        attrs = self._attrs(rule, rank)
        key = rule.inputs, rank, attrs
        if key not in self.done:
            inputs = [self.part(i, layout, rank) for i, layout in enumerate(rule.inputs)]
            self.done[key] = self._local(inputs, attrs)
        found: tuple[Any, ...] | CannotForm = self.done[key]
        if isinstance(found, CannotForm):
            raise found
        return found

    def _attrs(self, rule: Rule, rank: int) -> Any:
        localize = self.case.localize
        return localize(self._place(rule, rank)) if localize else self.case.attributes

    def _place(self, rule: Rule, rank: int) -> Place:
        case = self.case

        def regions(types: Sequence[TensorType], layouts: Sequence[Layout]) -> list[Any]:
            rows = zip(types, layouts, strict=True)
            return [region_of(t.shape, x, self.parts, rank, case.ranges) for t, x in rows]

        parts = regions(case.inputs, rule.inputs), regions(case.outputs, rule.outputs)
        return Place(rule, self.parts, rank, case.inputs, case.outputs, *parts)

    def _local(self, inputs: Sequence[Array], attrs: Any) -> Any:
        try:
            found = self.case.evaluate(inputs, attrs)
        except NONSENSE as error:
            shapes = ", ".join(str(np.shape(x)) for x in inputs)
            return CannotForm(f"{shapes}: {type(error).__name__}: {error}")
        if len(found) != len(self.want):
            return CannotForm(f"a device has {len(found)} results instead of {len(self.want)}")
        return found

    def gathered(self, index: int, layout: Layout, rule: Rule) -> tuple[Array, Sequence[Array]]:
        """Reassemble a result from its parts with a given layout; return the result and the parts.

        Raises `CannotForm` if the parts are not valid for the layout.
        """
        found = []
        for rank, wanted in enumerate(self._shapes(index, layout)):
            piece = self.local(rule, rank)[index]
            if np.shape(piece) != wanted:
                raise CannotForm(f"a device has shape {np.shape(piece)} instead of {wanted}")
            found.append(piece)
        return gather(found, layout), found

    def _shapes(self, index: int, layout: Layout) -> tuple[Shape, ...]:
        """Return the shapes of a result's parts."""
        if (index, layout) not in self.shapes:
            logical, ranks = np.shape(self.want[index]), range(self.parts)
            split = self.case.ranges
            regions = (region_of(logical, layout, self.parts, rank, split) for rank in ranks)
            self.shapes[index, layout] = tuple(map(shape_of, regions))
        return self.shapes[index, layout]

    def agrees(self, index: int, layout: Layout, rule: Rule) -> bool:
        """Return whether a result's parts are parts of the logical result with a given layout."""
        try:
            whole, found = self.gathered(index, layout, rule)
        except CannotForm:
            return False
        want = self.want[index]
        if np.array_equal(whole, want):
            return True
        sums = isinstance(layout, Partial) and layout.op in ("sum", "avg")
        scale = min(largest(found), WORST * largest([want]) or np.inf) if sums else 1.0
        return is_close(whole, want, scale) and not all(map(is_exact, (want, *found)))

    def holds(self, rule: Rule) -> bool:
        """Return whether a rule yields the logical results."""
        rows = enumerate(results_of(self.case, rule))
        return all(self.agrees(index, layout, rule) for index, layout in rows)

    def why(self, rule: Rule) -> str:
        """Describe the wrong result of a rule that does not hold."""
        for index, layout in enumerate(results_of(self.case, rule)):
            if not self.agrees(index, layout, rule):
                try:
                    whole, _ = self.gathered(index, layout, rule)
                except CannotForm as error:
                    return str(error)
                return f"result {index} is\n{whole}\ninstead of\n{self.want[index]}"
        return "it holds"

    def completions(self, inputs: tuple[Layout, ...]) -> Iterator[Rule]:
        """Yield all valid rules with the given layouts of the inputs."""
        types, local = self.case.outputs, self.case.localize is not None
        keeps = not self.case.overwrites
        options = [kinds(t, self.parts, self.case.repeatable) for t in types]
        if not local and options:
            blank = Rule(inputs, (B,) * len(types))
            options = [
                tuple(layout for layout in row if self.agrees(i, layout, blank))
                for i, row in enumerate(options)
            ]
        for outputs in product(*options):
            rule = Rule(inputs, outputs)
            if (options and not local and keeps) or self.holds(rule):
                yield rule

    def ignores(self, index: int) -> bool:
        """Return whether the results do not depend on the values of an input."""
        x = self.arrays[index]
        for other in (np.zeros_like(x), x[::-1] if x.ndim else x, x + np.ones_like(x)):
            arrays = (*self.arrays[:index], other, *self.arrays[index + 1 :])
            try:
                results = self.case.evaluate(arrays, self.case.attributes)
            except NONSENSE:
                return False
            if not all(map(partial(np.array_equal, equal_nan=True), results, self.want)):
                return False
        return True

    def forget(self) -> None:
        """Clear the caches."""
        for table in (self.held, self.done, self.logical, self.shapes):
            table.clear()


def results_of(case: Case, rule: Rule) -> tuple[Layout, ...]:
    """Return the layouts of all results: outputs, then overwritten inputs, which keep theirs."""
    return (*rule.outputs, *(rule.inputs[i] for i in case.overwrites))


def kinds(
    type_: TensorType, parts: int, repeatable: Sequence[Partial] = EXTREMES
) -> tuple[Layout, ...]:
    """Return all layouts of a tensor with which every device has a non-empty part.

    >>> [str(layout) for layout in kinds(TensorType((5, 1), np.dtype("float32")), 2)]
    ['B', 'P', 'P(max)', 'P(min)', 'S(0)']
    """
    partial_: tuple[Partial, ...] = () if type_.dtype.kind == "b" else (P, *repeatable)
    if type_.dtype.kind in "iu":
        partial_ = tuple(p for p in partial_ if p.op != "avg")
    return (B, *partial_, *(S(i) for i, n in enumerate(type_.shape) if n >= parts))


def all_broadcast(case: Case) -> Rule:
    """Return the all-broadcast rule, which always holds."""
    return Rule((B,) * len(case.inputs), (B,) * len(case.outputs))


def formable(case: Case, rule: Rule, parts: int) -> bool:
    """Return whether every device has a non-empty part of each axis that a rule splits."""
    rows = zip((*rule.inputs, *rule.outputs), (*case.inputs, *case.outputs), strict=True)
    splits = ((s.axis, t.shape) for s, t in rows if isinstance(s, Split))
    return all(
        axis < len(shape) and all(low < high for low, high in case.ranges(shape[axis], parts))
        for axis, shape in splits
    )


def implies(rule: Rule, other: Rule) -> bool:
    """Return whether a rule implies another rule.

    The reason is that a replicated value is the maximum and the minimum of its replicas.

    >>> greatest, _ = EXTREMES
    >>> implies(Rule((B,), (B,)), Rule((B,), (greatest,)))
    True
    >>> implies(Rule((greatest,), (greatest,)), Rule((B,), (greatest,)))
    True
    """
    inputs = zip(other.inputs, rule.inputs, strict=True)
    outputs = zip(rule.outputs, other.outputs, strict=True)
    return all(a == b or (a == B and b in REPEATABLE) for a, b in (*inputs, *outputs))


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of the prover for one case."""

    case: Case
    # Listed rules that do not hold, each with a number of devices and the reason.
    wrong: tuple[Wrong, ...]
    missing: tuple[Rule, ...]
    checks: int  # total number of trials, for all rules, numbers of devices and draws

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
            for parts in case.devices
        }
        self.checks = 0
        self.rules = {parts: case.rules(parts) for parts in case.devices}
        self.known: dict[tuple[Rule, int], bool] = {}
        self._valid: tuple[Rule, ...] | None = None

    @staticmethod
    def _tries(case: Case) -> int:
        """Return how often to split a draw, which is more often for draws with few elements."""
        smallest = min((t.size for t in case.inputs), default=FEW)
        return max(1, FEW // max(smallest, 1) // 4)

    def holds(self, rule: Rule, parts: int) -> bool:
        """Return whether a rule holds on a number of devices."""
        if (rule, parts) not in self.known:
            self.known[rule, parts] = all(t.holds(rule) for t in self._counted(parts))
        return self.known[rule, parts]

    def _counted(self, parts: int) -> Iterator[Trial]:
        for trial in self.trials[parts]:
            self.checks += 1
            yield trial

    def holds_wherever(self, rule: Rule) -> bool:
        """Return whether a rule holds on all numbers of devices with which no part is empty."""
        return all(self.holds(rule, n) for n in self.case.devices if formable(self.case, rule, n))

    def forget(self) -> None:
        """Clear the caches of trials, but keep the results for rules."""
        for trial in chain.from_iterable(self.trials.values()):
            trial.forget()

    @cached_property
    def unread(self) -> tuple[int, ...]:
        """Return the inputs of which only the shape is read."""
        return tuple(i for i in range(len(self.case.inputs)) if self._is_unread(i))

    def _is_unread(self, index: int) -> bool:
        if index in self.case.variables:
            return False
        return all(trial.ignores(index) for trial in self.trials[self.case.devices[-1]])

    def choices(self, index: int, parts: int) -> tuple[Layout, ...]:
        """Return the layouts to try for an input, except P(max) and P(min)."""
        if not self.is_conclusive(index):
            return (B,)
        row = (s for s in kinds(self.case.inputs[index], parts) if s not in EXTREMES)
        return tuple(s for s in row if s != P or self.may_be(index, P))

    def extremes(self, index: int) -> tuple[Layout, ...]:
        """Return those of P(max) and P(min) that are to be tried for an input."""
        case = self.case
        if index in self.unread or index in case.gradients or not self.is_conclusive(index):
            return ()
        row = (s for s in case.repeatable if s in kinds(case.inputs[index], 2, case.repeatable))
        return tuple(s for s in row if self.may_be(index, s))

    def may_be(self, index: int, layout: Layout) -> bool:
        """Return whether an input or output may be partial; a variable only if a rule lists it."""
        if index not in self.case.variables:
            return True
        return any(rule.inputs[index] == layout for rule in self.rules[2])

    def searches(self, rule: Rule) -> bool:
        """Return whether a rule is among the rules to try."""
        return self.is_comparable(rule) and all(
            layout in (*self.choices(i, 2), *self.extremes(i))
            for i, layout in enumerate(rule.inputs)
        )

    def input_kinds(self, parts: int) -> Iterator[tuple[Layout, ...]]:
        """Yield the combinations of the inputs' layouts to try, except with P(max) and P(min)."""
        count = len(self.case.inputs)
        alike = [i for i in self.unread if i in self.case.variadic]
        for inputs in product(*(self.choices(i, parts) for i in range(count))):
            if len({inputs[i] for i in alike}) <= 1:
                yield inputs

    @property
    def combinations(self) -> int:
        """Return the number of combinations of the inputs' layouts on two devices."""
        return prod(len(self.choices(i, 2)) for i in range(len(self.case.inputs)))

    def valid(self) -> tuple[Rule, ...]:
        """Return all rules that hold on every number of devices and that no other rule implies."""
        if self._valid is None:
            self._valid = tuple(self._find_valid())
        return self._valid

    def _find_valid(self) -> Iterator[Rule]:
        found = tuple(self._hold())
        whole = all_broadcast(self.case)
        return (r for r in found if r != whole and not any(implies(s, r) for s in found if s != r))

    def _hold(self) -> Iterator[Rule]:
        first = self.trials[2][0]
        found: dict[Rule, None] = {}
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

    def _with_extremes(self, rule: Rule) -> Iterator[Rule]:
        """Yield the rule with one input changed from B to P(max) or P(min).

        B is a special case of P(max) and P(min), so only rules derived from valid rules have them.
        """
        for i, layout in enumerate(rule.inputs):
            for extreme in self.extremes(i) if layout == B else ():
                inputs = (*rule.inputs[:i], extreme, *rule.inputs[i + 1 :])
                yield Rule(inputs, rule.outputs)

    def _holds_everywhere(self, rule: Rule) -> bool:
        """Return whether a rule has no empty parts on 3 devices, and holds wherever it has none."""
        return formable(self.case, rule, 3) and self.holds_wherever(rule)

    def prove(self) -> Proof:
        """Compare the op's rules with the valid rules."""
        return self.judge(self.listed())

    def listed(self) -> Listed:
        """Return the op's rules for each number of devices."""
        return self.rules

    def judge(self, rules: Listed) -> Proof:
        """Compare given rules with the valid rules."""
        return Proof(self.case, self.wrong(rules), self.missing(rules), self.checks)

    def wrong(self, rules: Listed) -> tuple[Wrong, ...]:
        """Return the given rules that do not hold."""
        rows = ((rule, parts) for parts, row in rules.items() for rule in row)
        return tuple(
            (rule, parts, self.why(rule, parts))
            for rule, parts in rows
            if formable(self.case, rule, parts) and not self.holds(rule, parts)
        )

    def why(self, rule: Rule, parts: int) -> str:
        """Describe why a rule does not hold on a number of devices."""
        return next(t.why(rule) for t in self.trials[parts] if not t.holds(rule))

    def is_conclusive(self, index: int) -> bool:
        """Return whether an input has enough elements; with few integers, rules hold by chance."""
        type_ = self.case.inputs[index]
        return type_.dtype.kind not in "iu" or type_.size >= FEW_WHOLE

    def is_comparable(self, rule: Rule) -> bool:
        """Return whether a rule is searched for with the types of the case.

        Unsigned numbers are never negative, so more rules hold for their maximum than in general.
        If an input has few indices, these may happen to be distinct or out of range.
        """
        types = self.case.inputs
        if any(t.size > 1 and not self.is_conclusive(i) for i, t in enumerate(types)):
            return False
        unsigned = any(t.dtype.kind == "u" for t in types)
        return not unsigned or not {*rule.inputs, *rule.outputs} & set(EXTREMES)

    def missing(self, rules: Listed) -> tuple[Rule, ...]:
        """Return the valid rules that are missing among the given rules for 2 and 3 devices."""
        lacked = (r for r in self.valid() if any(r not in rules[n] for n in (2, 3)))
        return tuple(filter(self.is_comparable, lacked))
