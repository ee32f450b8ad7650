"""Check the rules of a file: each holds, by brute force, and none that holds is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from flow_rules.draws import conclusive, drawn, multiples, not_zero, varied
from flow_rules.errors import RulesError
from flow_rules.evaluators import Evaluator
from flow_rules.files import OpRules, RuleCase, RulesFile, Tensor
from flow_rules.layouts import Array, Place, TensorType
from flow_rules.prover import MOST, NONSENSE, Case, Prover

LARGEST = 4096
"""Cases with larger tensors are skipped."""
GRADIENT = "_grad"
"""What the names of ops contain that read gradients."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that is wrong or missing.

    Attributes:
        op: the op.
        case: number of the case in the file, from 0.
        types: types of the inputs.
        attributes: of the case, as text.
        rule: the rule as text.
        devices: a number of devices on which a wrong rule does not hold; None for a missing rule.
        reason: what was found instead; empty for a missing rule.
    """

    op: str
    case: int
    types: str
    attributes: str
    rule: str
    devices: int | None = None
    reason: str = ""

    def __str__(self) -> str:
        place = f"{self.op} of {self.types}, case {self.case}: {self.rule}"
        if self.devices is None:
            return f"missing: {place}"
        return f"wrong: {place} on {self.devices} devices: {self.reason}"


@dataclass(frozen=True, slots=True)
class Report:
    """What the check of a file has found.

    Attributes:
        ops, cases, rules: numbers of ops, cases and rules that were checked.
        trials: number of comparisons.
        skipped: the numbers of cases that were not checked, by reason.
        wrong, missing: the findings.
    """

    ops: int
    cases: int
    rules: int
    trials: int
    skipped: Mapping[str, int]
    wrong: tuple[Finding, ...]
    missing: tuple[Finding, ...]

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON data."""
        return asdict(self)


class _Skipped(Exception):
    """A case cannot be checked; the message is the reason."""


def check(
    given: RulesFile,
    evaluator: Evaluator,
    ops: Sequence[str] = (),
    search: bool = False,
    progress: Callable[[str], None] = lambda op: None,
) -> Report:
    """Check the rules of a file by brute force.

    Args:
        given: the contents of the file.
        evaluator: computes the ops.
        ops: the ops to check; all if empty.
        search: whether to search for rules that hold and are not listed, which takes longer.  A
            rule counts as missing if it holds in all trials on 2, 3 and 4 devices, and no listed
            rule implies it.
        progress: called with the type of each op before it is checked.
    """
    seen, cases, rules, trials = set(), 0, 0, 0
    skipped: dict[str, int] = {}
    wrong: list[Finding] = []
    missing: list[Finding] = []
    for op in given.ops:
        if ops and op.type not in ops:
            continue
        progress(op.type)
        for number, case in enumerate(op.cases):
            try:
                with np.errstate(all="ignore"):  # terms of sums and maxima may be infinite
                    prover = Prover(_prover_case(op, case, evaluator))
                    proof = _found(prover, op, number, case, search)
            except _Skipped as error:
                skipped[str(error)] = skipped.get(str(error), 0) + 1
                continue
            seen.add(op.type)
            cases, rules, trials = cases + 1, rules + len(case.rules), trials + prover.checks
            wrong += proof[0]
            missing += proof[1]
    return Report(len(seen), cases, rules, trials, skipped, tuple(wrong), tuple(missing))


def _found(
    prover: Prover, op: OpRules, number: int, case: RuleCase, search: bool
) -> tuple[list[Finding], list[Finding]]:
    attributes = ", ".join(f"{name}={value!r}" for name, value in case.attributes.items())
    row = op.type, number, ", ".join(map(str, case.inputs)), attributes
    bad: dict[str, Finding] = {}
    for rule, devices, why in prover.wrong(prover.listed()):
        bad.setdefault(str(rule), Finding(*row, str(rule), devices, why))
    if not search:
        return [*bad.values()], []
    if prover.combinations > MOST:
        raise _Skipped("too many combinations of layouts")
    lacking = [Finding(*row, str(rule)) for rule in prover.missing(prover.listed())]
    return [*bad.values()], lacking


def _prover_case(op: OpRules, case: RuleCase, evaluator: Evaluator) -> Case:
    """Return a case of a file as a case of the prover.

    Raises `_Skipped` if the case cannot be checked.
    """
    inputs, outputs = _types(case.inputs), _types(case.outputs)
    sizes = [t.size for t in (*inputs, *outputs)]
    if not all(sizes):
        raise _Skipped("a tensor has no elements")
    if any(size > LARGEST for size in sizes):
        raise _Skipped(f"a tensor has more than {LARGEST} elements")
    seed = sum(map(ord, op.type)), *sizes
    rng = np.random.default_rng(seed)
    own = tuple(multiples(_example(t, rng)) for t in case.inputs)
    attributes = tuple(case.attributes.items())

    def evaluate(arrays: Sequence[Array], attrs: Any) -> Sequence[Array]:
        try:
            found = evaluator.evaluate(op.type, dict(attrs), arrays)
        except NONSENSE:
            raise
        except Exception as error:
            raise RulesError(f"computing {op.type!r}: {type(error).__name__}: {error}") from error
        if found is None:
            raise _Skipped("nothing computes the op")
        return [np.asarray(x) for x in found]

    def localize(place: Place) -> Any:
        return tuple(evaluator.localize(op.type, case.attributes, place).items())

    shapes = [t.shape for t in (*outputs, *(inputs[i] for i in case.overwrites))]
    changed = () if outputs else case.overwrites
    whole = partial(evaluate, attrs=attributes)
    try:
        whole(own)
    except NONSENSE as error:
        raise _Skipped(f"the example is refused: {type(error).__name__}") from error
    drawings = [own, *drawn(own, [t.shape for t in inputs], rng)]
    for tells in (varied, not_zero):
        draws = conclusive(drawings, whole, shapes, changed, tells)
        if draws:
            break
    else:
        raise _Skipped("the results tell nothing about rules")
    count = len(inputs)
    return Case(
        name=op.type,
        inputs=inputs,
        outputs=outputs,
        attributes=attributes,
        evaluate=evaluate,
        draws=draws,
        rules=lambda parts: case.rules,
        localize=localize,
        overwrites=case.overwrites,
        variables=case.overwrites,
        gradients=tuple(range(count)) if GRADIENT in op.type else (),
    )


def _types(tensors: Sequence[Tensor]) -> tuple[TensorType, ...]:
    try:
        return tuple(TensorType(t.shape, np.dtype(t.dtype)) for t in tensors)
    except TypeError:
        names = {t.dtype for t in tensors} & {"bfloat16", "char"}
        raise _Skipped(f"numpy has no {', '.join(sorted(names))}") from None


def _example(tensor: Tensor, rng: np.random.Generator) -> Array:
    """Draw an array within the range of an input."""
    dtype = np.dtype(tensor.dtype)
    if tensor.range is None:
        return rng.integers(0, 2, tensor.shape).astype(dtype)
    low, high = tensor.range
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        low, high = max(int(low), limits.min), min(int(high), limits.max)
        ends = np.array([low, high], dtype)
        made: Array = rng.integers(low, high, tensor.shape, dtype, endpoint=True)
    else:
        ends = np.array([low, high])
        made = rng.uniform(low, high, tensor.shape)
    flat = made.reshape(-1)
    flat[: min(2, flat.size)] = ends[: flat.size]  # later draws stay within the range of this one
    return rng.permutation(flat).reshape(tensor.shape).astype(dtype)
