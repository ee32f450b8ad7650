"""Proves SBP rules by brute force: every listed rule holds, and none that holds is missing.

For each case of an op and for 1 to 4 devices, all combinations of S(i), B and the three kinds of P
on the inputs are tried: inputs are taken apart, each device's part is computed by the op's own
reference (an update of variables by its kernel), with the attributes that `OpSpec.localize` gives,
and for each output, every SBP is tried to put the parts together again.  What gives the logical
result for all numbers of devices and all draws of numbers is a rule; it need not be listed where
another one `implies` it.

What is not enumerated:

* P of truth values: there is no sum of them.
* Inputs of which only the shape is read are B, P or split: P(max) and P(min) say the same as P.
* The inputs of a variadic op are all that are unread alike.
* Variables that an op overwrites are not P: no variable is.
* Gradients are not P(max) or P(min): the dual of a maximum is no maximum.
* Unsigned numbers: what passes a maximum there, as they are never negative, is not searched for.
* Integers of which a tensor has hardly any: by them rules hold by chance.
* Axes that have fewer elements than there are devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from math import prod
from typing import Any

import numpy as np

from flow_core.ir import TensorType, tensor_type
from flow_core.plugins.specs import (
    InferContext,
    KernelQuery,
    KernelSpec,
    LocalContext,
    OpSpec,
    Part,
    SbpContext,
    local_attrs,
    local_shape,
)
from flow_core.sbp import (
    EXTREMES,
    B,
    P,
    Partial,
    S,
    Sbp,
    Signature,
    Split,
    local_region,
    region_shape,
)
from flow_core.testing.checks import as_tuple, input_name, run_kernel
from flow_core.testing.prover_cases import NONSENSE, UNIT, Arrays, Case
from flow_core.testing.scattering import CannotForm, gather, is_close, is_exact, largest, scatter

DEVICES = (1, 2, 3, 4)
FEW = 32
"""Fewer numbers tell little at once."""
WORST = 1e4
"""How much larger than a sum its parts may be, and it still tells something."""
MOST = 200_000
"""Cases with more combinations of inputs are left out, and counted as such."""

Rules = Mapping[int, tuple[Signature, ...]]
"""Rules per number of devices."""
Wrong = tuple[Signature, int, str]
"""A rule, a number of devices, and why it does not hold on them."""
FindKernel = Callable[[KernelQuery], KernelSpec]


@dataclass(frozen=True, slots=True)
class Trial:
    """One draw of a case's inputs, to be taken apart for some number of devices.

    Attributes:
        case: what is computed.
        arrays: the logical inputs.
        parts: how many devices there are.
        find: kernels of ops without a reference.
        seed: of the numbers that partial results are made of.
        held, done, logical: what is known already: parts, results of devices, logical results.
    """

    case: Case
    arrays: Arrays
    parts: int
    find: FindKernel | None = None
    seed: int = 0
    held: dict[tuple[int, Sbp], list[Any]] = field(default_factory=dict)
    done: dict[Any, Any] = field(default_factory=dict)
    logical: list[Any] = field(default_factory=list)

    @property
    def want(self) -> Sequence[Any]:
        """The logical outputs, then the variables that the op has overwritten."""
        if not self.logical:
            self.logical.extend(self._compute(self.arrays, self.case.asked))
        return self.logical

    def _compute(self, inputs: Sequence[Any], asked: KernelQuery) -> tuple[Any, ...]:
        spec = self.case.spec
        with np.errstate(all="ignore"):
            if spec.reference is not None:
                return as_tuple(spec.reference(*inputs, **asked.attrs))
            assert self.find is not None, f"{spec.type} has no reference to brute-force"
            copies = [np.array(x) for x in inputs]
            results = run_kernel(self.find(asked), asked, copies)
        return (*results, *(copies[i] for i in _overwritten(self.case)))

    def part(self, index: int, sbp: Sbp, rank: int) -> Any:
        """What a device holds of an input."""
        if (index, sbp) not in self.held:
            rng = np.random.default_rng((self.seed, self.parts, index))
            self.held[index, sbp] = scatter(self.arrays[index], sbp, self.parts, rng, 1 / UNIT)
        return self.held[index, sbp][rank]

    def local(self, rule: Signature, rank: int) -> tuple[Any, ...]:
        """What a device computes.

        Raises:
            CannotForm: there is no such op.
        """
        context = local_context(self.case.asked, rule, self.parts, rank)
        attrs = local_attrs(self.case.spec, context)
        key = rule.inputs, rank, attrs
        if key not in self.done:
            inputs = [self.part(i, sbp, rank) for i, sbp in enumerate(rule.inputs)]
            self.done[key] = self._local(inputs, attrs)
        found: tuple[Any, ...] | CannotForm = self.done[key]
        if isinstance(found, CannotForm):
            raise found
        return found

    def _local(self, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        asked, spec = self.case.asked, self.case.spec
        rows = zip(inputs, asked.inputs, strict=True)
        types = tuple(tensor_type(x.shape, t.dtype) for x, t in rows)
        try:
            outputs = tuple(spec.infer(InferContext("local", spec.type, types, attrs)))
            return self._compute(inputs, KernelQuery(spec.type, attrs, types, outputs))
        except NONSENSE as error:
            return CannotForm(f"{', '.join(map(str, types))}: {type(error).__name__}: {error}")

    def output(self, index: int, sbp: Sbp, rule: Signature) -> str | None:
        """Why the parts of a result are not the logical one in some SBP, None when they are."""
        want = self.want[index]
        try:
            found = [self.local(rule, rank)[index] for rank in range(self.parts)]
            for rank, piece in enumerate(found):
                region = local_region(np.shape(want), (sbp,), (self.parts,), rank)
                if np.shape(piece) != region_shape(region):
                    wanted = region_shape(region)
                    return f"a device has shape {np.shape(piece)} instead of {wanted}"
            whole = gather(found, sbp)
        except CannotForm as error:
            return str(error)
        scale = min(largest(found), WORST * largest([want])) if sbp == P else 1.0
        if is_close(whole, want, scale, all(map(is_exact, (want, *found)))):
            return None
        return f"result {index} is\n{whole}\ninstead of\n{want}"

    def problem(self, rule: Signature) -> str | None:
        """Why a rule is wrong, None when it holds."""
        for index, sbp in enumerate(results_of(self.case, rule)):
            found = self.output(index, sbp, rule)
            if found is not None:
                return found
        return None

    def completions(self, inputs: tuple[Sbp, ...]) -> Iterator[Signature]:
        """All rules with some inputs that hold."""
        types = self.case.asked.outputs
        options = [kinds(t, self.parts) for t in types]
        if not _depends_on_outputs(self.case) and options:
            blank = Signature(inputs, (B,) * len(types))
            options = [
                tuple(sbp for sbp in row if self.output(i, sbp, blank) is None)
                for i, row in enumerate(options)
            ]
        for outputs in product(*options):
            rule = Signature(inputs, outputs)
            if self.problem(rule) is None:
                yield rule


def _overwritten(case: Case) -> tuple[int, ...]:
    spec = case.spec
    given = range(len(case.asked.inputs))
    return tuple(i for i in spec.mutates if i in given) if spec.reference is None else ()


def results_of(case: Case, rule: Signature) -> tuple[Sbp, ...]:
    """The SBPs of all results: outputs, then variables, which stay as they were."""
    return (*rule.outputs, *(rule.inputs[i] for i in _overwritten(case)))


def _depends_on_outputs(case: Case) -> bool:
    return case.spec.localize is not local_shape or "shape" in case.asked.attrs


def local_context(asked: KernelQuery, rule: Signature, parts: int, rank: int) -> LocalContext:
    """What one device holds of an op's tensors."""

    def of(types: Sequence[TensorType], sbps: Sequence[Sbp]) -> tuple[Part, ...]:
        rows = zip(types, sbps, strict=True)
        return tuple(Part(t, local_region(t.shape, (sbp,), (parts,), rank)) for t, sbp in rows)

    return LocalContext(asked.attrs, of(asked.inputs, rule.inputs), of(asked.outputs, rule.outputs))


def kinds(type_: TensorType, parts: int) -> tuple[Sbp, ...]:
    """All SBPs of a tensor that give every device something.

    >>> from flow_core.dtypes import float32
    >>> [str(sbp) for sbp in kinds(tensor_type((5, 1), float32), 2)]
    ['B', 'P', 'P(max)', 'P(min)', 'S(0)']
    """
    partial_ = () if type_.dtype.kind == "b" else (P, *EXTREMES)
    return (B, *partial_, *(S(i) for i, n in enumerate(type_.shape) if n >= parts))


def listed(case: Case, parts: int | None) -> tuple[Signature, ...]:
    """The op's rules for a number of devices."""
    asked = case.asked
    return tuple(case.spec.sbp(SbpContext(asked.inputs, asked.outputs, asked.attrs, parts)))


def all_broadcast(case: Case) -> Signature:
    """The rule that always holds."""
    return Signature((B,) * len(case.asked.inputs), (B,) * len(case.asked.outputs))


def formable(case: Case, rule: Signature, parts: int) -> bool:
    """Whether every device gets something of each axis that a rule splits."""
    rows = zip(
        (*rule.inputs, *rule.outputs), (*case.asked.inputs, *case.asked.outputs), strict=True
    )
    return all(t.shape[s.axis] >= parts for s, t in rows if isinstance(s, Split))


def is_gradient(spec: OpSpec, index: int) -> bool:
    """Whether an input is a gradient, or what the op of a gradient has kept for it.

    >>> is_gradient(OpSpec("relu_grad", ("y", "dy"), infer=lambda ctx: ctx.inputs), 0)
    True
    """
    return "_grad" in spec.type or input_name(spec, index) == "model_diff"


def implies(rule: Signature, other: Signature) -> bool:
    """Whether another rule says less: what is the same everywhere is its maximum and minimum.

    >>> greatest = Partial("max")
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
    """What was found about one case.

    Attributes:
        case: the case.
        wrong: listed rules that do not hold, with number of devices and reason.
        missing: rules that hold and are not listed.
        checks: how many rules were tried on how many devices and draws.
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
    """The truth about a case, found once and compared with any list of rules."""

    def __init__(self, case: Case, find: FindKernel | None = None) -> None:
        self.case = case
        self.trials = {
            parts: [
                Trial(case, arrays, parts, find, seed)
                for seed, arrays in enumerate(case.draws * self._tries(case))
            ]
            for parts in DEVICES
        }
        self.checks = 0
        self.known: dict[tuple[Signature, int], str | None] = {}
        self._valid: tuple[Signature, ...] | None = None

    @staticmethod
    def _tries(case: Case) -> int:
        """How often a draw is taken apart: the more often, the fewer its numbers are."""
        smallest = min((t.size for t in case.asked.inputs), default=FEW)
        return max(1, FEW // max(smallest, 1) // 4)

    def problem(self, rule: Signature, parts: int) -> str | None:
        """Why a rule is wrong on some devices, None when it holds."""
        if (rule, parts) not in self.known:
            self.known[rule, parts] = self._problem(rule, parts)
        return self.known[rule, parts]

    def _problem(self, rule: Signature, parts: int) -> str | None:
        for trial in self.trials[parts]:
            self.checks += 1
            found = trial.problem(rule)
            if found is not None:
                return found
        return None

    def unread(self) -> tuple[int, ...]:
        """Inputs of which only the shape is read."""
        return tuple(i for i in range(len(self.case.asked.inputs)) if self._is_unread(i))

    def _is_unread(self, index: int) -> bool:
        if self.case.spec.reference is None:
            return False
        first = self.trials[1][0]
        x = first.arrays[index]
        for other in (np.zeros_like(x), x[::-1] if x.ndim else x, x + np.ones_like(x)):
            arrays = (*first.arrays[:index], other, *first.arrays[index + 1 :])
            try:
                results = first._compute(arrays, self.case.asked)
            except NONSENSE:
                return False
            if not all(map(partial(np.array_equal, equal_nan=True), results, first.want)):
                return False
        return True

    def input_kinds(self, parts: int) -> Iterator[tuple[Sbp, ...]]:
        """All layouts of the inputs that are tried."""
        unread, spec = self.unread(), self.case.spec
        rows = []
        for i, type_ in enumerate(self.case.asked.inputs):
            row = kinds(type_, parts)
            if i in unread or is_gradient(spec, i):
                row = tuple(s for s in row if s not in EXTREMES)
            if i in spec.mutates:
                row = tuple(s for s in row if not isinstance(s, Partial))
            rows.append(row)
        variadic = [i for i in unread if i >= len(spec.inputs) - 1 and spec.inputs[-1][-1] == "*"]
        for inputs in product(*rows):
            if len({inputs[i] for i in variadic}) <= 1:
                yield inputs

    @property
    def combinations(self) -> int:
        """How many layouts of inputs there are on two devices."""
        return prod(len(kinds(t, 2)) for t in self.case.asked.inputs)

    def valid(self) -> tuple[Signature, ...]:
        """All rules that hold on every number of devices, but those that others imply."""
        if self._valid is None:
            self._valid = tuple(self._find_valid())
        return self._valid

    def _find_valid(self) -> Iterator[Signature]:
        found = list(self._hold())
        whole = all_broadcast(self.case)
        return (r for r in found if not any(implies(s, r) for s in (whole, *found) if s != r))

    def _hold(self) -> Iterator[Signature]:
        whole = all_broadcast(self.case)
        first = self.trials[2][0]
        for inputs in self.input_kinds(2):
            self.checks += 1
            for rule in first.completions(inputs):
                if rule != whole and self._holds_everywhere(rule):
                    yield rule

    def _holds_everywhere(self, rule: Signature) -> bool:
        """On 2 devices and, where its axes are long enough, on 3; and then on 4."""
        counts = [n for n in DEVICES if formable(self.case, rule, n)]
        return 3 in counts and all(self.problem(rule, n) is None for n in counts)

    def prove(self) -> Proof:
        """Compares the op's rules with the truth."""
        return self.judge(self.listed())

    def listed(self) -> Rules:
        """The op's rules for each number of devices."""
        return {parts: listed(self.case, parts) for parts in DEVICES}

    def judge(self, rules: Rules) -> Proof:
        """Compares rules with the truth."""
        return Proof(self.case, self.wrong(rules), self.missing(rules), self.checks)

    def wrong(self, rules: Rules) -> tuple[Wrong, ...]:
        """Which of some rules do not hold."""
        rows = ((parts, rule) for parts, row in rules.items() for rule in row)
        problems = (
            (rule, parts, self.problem(rule, parts))
            for parts, rule in rows
            if formable(self.case, rule, parts)
        )
        return tuple((rule, parts, why) for rule, parts, why in problems if why is not None)

    @property
    def tells_all(self) -> bool:
        """Whether rules that hold for the case's types hold in general."""
        types = self.case.asked.inputs
        few = (t for t in types if t.dtype.is_integer and t.size < FEW)
        return not any(few) and not any(t.dtype.kind == "u" for t in types)

    def missing(self, rules: Rules) -> tuple[Signature, ...]:
        """Which rules that hold are not among some for 2 and 3 devices."""
        if not self.tells_all:
            return ()
        return tuple(r for r in self.valid() if any(r not in rules[n] for n in (2, 3)))
